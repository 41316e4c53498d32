"""hubctl in shells and in kubectl: names of the hub are completed, `kubectl hub` is hubctl, and any kind is described."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from hub.cli.plugin import offered
from tests.fakes.hubctl import hubctl_at
from tests.integration.door.conftest import Ended, HubUnderTest, run

COMPLETED = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={at}
_hubctl_completion "{name}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

LOOKED_AT = """
apiVersion: hub.open-cluster-management.io/v1alpha1
kind: ApprovalRule
metadata: {name: edges, labels: {a: b}}
spec: {decides: [Accept], requesters: [{kind: BootstrapCredential}], clusterNames: ["edge*"]}
---
apiVersion: v1
kind: Event
metadata: {name: looked, namespace: default}
type: Normal
reason: Looked
message: well
involvedObject: {kind: ApprovalRule, name: edges}
lastTimestamp: "2026-01-01T00:00:00Z"
"""
HIDDEN = "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: default}, data: {key: aGlkZGVu}}"
PARTS = ("Name:         edges", "Labels:       a=b", "Kind:         ApprovalRule", "  Decides:", "    - Accept")


@pytest.fixture
async def fleet(hub: HubUnderTest) -> HubUnderTest:
    for name in ("edge1", "edge2", "shop1"):
        await hub.join(name)
    return hub


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs as they are installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = {
        "hubctl": "__main__ import main",
        "kubectl-hub": "plugin import main",
        "kubectl_complete-hub": "plugin import complete as main",
    }
    for name, call in calls.items():
        file = folder / name
        file.write_text(f"#!{sys.executable}\nfrom hub.cli.{call}\nmain()\n")
        file.chmod(0o755)
    return folder


async def at(hub: HubUnderTest, programs: Path, *command: str) -> Ended:
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    return await run(*command, HUBCTL_KUBECONFIG=str(await hub.admin()), HOME=str(hub.folder), PATH=path)


async def test_names_come_from_the_hub(fleet: HubUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio  # noqa: PLC0415 - this test alone runs beside its hub

    monkeypatch.setenv("HUBCTL_KUBECONFIG", str(await fleet.admin()))

    async def words(*given: str) -> list[str]:
        return [line for line in await asyncio.to_thread(offered, given) if not line.startswith(":")]

    assert await words("accept", "edge") == ["edge1", "edge2"]
    assert await words("accept", "edge1", "") == ["edge2", "shop1"]
    assert await words("get", "clusters", "s") == ["shop1"]
    assert await words("get", "mcl/edge") == ["mcl/edge1", "mcl/edge2"]
    assert await words("describe", "cluster", "shop") == ["shop1"]
    assert "configmaps" in await words("get", "config")
    assert await words("get", "namespaces", "def") == ["default"]
    assert await words("--kubeconfig", "/absent", "accept", "") == []
    assert await words("--context", "") == ["muster"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not on the PATH")
async def test_bash_completes_names(fleet: HubUnderTest, programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text((await at(fleet, programs, "hubctl", "completion", "bash")).out)
    line = COMPLETED.format(script=script, words="hubctl accept edge", at=2, name=programs / "hubctl")
    assert (await at(fleet, programs, "bash", "-c", line)).out.split() == ["edge1", "edge2"]


@pytest.mark.kubectl
async def test_kubectl_hub_is_hubctl_and_completes_as_it(fleet: HubUnderTest, programs: Path) -> None:
    said = await at(fleet, programs, "kubectl", "hub", "get", "clusters", "-o", "jsonpath={.items[*].metadata.name}")
    assert said.out == "edge1 edge2 shop1", said.err
    assert (await at(fleet, programs, "kubectl", "hub", "get", "cluster", "nope")).code == 3
    completed = await at(fleet, programs, "kubectl", "__complete", "hub", "accept", "edge")
    assert completed.out.splitlines() == ["edge1", "edge2", ":4"], completed.err


async def test_any_kind_is_described_with_its_events(fleet: HubUnderTest) -> None:
    path = await fleet.admin()
    applied = await hubctl_at(path, "apply", "-f", "-", given=LOOKED_AT)
    assert applied.code == 0, applied.err
    page = (await hubctl_at(path, "describe", "rule", "edges")).out
    for line in (*PARTS, "    - Kind: BootstrapCredential"):
        assert line in page.splitlines(), page
    assert "  2026-01-01T00:00:00Z   Normal   Looked   well" in page.splitlines(), page
    assert (await hubctl_at(path, "describe", "cluster/edge1")).out.startswith("Name: ")
    assert (await hubctl_at(path, "describe", "mcl", "edge1")).out.startswith("Name: ")
    wrong = await hubctl_at(path, "describe", "clustr", "edge1")
    assert (wrong.code, 'did you mean "cluster"?' in wrong.err) == (2, True)
    assert (await hubctl_at(path, "describe", "rule", "none")).code == 3


async def test_a_secret_is_described_by_the_size_of_what_is_in_it(fleet: HubUnderTest) -> None:
    path = await fleet.admin()
    assert (await hubctl_at(path, "apply", "-f", "-", given=HIDDEN)).code == 0
    page = (await hubctl_at(path, "describe", "secret", "s", "-n", "default")).out
    assert ("Key: 6 bytes" in page, "aGlkZGVu" in page, "hidden" in page) == (True, False, False)
