"""An agent with several hubs in memory, on an event loop whose time jumps: hours of failures pass in no time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from machinery.clock import Clock
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, HubId
from machinery.scheduler import Enqueue, Timetable
from spoke.agent import SpokeAgent
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.domain.report import NodeResources
from spoke.options import Options, World
from spoke.ports import Announcer, ClientIdentity, HubAddress, HubClient, HubLostError, Secrets
from tests.fakes.cluster import MemoryCluster
from tests.fakes.credentials import MemoryDirectory, MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.running import running
from tests.fakes.virtual_time import LoopClock, in_virtual_time

OWNER = "hub-kubeconfig-secret"
NAMES = "abcde"
CLUSTER, AGENT = ClusterName("edge"), AgentId("agent")


class LoopTimetable(Timetable):
    """Wake-ups by the event loop, which may be a virtual one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        del jitter

        def wake() -> None:
            self._later(period, wake, name)
            enqueue()

        self._later(timedelta() if at_once else period, wake, name)

    def at(self, instant: Any, enqueue: Enqueue, *, name: str) -> None:
        self._later(instant - self._clock.now(), enqueue, name)

    def drop(self, name: str) -> None:
        if (handle := self._handles.pop(name, None)) is not None:
            handle.cancel()

    def _later(self, delay: timedelta, call: Callable[[], object], name: str) -> None:
        self.drop(name)
        self._handles[name] = asyncio.get_running_loop().call_later(max(0.0, delay.total_seconds()), call)


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

    def __post_init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.told = Told()
        self.directory = MemoryDirectory()
        self.hubs: dict[str, MemoryHub] = {}
        for number, name in enumerate(NAMES[: self.count]):
            hub_id = HubId(f"{number:08x}-0000-4000-8000-00000000000{number}")
            hub = self.hubs[name] = MemoryHub(self.clock, hub_id=hub_id)
            hub.beat_interval = timedelta(seconds=10)
            self.file(name).write_bytes(hub.bootstrap_kubeconfig(name=name))

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def __getitem__(self, name: str) -> MemoryHub:
        return self.hubs[name]

    def agent(self) -> SpokeAgent:
        world = World(
            bootstrap=Bootstraps([BootstrapFile(self.file(name)) for name in self.hubs]),
            dial=self.dial,
            spoke=MemoryCluster(nodes=[NodeResources("n", {"cpu": "4"}, {"cpu": "3"}, schedulable=True)]),
            management=MemoryCluster(),
            secrets=self.secrets,
            addon_secrets=lambda _: MemorySecrets(),
            directory=self.directory,
            clock=self.clock,
            timetable=LoopTimetable(self.clock),
            random=self.random,
            announcer=self.told,
        )
        return SpokeAgent(self.options, world)

    def dial(self, address: HubAddress, identity: ClientIdentity) -> HubClient:
        hub = next(each for each in self.hubs.values() if each.authority.certificate == address.ca)
        return hub.dial(address, identity)

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
        async with asyncio.timeout(within):
            while not holds():  # noqa: ASYNC110 - any condition, told by nobody
                await asyncio.sleep(0.01)

    async def ready(self) -> None:
        """The agent is at the first hub, and registered and accepted at every other."""
        await self.arrived("a")
        await self.until(
            lambda: all(CLUSTER in hub.clusters and "stand_by" in hub.calls for hub in list(self.hubs.values())[1:])
        )
        await asyncio.sleep(1)

    def kill(self, name: str) -> None:
        """Nobody listens any more, and every session is torn."""
        hub = self.hubs[name]
        hub.away = True
        for session in hub.open_sessions:
            session.end(HubLostError("connection reset"))

    def revive(self, name: str) -> None:
        self.hubs[name].away = False

    async def owner(self) -> tuple[str, int]:
        """Who the owner's secret says that it is, and the epoch."""
        contents = (await self.secrets.read(OWNER)).contents
        name = next((name for name, hub in self.hubs.items() if hub.hub_id.encode() == contents.get("hub-id")), "")
        return name, int(contents.get("epoch", b"0"))


def played(folder: Path, play: Callable[[Several], Coroutine[Any, Any, None]], count: int = 2, **further: Any) -> None:
    """Plays on a virtual loop."""

    async def on_the_loop() -> None:
        await play(Several(folder, count, **further))

    in_virtual_time(on_the_loop())


def with_hubs(options: Options, **changes: Any) -> Options:
    return replace(options, hubs=replace(options.hubs, **changes))


Play = Callable[[Several], Awaitable[None]]
__all__ = ["AGENT", "CLUSTER", "LoopTimetable", "Play", "Several", "UnavailableError", "played", "with_hubs"]
