"""An agent with several hubs in memory, on an event loop whose time jumps: hours of failures pass in no time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from machinery.clock import Clock
from machinery.conditions import Condition
from machinery.identity import AddOnName, AgentId, ClusterName, HubId
from spoke.agent import SpokeAgent
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.domain.hubs import ListedHub
from spoke.domain.news import News
from spoke.domain.report import ClusterReport, NodeResources
from spoke.options import Options, World
from spoke.ports import (
    Announcer,
    ClientIdentity,
    Desired,
    Drain,
    Greeting,
    HubAddress,
    HubClient,
    HubLostError,
    HubSession,
    Secrets,
    SecretSnapshot,
)
from tests.fakes.cluster import MemoryCluster
from tests.fakes.credentials import MemoryDirectory, MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient
from tests.fakes.stage import running
from tests.fakes.virtual_time import LoopClock, LoopTimetable

OWNER = "hub-kubeconfig-secret"
NAMES = "abcde"
CLUSTER, AGENT = ClusterName("edge"), AgentId("agent")


class Told(Announcer):
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
    options: Options = field(default_factory=lambda: Options(cluster_name=CLUSTER, agent_id=AGENT))
    secrets: Secrets = field(default_factory=MemorySecrets)
    random: Random = field(default_factory=lambda: Random(1))
    clock: Clock = field(default_factory=lambda: LoopClock(asyncio.get_running_loop()))
    beat_interval: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        self.told = Told()
        self.directory = MemoryDirectory()
        self.hubs: dict[str, MemoryHub] = {}
        for number, name in enumerate(NAMES[: self.count]):
            hub_id = HubId(f"{number:08x}-0000-4000-8000-00000000000{number}")
            hub = self.hubs[name] = MemoryHub(self.clock, hub_id=hub_id)
            hub.beat_interval = self.beat_interval
            self.file(name).write_bytes(hub.bootstrap_kubeconfig(name=name))

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def __getitem__(self, name: str) -> MemoryHub:
        return self.hubs[name]

    def agent(self, random: Random | None = None, gate: "Gate | None" = None) -> SpokeAgent:
        """A copy of the agent; with a gate it may be made to stand still."""
        world = World(
            bootstrap=Bootstraps([BootstrapFile(self.file(name)) for name in self.hubs]),
            dial=partial(self.dial, gate=gate),
            spoke=MemoryCluster(nodes=[NodeResources("n", {"cpu": "4"}, {"cpu": "3"}, schedulable=True)]),
            management=MemoryCluster(),
            secrets=self.secrets if gate is None else LaggingSecrets(self.secrets, gate),
            addon_secrets=lambda _: MemorySecrets(),
            directory=self.directory,
            clock=self.clock,
            timetable=LoopTimetable(self.clock),
            random=random or self.random,
            announcer=self.told,
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
            while not holds():  # noqa: ASYNC110 - any condition, told by nobody
                await asyncio.sleep(max(0.01, (self.clock.monotonic() - began) / 100))

    async def ready(self) -> None:
        """The agent is at the first hub, and registered and accepted at every other."""
        await self.arrived("a")
        await self.until(
            lambda: all(CLUSTER in hub.clusters and "stand_by" in hub.calls for hub in list(self.hubs.values())[1:])
        )
        await asyncio.sleep(1)

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


def with_hubs(options: Options, **changes: Any) -> Options:
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


class LaggingSecrets(Secrets):
    """Secrets behind a gate, on the way there and on the way back."""

    def __init__(self, inner: Secrets, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self, name: str) -> SecretSnapshot:
        await self._gate.passed()
        found = await self._inner.read(name)
        await self._gate.passed()
        return found

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        await self._gate.passed()
        written = await self._inner.write(name, contents, version)
        await self._gate.passed()
        return written

    async def delete(self, name: str) -> None:
        await self._gate.passed()
        await self._inner.delete(name)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self._inner.changes(name)


class LaggingClient(MemoryHubClient):
    """A hub in memory behind a gate: its sessions, that is, which are all that writes there."""

    def __init__(self, hub: MemoryHub, identity: ClientIdentity, gate: Gate) -> None:
        super().__init__(hub, identity)
        self._gate = gate

    @asynccontextmanager
    async def session(self, greeting: Greeting) -> AsyncIterator[HubSession]:
        await self._gate.passed()
        async with super().session(greeting) as session:
            await self._gate.passed()
            yield Lagging(session, self._gate)


class Lagging(HubSession):
    """A session behind a gate."""

    def __init__(self, session: HubSession, gate: Gate) -> None:
        self._session = session
        self._gate = gate

    @property
    def beat_interval(self) -> timedelta:
        return self._session.beat_interval

    @property
    def hub_time_offset(self) -> timedelta:
        return self._session.hub_time_offset

    async def beat(self, *, available: bool | None) -> None:
        await self._gate.passed()
        await self._session.beat(available=available)

    async def report(self, report: ClusterReport) -> int:
        await self._gate.passed()
        return await self._session.report(report)

    async def report_addon(self, addon: AddOnName, conditions: Sequence[Condition], *, driver: str = "") -> int:
        await self._gate.passed()
        return await self._session.report_addon(addon, conditions, driver=driver)

    async def tell(self, news: News) -> None:
        await self._session.tell(news)

    def desired(self) -> AsyncGenerator[Desired, None]:
        return self._session.desired()

    async def ended(self) -> Exception:
        ended = await self._session.ended()
        await self._gate.passed()
        return ended

    async def drained(self) -> Drain:
        return await self._session.drained()

    async def tell_hubs(self, hubs: Sequence[ListedHub]) -> None:
        await self._session.tell_hubs(hubs)

    async def farewell(self, hub_id: HubId, epoch: int) -> None:
        await self._session.farewell(hub_id, epoch)
