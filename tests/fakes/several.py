"""An agent with several hubs in memory, in virtual time: hours of failures pass in no time; and its standby hubs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.identity import AgentId, ClusterName, HubId
from machinery.runtime.clock import Clock
from spoke.agent.loop import SpokeAgent
from spoke.bootstraps.listing import Bootstrap, BootstrapFile, BootstrapListing, Bootstraps
from spoke.credentials.kubeconfigs import connection_of
from spoke.credentials.slot import hub_slot
from spoke.domain.hubs import HubState
from spoke.domain.names import AgentIdentity, AgentNames, choose_names
from spoke.domain.report import NodeResources
from spoke.failover.standby import Standby, StandbyContext
from spoke.options import AgentOptions
from spoke.ports.cluster import Announcer, Secrets
from spoke.ports.hub import ClientIdentity, HubAddress, HubClient, HubLostError, HubSession, SessionHello
from tests.fakes.credentials import MemoryCluster, MemoryDirectory, MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient
from tests.fakes.stage import running, world_of
from tests.fakes.virtual_time import LoopClock, ManualScheduler

OWNER = "hub-kubeconfig-secret"
LETTERS = "abcde"
CLUSTER, AGENT = ClusterName("edge"), AgentId("agent")


class RecordedEvents(Announcer):
    """The Events of the management cluster."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def announce(self, reason: str, message: str, *, warning: bool) -> None:
        del warning
        self.events.append((reason, message))

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.events]


@dataclass
class Several:
    """Hubs called a, b, ...; the agent's list has them in this order."""

    folder: Path
    count: int = 2
    options: AgentOptions = field(default_factory=lambda: AgentOptions(cluster_name=CLUSTER, agent_id=AGENT))
    secrets: Secrets = field(default_factory=MemorySecrets)
    random: Random = field(default_factory=lambda: Random(1))
    clock: Clock = field(default_factory=lambda: LoopClock(asyncio.get_running_loop()))
    beat_interval: timedelta = timedelta(seconds=10)
    cluster: MemoryCluster = field(
        default_factory=lambda: MemoryCluster(nodes=[NodeResources("n", {"cpu": "4"}, {"cpu": "3"}, schedulable=True)])
    )

    def __post_init__(self) -> None:
        self.recorded = RecordedEvents()
        self.directory = MemoryDirectory()
        self.hubs: dict[str, MemoryHub] = {}
        for number, name in enumerate(LETTERS[: self.count]):
            hub = self.hubs[name] = MemoryHub(self.clock, hub_id=HubId(f"{number:08x}-0000-4000-8000-00000000000{number}"))
            hub.beat_interval = self.beat_interval
            self.file(name).write_bytes(hub.bootstrap_kubeconfig(name=name))

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def __getitem__(self, name: str) -> MemoryHub:
        return self.hubs[name]

    def agent(self, random: Random | None = None, gate: "Gate | None" = None) -> SpokeAgent:
        """A copy of the agent; with a gate it may be made to stand still."""
        world = world_of(
            self.clock,
            self.secrets if gate is None else cast("Secrets", Lagging(self.secrets, gate, "read", "write", "delete")),
            bootstrap=Bootstraps([BootstrapFile(self.file(name)) for name in self.hubs]),
            dial=partial(self.dial, gate=gate),
            managed_cluster=self.cluster,
            management=MemoryCluster(),
            addon_secrets=lambda _: MemorySecrets(),
            directory=self.directory,
            random=random or self.random,
            announcer=self.recorded,
        )
        return SpokeAgent(self.options, world)

    def dial(self, address: HubAddress, identity: ClientIdentity, gate: "Gate | None" = None) -> HubClient:
        hub = next(each for each in self.hubs.values() if each.authority.certificate == address.ca)
        return hub.dial(address, identity) if gate is None else LaggingClient(hub, identity, gate)

    def running(self) -> AbstractAsyncContextManager[SpokeAgent]:
        return running(self.agent())

    def at(self) -> str:
        """The hub whose session carries beats; "": none, or more than one."""
        working = [name for name, hub in self.hubs.items() if any(session.beats for session in hub.open_sessions)]
        return working[0] if len(working) == 1 else ""

    async def arrived(self, name: str, within: float = 600) -> float:
        """Waits until the session is there; returns how many seconds that took."""
        before = self.clock.monotonic()
        await self.until(lambda: self.at() == name, within)
        return self.clock.monotonic() - before

    async def until(self, holds: Callable[[], object], within: float = 600) -> None:
        began = self.clock.monotonic()
        async with asyncio.timeout(within):
            while not holds():  # noqa: ASYNC110 - any condition, without an Event
                await asyncio.sleep(max(0.01, (self.clock.monotonic() - began) / 100))

    async def ready(self) -> None:
        """The agent is at the first hub, and registered and accepted at every other."""
        await self.arrived("a")
        await self.until(lambda: all(CLUSTER in hub.clusters and "stand_by" in hub.calls for hub in [*self.hubs.values()][1:]))
        await asyncio.sleep(1)

    def stands_by(self, name: str, owner: str) -> bool:
        """Whether the hub knows that the other one is the owner."""
        return self[name].clusters[CLUSTER].owner == self[owner].hub_id

    def kill(self, name: str) -> None:
        """Nobody listens any more, and every session is torn."""
        hub = self[name]
        hub.away = True
        for session in hub.open_sessions:
            session.end(HubLostError("connection reset"))

    def revive(self, name: str) -> None:
        self[name].away = self[name].silent = False

    async def owner(self) -> tuple[str, int]:
        """Who the owner's secret says that it is, and the epoch."""
        contents = (await self.secrets.read(OWNER)).contents
        name = next((name for name, hub in self.hubs.items() if hub.hub_id.encode() == contents.get("hub-id")), "")
        return name, int(contents.get("epoch", b"0"))


def with_hubs(options: AgentOptions, **changes: Any) -> AgentOptions:
    return replace(options, hubs=replace(options.hubs, **changes))


class Gate:
    """Everything passes with a delay of up to `lag` seconds, and nothing while it is shut."""

    def __init__(self, random: Random, lag: float = 0.05) -> None:
        self._random = random
        self._lag = lag
        self._open = asyncio.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await asyncio.sleep(self._random.uniform(0, self._lag))
        await self._open.wait()


class Lagging:
    """Whatever is asked through it passes the gate, on the way there and on the way back."""

    def __init__(self, inner: Any, gate: Gate, *methods: str) -> None:
        self._inner = inner
        self._gate = gate
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found

        async def passed(*args: Any, **named: Any) -> Any:
            await self._gate.passed()
            answer = await found(*args, **named)
            await self._gate.passed()
            return answer

        return passed


class LaggingClient(MemoryHubClient):
    """A hub in memory behind a gate: its sessions, that is, which are all that writes there."""

    def __init__(self, hub: MemoryHub, identity: ClientIdentity, gate: Gate) -> None:
        super().__init__(hub, identity)
        self._gate = gate

    @asynccontextmanager
    async def session(self, greeting: SessionHello) -> AsyncIterator[HubSession]:
        await self._gate.passed()
        async with super().session(greeting) as session:
            await self._gate.passed()
            yield cast("HubSession", Lagging(session, self._gate, "beat", "report", "report_addon", "ended"))


NAMES: AgentNames = choose_names(options=("berlin", "agent"), stored=("", ""), fresh=("", ""))
UID = "6b7f2d5e-0000-4000-8000-000000000001"
A, B, C = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "abc")


@dataclass
class ReserveStage:
    """Three hubs, in the order a, b, c; the agent itself deals with a. To be made inside of virtual time."""

    clock: Clock
    secrets: Secrets = field(default_factory=MemorySecrets)
    recorded: list[tuple[str, str]] = field(default_factory=list)
    bootstrap_life: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        self.hubs = {hub: MemoryHub(self.clock, hub_id=hub) for hub in (A, B, C)}
        for each in self.hubs.values():
            each.again_after = timedelta(hours=6)
        self.listing = BootstrapListing(tuple(self.bootstrap(hub) for hub in self.hubs))
        self.post = StandbyContext(self.listing, AgentIdentity(NAMES, UID), busy=A, owner=A, epoch=7)
        self.standby = self.make()

    @classmethod
    def at_once(cls, secrets: Secrets | None = None) -> "ReserveStage":
        clock = LoopClock(asyncio.get_running_loop())
        return cls(clock, secrets) if secrets is not None else cls(clock)

    def make(self) -> Standby:
        """The standby registrations of a new process."""
        world = world_of(
            self.clock, self.secrets, dial=self.dial, managed_cluster=MemoryCluster(uid=UID), scheduler=ManualScheduler()
        )
        return Standby(AgentOptions(), world, lambda reason, message: self.recorded.append((reason, message)))

    def bootstrap(self, hub: HubId, *, life: timedelta | None = None) -> Bootstrap:
        text = self.hubs[hub].bootstrap_kubeconfig(lifetime=life or self.bootstrap_life)
        return Bootstrap(f"hub-{hub[0]}", "a file", connection_of(parse_kubeconfig(text, source="a file")))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Standby]:
        """One process of the agent, for the length of the block."""
        self.standby = self.make()
        self.recorded.clear()
        task = asyncio.create_task(self.standby.run())
        self.standby.attend(self.post)
        try:
            yield self.standby
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

    def attend(self, post: StandbyContext) -> None:
        self.post = post
        self.standby.attend(post)

    def state(self, hub: HubId) -> HubState | None:
        listed = self.standby.hubs.get(hub)
        return listed.state if listed is not None else None

    def trouble(self, hub: HubId) -> str:
        """The last failure at the hub; empty: none."""
        running = self.standby._running.get(hub)
        return running[0].record.trouble if running is not None else ""

    def count_of(self, hub: HubId, reason: str) -> int:
        """How often this process has announced that about the hub."""
        return sum(recorded_reason == reason and f"hub-{hub[0]}" in message for recorded_reason, message in self.recorded)

    async def contents(self, hub: HubId) -> dict[str, bytes]:
        return dict((await self.secrets.read(hub_slot(self.secrets, hub).name)).contents)

    def dial(self, address: HubAddress, identity: ClientIdentity) -> HubClient:
        hub = next(hub for hub in self.hubs.values() if hub.authority.certificate.strip() in address.ca)
        return hub.dial(address, identity)


async def come(holds: Callable[[], object], within: timedelta = timedelta(hours=1)) -> None:
    """Waits, in virtual time. Raises TimeoutError."""
    async with asyncio.timeout(within.total_seconds()):
        while not holds():  # noqa: ASYNC110 - any condition, without an Event
            await asyncio.sleep(max(within.total_seconds() / 3_000, 0.05))


def ready(stage: ReserveStage, *hubs: HubId) -> Callable[[], bool]:
    return lambda: all(stage.state(hub) is HubState.READY for hub in hubs or (B, C))


def sessions(hubs: Sequence[MemoryHub]) -> int:
    return sum(len(hub.sessions) for hub in hubs)
