"""The charts installed, upgraded, rolled back, tested and uninstalled by the real Helm library, in a hollow cluster."""

import asyncio
import base64
import copy
import os
import re
import shlex
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import helm_python
import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import NotFoundError
from tests.charts.rendering import CHARTS, MATRIX, ROOT, VALUES, of_kind, render

T = TypeVar("T")
NAMESPACE, RELEASE = "fleet", "muster"
PLURALS = {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies", "Gateway": "gateways"}
SECRETS = RestResource("", "v1", "secrets")
WALKS = {
    "hub": ("least", "full", "seen", "aggregated", "gateway of its own", "settings", "ingress"),
    "spoke": ("least", "full", "rights of a hosted one", "several processes", "closed", "seen"),
}
"""Values, one upgrade after the other: together they have every kind of object, and each leaves some of the ones before."""


def path_of(document: dict[str, Any]) -> str:
    group, _, version = document["apiVersion"].rpartition("/")
    plural = PLURALS.get(document["kind"], document["kind"].lower() + "s")
    metadata = document["metadata"]
    return RestResource(group, version, plural).path(metadata["name"], namespace=metadata.get("namespace", ""))


def installed(documents: Iterable[dict[str, Any]]) -> set[str]:
    """Those that a release holds: hooks are nobody's."""
    return {path_of(each) for each in documents if "helm.sh/hook" not in each["metadata"].get("annotations", {})}


@dataclass
class Stage:
    cluster: HollowCluster
    admin: KubeClient

    async def helm(self, act: Callable[[helm_python.Config], T]) -> T:
        """On a thread: the library blocks, and the cluster answers on this loop."""

        def acted() -> T:
            kubeconfig = yaml.safe_dump(self.cluster.kubeconfig())
            with helm_python.Config(kubeconfig_content=kubeconfig, namespace=NAMESPACE, qps=1000, burst_limit=1000) as config:
                return act(config)

        return await asyncio.to_thread(acted)

    async def install(self, chart: str, values: dict[str, Any]) -> Any:
        return await self.helm(
            lambda config: config.install(str(CHARTS / chart), RELEASE, values, namespace=NAMESPACE, create_namespace=True)
        )

    async def upgrade(self, chart: str, values: dict[str, Any]) -> Any:
        return await self.helm(lambda config: config.upgrade(str(CHARTS / chart), RELEASE, values, namespace=NAMESPACE))

    async def there(self, paths: Iterable[str]) -> set[str]:
        """Which of the objects the cluster has."""
        return {path for path in paths if await self._exists(path)}

    async def _exists(self, path: str) -> bool:
        try:
            await self.admin.get(path)
        except NotFoundError:
            return False
        return True


ADDONS = "/api/v1/namespaces/open-cluster-management-agent-addon"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with HollowCluster(ClusterShape("host")) as cluster, await KubeClient.from_document(cluster.kubeconfig()) as admin:
        yield Stage(cluster, admin)


@pytest.mark.parametrize("chart", WALKS)
async def test_a_release_holds_what_its_values_say_through_upgrades_a_rollback_and_its_end(stage: Stage, chart: str) -> None:
    wanted = {name: installed(render(chart, MATRIX[chart][name])) - {ADDONS} for name in WALKS[chart]}
    every = set().union(*wanted.values())
    kinds = [
        {each["kind"] for name in names for each in render(chart, MATRIX[chart][name])} for names in (wanted, MATRIX[chart])
    ]
    assert kinds[0] == kinds[1], "the walk has every kind that the chart can make"
    first, *others = wanted
    await stage.install(chart, MATRIX[chart][first])
    assert await stage.there(every) == wanted[first]
    for name in others:
        await stage.upgrade(chart, MATRIX[chart][name])
        assert await stage.there(every) == wanted[name], name
    await stage.helm(lambda config: config.rollback(RELEASE, version=1))
    assert await stage.there(every) == wanted[first]
    await stage.helm(lambda config: config.uninstall(RELEASE))
    assert await stage.there(every) == set()
    assert chart == "hub" or await stage.there([ADDONS]), "others may use it"


async def test_what_the_hub_wrote_outlives_upgrades_and_rollbacks(stage: Stage) -> None:
    values = MATRIX["hub"]["aggregated"]
    await stage.install("hub", values)
    secret = SECRETS.path("muster-muster-hub-admin", namespace=NAMESPACE)
    held = {"kubeconfig": base64.b64encode(b"the operator's").decode()}
    await stage.admin.update(secret, {**await stage.admin.get(secret), "data": held})
    [registered, *_] = sorted(path_of(each) for each in of_kind(render("hub", values), "APIService"))
    found = await stage.admin.get(registered)
    await stage.admin.update(registered, {**found, "spec": {**found["spec"], "caBundle": "Q0E="}})

    await stage.upgrade("hub", values | {"beatInterval": "5s"})
    assert (await stage.admin.get(secret))["data"] == held
    assert (await stage.admin.get(registered))["spec"]["caBundle"] == "Q0E="
    await stage.helm(lambda config: config.rollback(RELEASE))
    assert (await stage.admin.get(secret))["data"] == held


@pytest.mark.kubectl
async def test_the_command_of_the_notes_fetches_the_kubeconfig_for_its_user_alone(stage: Stage, tmp_path: Path) -> None:
    await stage.install("hub", VALUES["hub"])
    path = SECRETS.path("muster-muster-hub-admin", namespace=NAMESPACE)
    data = {"kubeconfig": base64.b64encode(b"apiVersion: v1\n").decode()}
    await stage.admin.update(path, {**await stage.admin.get(path), "data": data})
    with helm_python.Chart.load(CHARTS / "hub") as loaded:
        rendered = loaded.render(VALUES["hub"], name=RELEASE, namespace=NAMESPACE)
    [notes] = [text for name, text in rendered.items() if name.endswith("NOTES.txt")]
    [command] = [line.strip() for line in notes.splitlines() if "> admin.kubeconfig" in line]
    (tmp_path / "host.kubeconfig").write_text(yaml.safe_dump(stage.cluster.kubeconfig()))
    ran = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-ec", command],
        cwd=tmp_path,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "host.kubeconfig"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "admin.kubeconfig").read_bytes() == b"apiVersion: v1\n"
    assert (tmp_path / "admin.kubeconfig").stat().st_mode & 0o077 == 0


def values_of(line: str, before: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Release, chart and values of `helm install NAME CHART` or `helm upgrade NAME CHART`; `before`: of the release so far."""
    words = deque(shlex.split(line, comments=True)[2:])
    names: list[str] = []
    values: dict[str, Any] = {}
    reuses = False
    while words:
        word = words.popleft()
        if word in ("--namespace", "-n"):
            words.popleft()
        elif word == "--set":
            _merge(values, helm_python.parse_set_string(words.popleft()))
        elif word == "--set-file":
            _merge(values, helm_python.parse_set_string(words.popleft().partition("=")[0] + "=content"))
        elif word in ("--reuse-values", "--reset-then-reuse-values"):
            reuses = True
        elif word != "--create-namespace":
            assert not word.startswith("-"), f"nobody checks {word}"
            names.append(word)
    [name, chart] = names
    whole = copy.deepcopy(before.get(name, {})) if reuses else {}
    _merge(whole, values)
    return name, chart, whole


def _merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _merge(values.setdefault(name, {}), value)
        else:
            values[name] = value


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(CHARTS.rglob("*.md"))]
FIRST = {"advertise": {"grpc": "hub.example.com:8443", "https": "hub.example.com:6443"}}
"""Of the release `hub` on pages that begin with an upgrade."""


def test_values_in_helm_commands_of_documents_are_rendered() -> None:
    flaws, count = [], 0
    for page in DOCUMENTS:
        releases: dict[str, dict[str, Any]] = {"hub": FIRST}
        blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
        for line in blocks.replace("\\\n", " ").splitlines():
            if line.startswith(("helm install ", "helm upgrade ")):
                name, chart, releases[name] = values_of(line, releases)
                count += 1
                try:
                    render(Path(chart).name, releases[name])
                except helm_python.HelmError as error:
                    flaws.append(f"{page.relative_to(ROOT)}: {line}: {error}")
    assert not flaws, "\n".join(flaws)
    assert count
