"""Command lines of hubctl and kubectl, one after the other at a fresh hub: the tables in tests/golden/commands."""

import re
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
from machinery.election.lock import Candidate, LockRecord
from machinery.identity import AgentId, CertificateSubject, ClusterName
from tests.checks import present
from tests.fakes.hubctl import Said
from tests.fakes.inprocess_hub import HUB
from tests.integration.https_door.conftest import HubUnderTest, asked_for

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
        said = await self.hub.typed(
            line, path=self.hub.folder / f"{path}.kubeconfig" if path else None, given=step.get("given", "")
        )
        for word, pattern in step.get("keep", {}).items():
            found = re.search(pattern, said.out, re.MULTILINE)
            self.words[word] = found[found.lastindex or 0] if found else ""
        return [f"{line}: {flaw}; it ended with {said}" for flaw in self.flaws(step, said)]

    def flaws(self, step: Mapping[str, Any], said: Said) -> Iterator[str]:
        everything = said.out + said.err
        if said.code != (code := getattr(errors, step.get("ends", "DONE"))):
            yield f"its code is not {code}"
        yield from (f"it does not say {text!r}" for text in map(self.filled, listed(step, "says")) if text not in everything)
        yield from (f"it says {text!r}" for text in map(self.filled, listed(step, "lacks")) if text in everything)
        for pattern in map(self.filled, listed(step, "matches")):
            if not re.search(pattern, said.out, re.MULTILINE):
                yield f"nothing is as {pattern!r}"
        if "prints" in step and said.out != (text := self.filled(step["prints"])):
            yield f"it does not print {text!r}"
        if "rows" in step:
            rows = [" ".join(line.split()) for line in said.lines]
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
        told = rules.StatusReport(capacity=whole, allocatable=free, kubernetes_version=version, node_count=int(nodes))
        await self.hub.store.run(clusters.report_status, ClusterName(cluster), told, "agent")

    async def replica(self, name: str, sessions: str = "0") -> None:
        """A replica with sessions, which has said how much it does."""
        told = Replica(name, "here", "i1", "1", "g", "h", EPOCH, EPOCH, sessions=int(sessions), ready=True)
        load = Load(watches=3, cpu=0.25, memory=128 * 2**20, ahead=timedelta())
        await self.hub.store.run(replicas.begin, told)
        await self.hub.store.run(lambda tx: tx.replicas.put(replace(told, load=load, started=tx.now, seen=tx.now)))

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
