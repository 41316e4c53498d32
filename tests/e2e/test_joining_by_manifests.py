"""`hubctl join`: what it applies to a cluster, and what it prints for kubectl, is all that an agent there needs to join."""

import asyncio
import stat
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from hub.cli.joining import DEFAULT_NAMESPACE, KEY, SECRET
from machinery.kube.client import KubeClient
from tests.e2e.processes import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.timeout(120)]


async def invitation_in(kubeconfig: Path, namespace: str, into: Path) -> Path:
    """The bootstrap kubeconfig as the agent's pod finds it mounted."""
    async with await KubeClient.from_file(kubeconfig) as client:
        secret = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{SECRET}")
        (deployment,) = (await client.get(f"/apis/apps/v1/namespaces/{namespace}/deployments"))["items"]
    (mounted,) = [each for each in deployment["spec"]["template"]["spec"]["volumes"] if each["name"] == "bootstrap"]
    assert mounted["secret"]["secretName"] == SECRET
    await asyncio.to_thread(into.write_bytes, b64decode(secret["data"][KEY]))
    return into


async def test_a_cluster_joins_by_what_is_applied_to_it(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    there = await bench.hollow("edge1")
    said = await bench.hubctl("join", "edge1", "--apply", str(there), "--label", "region=eu", "--allow-loopback")
    assert 'deployment "muster-spoke" created' in said
    assert "PRIVATE KEY" not in said
    invitation = await invitation_in(there, DEFAULT_NAMESPACE, bench.folder / "mounted")
    await bench.spoke("edge1", invitation)
    assert (await bench.available("edge1"))["metadata"]["labels"]["region"] == "eu"
    again = await bench.hubctl("join", "edge1", "--apply", str(there), "--allow-loopback")
    assert 'deployment "muster-spoke" unchanged' in again
    assert f'secret "{SECRET}" configured' in again, "a new credential for an agent that is to come again"


async def test_what_is_printed_is_for_kubectl(bench: Bench) -> None:
    await bench.hub("--auto-approve=*")
    there = await bench.hollow("edge2")
    file = bench.folder / "edge2.yaml"
    await bench.hubctl("join", "edge2", "-n", "agents", "--image", "example.com/spoke:1", "-o", str(file), "--allow-loopback")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    objects = list(yaml.safe_load_all(file.read_text()))
    assert {each["metadata"].get("namespace", "agents") for each in objects} == {"agents"}
    kubectl = await asyncio.create_subprocess_exec(
        *("kubectl", "--kubeconfig", str(there), "apply", "-f", str(file)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(kubectl.communicate(), 30)
    assert kubectl.returncode == 0
    assert said.decode().count(" created") == len(objects)
    async with await KubeClient.from_file(there) as client:
        deployment = await client.get("/apis/apps/v1/namespaces/agents/deployments/muster-spoke")
    assert [each["image"] for each in deployment["spec"]["template"]["spec"]["containers"]] == ["example.com/spoke:1"]
    await bench.spoke("edge2", await invitation_in(there, "agents", bench.folder / "mounted"))
    await bench.available("edge2")


async def test_no_credential_is_made_for_a_cluster_that_does_not_answer(bench: Bench) -> None:
    await bench.hub()
    there = await bench.hollow("edge3")
    await bench.programs[-1].kill()
    said = await bench.hubctl("join", "edge3", "--apply", str(there), "--allow-loopback", code=5)
    assert f"the cluster that {there} leads to" in said
    assert (await bench.get("/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"))["items"] == []
