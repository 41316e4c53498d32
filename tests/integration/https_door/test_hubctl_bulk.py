"""hubctl on many objects: each command that acts selects them in the same ways, asks, tries, and names what failed."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hub.api.managedclusters import agent_annotations
from hub.api.managedclusters.agent_annotations import AgentHubState, ReportedHub
from hub.ports import HUB_ID
from hub.registry import owners
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, NOT_WELL
from machinery.identity import ClusterName
from tests.checks import CASE_FILES
from tests.fakes.forwarder import ConnectProxy
from tests.fakes.hubctl import hubctl_at
from tests.fakes.inprocess_hub import HUB
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, admin_of
from tests.integration.https_door.test_hubctl_program import by_proxy

TABLES = yaml.safe_load((CASE_FILES / "bulk.yaml").read_text())

ALL = ("edge1", "edge2", "edge3")
NAMED = "managedcluster.cluster.open-cluster-management.io"
ONE = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
MANIFESTS = {"apiVersion": "v1", "kind": "List", "items": [{**ONE, "metadata": {"name": name}} for name in ALL[:2]]}
WAYS = (
    ("{names}", "", ALL[:2]),
    ("-l region=eu", "", ALL[:2]),
    ("--where 'labels.region == \"eu\"'", "", ALL[:2]),
    ("--all", "", ALL),
    ("-f -", f"cluster/edge1\n\n{NAMED}/edge3\n", (ALL[0], ALL[2])),
    ("-f -", yaml.safe_dump(MANIFESTS), ALL[:2]),
)
DESTRUCTIVE = ("delete", "revoke", "deny", "move")
READS = (
    ("wait {kind} {which} --for=create --timeout 0", DONE, 'cluster "{}" exists'),
    ("diagnose cluster {which}", NOT_WELL, "cluster {}: Available is"),
)


def line(template: str, which: str, names: str = "edge1 edge2") -> str:
    """The command line for one way of selecting."""
    names = f"--clusters {names.replace(' ', ',')}" if template.startswith("addon") else names
    return template.format(kind="" if which.startswith("-f") else "clusters", which=which.format(names=names))


def reported_in(out: str, text: str, names: tuple[str, ...]) -> bool:
    """Whether the output reports exactly these clusters."""
    if "{count}" in text:
        return text.format(count=len(names)) in out
    return tuple(name for name in ALL if text.format(name) in out) == names


async def state(hub: HubUnderTest) -> list[Any]:
    admin, group = await admin_of(hub), "/apis/hub.open-cluster-management.io/v1alpha1"
    paths = (CLUSTERS, "/apis/addon.open-cluster-management.io/v1beta1/managedclusteraddons", f"{group}/revocations")
    return [(await admin.get(path))[1]["items"] for path in paths]


@dataclass
class Checks:
    """Runs commands at a hub, and collects those that ended otherwise than they should."""

    hub: HubUnderTest
    wrong: list[object] = field(default_factory=list)

    async def ends(
        self, typed: str, code: int, *words: str, given: str = "", text: str = "", names: tuple[str, ...] = ()
    ) -> None:
        """The command says the words, and `text` of exactly these clusters."""
        ended = await self.hub.hubctl(typed, given=given)
        holds = all(word in ended.out + ended.err for word in words) and (not text or reported_in(ended.out, text, names))
        if ended.code != code or not holds:
            self.wrong.append((typed, given, ended))

    async def tried(self, template: str, text: str, which: str, given: str, names: tuple[str, ...]) -> None:
        """A dry run reports what it would do, and a destructive command on unnamed clusters asks for --yes."""
        typed = line(template, which)
        await self.ends(f"{typed} --dry-run=server", DONE, given=given, text=text, names=names)
        if template.split(maxsplit=1)[0] in DESTRUCTIVE and which != "{names}":
            order = names[::-1] if given and "delete" in typed else names  # a file is deleted from its end
            await self.ends(typed, MISUSED, f"{len(names)} clusters: {', '.join(order)}. Add --yes", given=given)


async def test_every_acting_command_selects_asks_tries_and_names_failures_alike(hub: HubUnderTest) -> None:
    await hub.store.run(lambda tx: tx.facts.set(HUB_ID, HUB))
    there = ReportedHub("b2f1d5a0-0000-4000-8000-000000000009", "eu-2", "https://eu-2:6443", AgentHubState.READY)
    for name, region in zip(ALL, ("eu", "eu", "us"), strict=True):
        await hub.join(name, region=region)
        await hub.agent(name)
        await hub.store.run(owners.report_hubs, ClusterName(name), 0, agent_annotations.encoded((there,)), "agent")
    checks = Checks(hub)
    for template, text in TABLES["actions"]:
        before = await state(hub)
        for way in WAYS:
            await checks.tried(template, text, *way)
        for twice in ("{names} -l a=b", "--all -f x", "{names} --where accepted", ""):
            await checks.ends(line(template, twice), MISUSED)
        assert await state(hub) == before, f"a dry run or a refused command has changed something: {template}"
        await checks.ends(f"{line(template, '-l region=eu')} --yes", DONE, "2 of 2 done", text=text, names=ALL[:2])
        assert await state(hub) != before, f"nothing was done: {template}"
        await checks.ends(line(template, "{names}", "nope edge3"), NOT_FOUND, '"nope"', "1 of 2 failed, 1 done")
        if template.startswith("addon enable"):
            await hub.output("hubctl addon enable proxy --all")
    for name in ALL[:2]:
        await hub.join(name, region="eu")
    for template, code, text in READS:
        for which, given, names in WAYS:
            if "edge3" not in names:  # it is deleted
                await checks.ends(line(template, which), code, given=given, text=text, names=names)
    assert checks.wrong == []


async def test_a_terminal_is_asked_above_ten_objects_and_few_connections_serve_them(hub: HubUnderTest, tmp_path: Path) -> None:
    names = [f"edge{number:02}" for number in range(40)]
    for name in names:
        await hub.join(name)
    admin, command = await hub.admin(), ("label", "clusters", "--all", "wave=1")
    asked = f"This will label 40 clusters: {', '.join(names[:10])} and 30 more\nContinue?"
    no = await hubctl_at(admin, *command, given="n\n", terminal=True)
    assert (no.code, asked in no.err, "nothing was changed" in no.err) == (FAILED, True, True), no
    assert await hub.output("hubctl get clusters -l wave -o name --ignore-not-found") == ""
    yes = await hubctl_at(admin, *command, given="y\n", terminal=True)
    assert (yes.code, asked in yes.err, "40/40" in yes.err, "40 of 40 done" in yes.err) == (DONE, True, True, True), yes
    assert [row.split('"')[1] for row in yes.lines if row.startswith("cluster ")] == names, "in their order"

    async with ConnectProxy().serving() as proxy:
        path = by_proxy(Path(shutil.copy(admin, tmp_path / "through.kubeconfig")), f"http://127.0.0.1:{proxy.port}")
        again = await hub.hubctl("label clusters --all wave=2 --overwrite", path=path)
    assert (again.code, len(again.lines), "[" in again.err) == (DONE, 40, False), again
    assert len(proxy.tunnels) <= 9, "one connection for the list, and at most one for each worker"
    labels = json.loads(await hub.output("hubctl get clusters -o json"))["items"]
    assert {each["metadata"]["labels"]["wave"] for each in labels} == {"2"}
