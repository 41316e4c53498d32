"""Command lines of hubctl and kubectl at a fresh hub, by the tables in tests/golden/commands, and hubctl on many objects."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.api.certificates import Purpose
from hub.api.certificatesigningrequests import Requester
from hub.api.hubreplicas import Load, Replica
from hub.api.liveness import Beat, Brake, encode_brake
from hub.api.managedclusters import agent_annotations, cluster as rules
from hub.api.managedclusters.agent_annotations import AgentHubState, ReportedHub
from hub.ports import HUB_ID
from hub.registry import owners
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.liveness import brake
from hub.registry.managedclusters import service as clusters
from hubctl import errors
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND, NOT_WELL
from machinery.election.lock import Candidate, LockRecord
from machinery.identity import AgentId, CertificateSubject, ClusterName
from tests.checks import CASE_FILES, present
from tests.fakes.forwarder import ConnectProxy
from tests.fakes.hubctl import Said, hubctl_at
from tests.fakes.inprocess_hub import HUB
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, admin_of, asked_for
from tests.integration.https_door.test_hubctl_program import by_proxy

TABLES = Path(__file__).parents[2] / "golden" / "commands"
AGENT, SESSION = AgentId("xk7pq"), "session-1"
EPOCH, ENDS = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)


@dataclass
class Typist:
    """Types the lines of a table. `words`: what stands for a {word} in a line."""

    hub: HubUnderTest
    words: dict[str, str] = field(default_factory=dict)
    led: LockRecord | None = None

    async def step(self, step: Mapping[str, Any]) -> list[str]:
        """What is wrong with the end of the line."""
        for name, content in step.get("files", {}).items():
            (self.hub.folder / name).write_text(content)
        for order in step.get("before", ()):
            verb, *arguments = order.split()
            await getattr(self, verb)(*arguments)
        if "run" not in step:
            return []
        line, path = self.filled(step["run"]), step.get("as")
        answer = await self.hub.typed(
            line, path=self.hub.folder / f"{path}.kubeconfig" if path else None, given=step.get("given", "")
        )
        for word, pattern in step.get("keep", {}).items():
            found = re.search(pattern, answer.out, re.MULTILINE)
            self.words[word] = found[found.lastindex or 0] if found else ""
        return [f"{line}: {flaw}; it ended with {answer}" for flaw in self.flaws(step, answer)]

    def flaws(self, step: Mapping[str, Any], answer: Said) -> Iterator[str]:
        everything = answer.out + answer.err
        if answer.code != (code := getattr(errors, step.get("ends", "DONE"))):
            yield f"its code is not {code}"
        yield from (f"it does not say {text!r}" for text in map(self.filled, listed(step, "says")) if text not in everything)
        yield from (f"it says {text!r}" for text in map(self.filled, listed(step, "lacks")) if text in everything)
        for pattern in map(self.filled, listed(step, "matches")):
            if not re.search(pattern, answer.out, re.MULTILINE):
                yield f"nothing is as {pattern!r}"
        if "prints" in step and answer.out != (text := self.filled(step["prints"])):
            yield f"it does not print {text!r}"
        if "rows" in step:
            rows = [" ".join(line.split()) for line in answer.lines]
            wanted = [self.filled(row) for row in step["rows"]]
            if len(rows) != len(wanted) or not all(map(str.startswith, rows, wanted)):
                yield f"its rows do not begin with {wanted}"

    def filled(self, text: str) -> str:
        for word, value in {"folder": str(self.hub.folder), **self.words}.items():
            text = text.replace(f"{{{word}}}", value)
        return text

    async def join(self, name: str, *labels: str) -> None:
        await self.hub.join(name, **dict(label.split("=") for label in labels))

    async def request(self, cluster: str, name: str, *patterns: str) -> None:
        await self.hub.request(cluster, name, *patterns)

    async def request_as(self, user: str, cluster: str) -> None:
        """A request that a user posts, without a bootstrap credential."""
        submission = asked_for(cluster, "bcdfg", cluster)
        submission["metadata"] |= {"name": f"{cluster}-posted"}
        await self.hub.store.run(requests.put, submission, None, Requester(user))

    async def agent(self, cluster: str) -> None:
        await self.hub.agent(cluster)

    async def operator(self, user: str, *groups: str) -> None:
        """An operator who is not in system:masters: his rights come from roles."""
        path = await self.hub.certificate(Purpose.OPERATOR, CertificateSubject(user, frozenset(groups)))
        path.rename(self.hub.folder / f"{user}.kubeconfig")

    async def beat(self, cluster: str, *agent_version: str) -> None:
        """A beat just now, and an open session of an agent of that version, if one is named."""
        name = ClusterName(cluster)
        await self.hub.store.run(lambda tx: tx.heartbeats.store([Beat(name, timedelta(), available=True)]))
        for version in agent_version:
            await self.hub.store.run(replicas.open_session, Opened(name, AGENT, SESSION, version, "hub-0"))

    async def leave(self, cluster: str) -> None:
        await self.hub.store.run(replicas.close_session, ClusterName(cluster), AGENT, SESSION)

    async def report(self, cluster: str, version: str, nodes: str, capacity: str, allocatable: str = "") -> None:
        """What an agent reports; quantities as in cpu=8,memory=16Gi."""
        whole, free = (dict(each.split("=") for each in text.split(",") if each) for text in (capacity, allocatable))
        reported = rules.StatusReport(capacity=whole, allocatable=free, kubernetes_version=version, node_count=int(nodes))
        await self.hub.store.run(clusters.report_status, ClusterName(cluster), reported, "agent")

    async def replica(self, name: str, sessions: str = "0") -> None:
        """A replica with sessions, which has said how much it does."""
        reported = Replica(name, "here", "i1", "1", "g", "h", EPOCH, EPOCH, sessions=int(sessions), ready=True)
        load = Load(watches=3, cpu=0.25, memory=128 * 2**20, ahead=timedelta())
        await self.hub.store.run(replicas.begin, reported)
        await self.hub.store.run(lambda tx: tx.replicas.put(replace(reported, load=load, started=tx.now, seen=tx.now)))

    async def hubs(self, cluster: str, *hubs: str) -> None:
        """The list of the cluster's agent: NAME=STATE. The first is this hub."""
        known = [each.split("=") for each in hubs]
        listed = [ReportedHub(f"{name}-id", name, f"https://{name}:6443", AgentHubState(state), ENDS) for name, state in known]
        listed[0] = replace(listed[0], hub_id=HUB)
        await self.hub.store.run(lambda tx: tx.facts.set(HUB_ID, HUB))
        await self.hub.store.run(owners.report_hubs, ClusterName(cluster), 0, agent_annotations.encoded(listed), "agent")

    async def lead(self, replica: str) -> None:
        """The replica takes the lock from the leader before."""
        candidate = Candidate(replica, replica)
        self.led = await self.hub.store.run(lambda tx: tx.leaders.take(self.led, candidate, timedelta(seconds=15)))

    async def resign(self) -> None:
        await self.hub.store.run(lambda tx: tx.leaders.release(present(self.led)))

    async def condition(self, cluster: str, *names: str) -> None:
        for name in names:
            await self.hub.store.run(clusters.set_condition, ClusterName(cluster), getattr(rules, name), "somebody")

    async def brake(self) -> None:
        """The brake holds since now, for 30 of 100 clusters."""
        await self.hub.store.run(lambda tx: tx.facts.set(brake.FACT, encode_brake(Brake(since=tx.now, silent=30, fleet=100))))

    async def flush(self) -> None:
        await self.hub.access.auditor.flush()

    async def remember(self, word: str) -> None:
        """The newest revision."""
        self.words[word] = str(await self.hub.store.read(lambda tx: tx.changes.newest()))


def listed(step: Mapping[str, Any], name: str) -> list[str]:
    value = step.get(name, [])
    return value if isinstance(value, list) else [value]


def tables() -> Iterator[Any]:
    for path in sorted(TABLES.glob("*.yaml")):
        for table in yaml.safe_load(path.read_text()):
            typed = any(step.get("run", "").startswith("kubectl") for step in table["steps"])
            name = f"{path.stem} {table['test']}".replace(" ", "_")
            yield pytest.param(table["steps"], id=name, marks=[pytest.mark.kubectl] if typed else [])


@pytest.mark.parametrize("steps", list(tables()))
async def test_command_lines_end_and_say_what_the_table_has(hub: HubUnderTest, steps: list[dict[str, Any]]) -> None:
    typist = Typist(hub)
    flaws = [flaw for step in steps for flaw in await typist.step(step)]
    assert not flaws, "\n".join(flaws)


BULK = yaml.safe_load((CASE_FILES / "bulk.yaml").read_text())

ALL = ("edge1", "edge2", "edge3")
NAMED = "managedcluster.cluster.open-cluster-management.io"
ONE = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
MANIFESTS = {"apiVersion": "v1", "kind": "List", "items": [{**ONE, "metadata": {"name": name}} for name in ALL[:2]]}
WAYS = (
    *(("{names}", "", ALL[:2]), ("-l region=eu", "", ALL[:2]), ("--where 'labels.region == \"eu\"'", "", ALL[:2])),
    *(("--all", "", ALL), ("-f -", f"cluster/edge1\n\n{NAMED}/edge3\n", (ALL[0], ALL[2]))),
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
    for template, text in BULK["actions"]:
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
