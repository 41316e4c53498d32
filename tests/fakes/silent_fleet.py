"""A fleet of agents that are killed, paused and partitioned at random, on replicas of a hub that fare no better."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from hub.api.liveness import BrakeLimits
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.availability import TaintDelays
from hub.api.managedclusters.cluster import StatusReport
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers.builder import PERIODIC
from hub.controllers.clusters.availability import AvailabilityReconciler
from hub.controllers.clusters.taints import TaintReconciler
from hub.heartbeat import BeatBuffer, BeatSink, HeartbeatCoverage
from hub.ports import Store, Transaction
from hub.registry.managedclusters import service as clusters
from machinery.errors import StaleEpochError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.objects import Document
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import Controller
from tests.checks import present
from tests.fakes.inline_store import InlineStore

SECOND = timedelta(seconds=1)
WINDOW = SECOND


@dataclass
class Agent(BeatSink):
    """One cluster's agent. `quiet_until`: it sends nothing before that step."""

    name: ClusterName
    lease: int
    phase: int
    replica: int
    well: bool = True
    quiet_until: int = 0
    sequence: int = 0
    acknowledged: bool = False  # whether any of its beats was

    @property
    def grace(self) -> timedelta:
        return 5 * self.lease * SECOND

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        assert sequence <= self.sequence
        del ended_silence
        self.acknowledged = True

    def refuse(self, error: StaleEpochError) -> None:
        raise AssertionError(error.message)


class Replica:
    """One process of the hub: what it holds is gone when it is killed."""

    def __init__(self, name: str, store: Store, clock: ManualClock) -> None:
        self.beats = BeatBuffer(store, clock, WINDOW)
        self.hearing = HeartbeatCoverage(store, clock, name, lambda: self.beats.storing)


@dataclass(frozen=True)
class Setting:
    """What the fleet and its hub are like."""

    agents: int = 200
    replicas: int = 1
    delays: TaintDelays = field(default_factory=TaintDelays)
    limits: BrakeLimits = field(default_factory=BrakeLimits)


class Fleet:
    """Agents, replicas, a leader among them, and what a watch shows of the clusters."""

    def __init__(self, store: InlineStore, database: ManualClock, seed: int, setting: Setting) -> None:
        self.random = Random(seed)
        self.store = store
        self.database = database
        self.clock = ManualClock()
        self.setting = setting
        self.step = 0
        self.agents = [self._agent(number) for number in range(setting.agents)]
        self.replicas: list[Replica | None] = [None] * setting.replicas
        self.paused: set[int] = set()
        self.leader = 0
        self._led_by: Replica | None = None
        self.shown: dict[ClusterName, Document] = {}
        self._revision = 0
        self._followed = False

    def _agent(self, number: int) -> Agent:
        lease, replica = self.random.choice((2, 3, 5, 8)), self.random.randrange(self.setting.replicas)
        return Agent(ClusterName(f"c{number:03}"), lease, self.random.randrange(lease), replica)

    @property
    def now(self) -> datetime:
        return self.database.now()

    @property
    def away(self) -> bool:
        """Whether the database is away."""
        return self.store.failure is not None

    @away.setter
    def away(self, away: bool) -> None:
        self.store.failure = UnavailableError("the database is away") if away else None

    def is_up(self, replica: int) -> bool:
        return self.replicas[replica] is not None and replica not in self.paused

    @property
    def is_led(self) -> bool:
        """Whether the leader is up, and still the process that it was."""
        return self.is_up(self.leader) and self.replicas[self.leader] is self._led_by

    @property
    def up(self) -> list[int]:
        return [number for number in range(len(self.replicas)) if self.is_up(number)]

    async def begin(self) -> None:
        """All clusters are there, accepted and Available."""
        for start in range(0, len(self.agents), 100):
            await self.store.run(_enter, self.agents[start : start + 100])
        for number in range(len(self.replicas)):
            self.start(number)
        self.lead(0)
        await self.follow()

    def start(self, number: int) -> None:
        self.replicas[number] = Replica(f"r{number}", self.store, self.clock)
        self.paused.discard(number)

    def kill(self, number: int) -> None:
        self.replicas[number] = None
        self.paused.discard(number)

    def lead(self, number: int) -> None:
        """Another leader begins with nothing but the database."""
        self.leader, self._led_by = number, (replica := present(self.replicas[number]))
        judging = AvailabilityReconciler(self.store, window=WINDOW, since=replica.hearing.since)
        tainting = TaintReconciler(self.store, self.setting.delays, self.setting.limits)
        self._wrongly_tainted = tainting.wanted
        self.judging = Controller("availability", judging, clock=self.clock)
        self.tainting = Controller("taints", tainting, clock=self.clock)
        self._followed = False

    def tick(self) -> None:
        self.step += 1
        self.database.advance(SECOND)
        self.clock.advance(SECOND)

    def send(self) -> list[Agent]:
        """Beats go out; those whose replica is not there are lost, and the agent looks for another. Returns whose were held."""
        held = []
        for agent in self.agents:
            if self.step < agent.quiet_until or (self.step + agent.phase) % agent.lease:
                continue
            replica = self.replicas[agent.replica]
            if replica is None or agent.replica in self.paused:
                agent.replica = self.random.choice(self.up or [agent.replica])
                continue
            agent.sequence += 1
            replica.beats.hold(agent.name, agent.sequence, agent, available=agent.well, ends_silence=self.is_silent(agent))
            held.append(agent)
        return held

    def part(self, agent: Agent) -> None:
        """Its session ends, if its replica is there to see it."""
        replica = self.replicas[agent.replica]
        if replica is not None:
            replica.beats.drop(agent.name, agent)

    def is_silent(self, agent: Agent) -> bool:
        """What the agent's session knows."""
        return not agent.acknowledged or self.status(agent.name) == "Unknown"

    def status(self, name: ClusterName) -> str:
        available = rules.availability(self.shown[name])
        return available.status if available else ""

    def taints(self, name: ClusterName) -> tuple[str, ...]:
        return tuple(taint["key"].rpartition("/")[2] for taint in self.shown[name]["spec"].get("taints", ()))

    async def flush(self) -> None:
        for number in self.up:
            await present(self.replicas[number]).beats.flush()

    async def mark(self) -> None:
        for number in self.up:
            await present(self.replicas[number]).hearing.mark()

    async def judge(self) -> None:
        """The steps that are due by now."""
        if self.is_up(self.leader):
            await self._work(self.judging)
        await self.follow()

    async def taint(self) -> None:
        if self.is_up(self.leader):
            self.tainting.enqueue(PERIODIC)
            await self._work(self.tainting)
        await self.follow()

    async def _work(self, controller: Controller[str]) -> None:
        """A controller tries again soon what cannot be done now."""
        errors = controller.outcomes["error"]
        while controller.queue.pause() == timedelta() and controller.outcomes["error"] == errors:
            await controller.step()
        assert self.away or controller.outcomes["error"] == errors

    async def follow(self) -> None:
        """Every change, as watches and the controllers' feed show it; a new leader is shown all."""
        if self.away:
            return
        if not self._followed:
            self._followed = True
            for name, document in self.shown.items():
                self._feed(name, document)
        while changes := await self.store.read(lambda tx: tx.changes.since(self._revision, kinds=(MANAGED_CLUSTERS,))):
            for change in changes:
                self._revision = change.revision
                name = ClusterName(change.key.name)
                self.shown[name] = change.document
                self._feed(name, self.shown[name])

    def _feed(self, name: ClusterName, document: Document) -> None:
        self.judging.enqueue(name)
        if self._wrongly_tainted(document):
            self.tainting.enqueue(name)

    async def report(self, agent: Agent) -> None:
        """The agent sends its verdict when it has changed."""
        condition = rules.AVAILABLE if agent.well else rules.UNAVAILABLE
        await self.store.run(clusters.report_status, agent.name, StatusReport(conditions=(condition,)), "agent")

    async def forget(self) -> None:
        """What nobody asks for any more; a fleet of long steps is not to slow down."""
        if not self.away:
            await self.store.run(lambda tx: tx.changes.compact(tx.now + timedelta(days=1)))


def _enter(tx: Transaction, agents: Sequence[Agent]) -> None:
    for agent in agents:
        kind: dict[str, Any] = {"apiVersion": rules.API_VERSION, "kind": rules.KIND, "metadata": {"name": agent.name}}
        kind["spec"] = {"hubAcceptsClient": True, "leaseDurationSeconds": agent.lease}
        clusters.put(tx, kind, None, "test")
        clusters.set_condition(tx, agent.name, rules.ACCEPTED, "test")
        clusters.set_condition(tx, agent.name, rules.AVAILABLE, "test")
