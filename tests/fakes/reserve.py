"""The hubs that an agent keeps in reserve, among memory hubs and memory secrets, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.identity import HubId
from machinery.runtime.clock import Clock
from spoke.bootstraps import Bootstrap, BootstrapListing
from spoke.credentials.kubeconfigs import connection_of
from spoke.credentials.slot import hub_slot
from spoke.domain.hubs import HubState
from spoke.domain.names import AgentIdentity, AgentNames, choose_names
from spoke.failover.standby import Standby, StandbyContext
from spoke.options import AgentOptions
from spoke.ports.cluster import Secrets
from spoke.ports.hub import HubAddress
from tests.fakes.credentials import MemoryCluster, MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import world_of
from tests.fakes.virtual_time import LoopClock, ManualScheduler

NAMES: AgentNames = choose_names(options=("berlin", "agent"), stored=("", ""), fresh=("", ""))
UID = "6b7f2d5e-0000-4000-8000-000000000001"
A, B, C = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "abc")


@dataclass
class ReserveStage:
    """Three hubs, in the order a, b, c; the agent itself deals with a. To be made inside of virtual time."""

    clock: Clock
    secrets: Secrets = field(default_factory=MemorySecrets)
    told: list[tuple[str, str]] = field(default_factory=list)
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
        """The reserve of a new process."""
        world = world_of(
            self.clock,
            self.secrets,
            dial=lambda address, identity: self._hub_of(address).dial(address, identity),
            spoke=MemoryCluster(uid=UID),
            scheduler=ManualScheduler(),
        )
        return Standby(AgentOptions(), world, lambda reason, message: self.told.append((reason, message)))

    def bootstrap(self, hub: HubId, *, life: timedelta | None = None) -> Bootstrap:
        text = self.hubs[hub].bootstrap_kubeconfig(lifetime=life or self.bootstrap_life)
        return Bootstrap(f"hub-{hub[0]}", "a file", connection_of(parse_kubeconfig(text, source="a file")))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Standby]:
        """One process of the agent, for the length of the block."""
        self.standby = self.make()
        self.told.clear()
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
        return running.keeper.kept.trouble if running is not None else ""

    def told_of(self, hub: HubId, reason: str) -> int:
        """How often this process has announced that about the hub."""
        return sum(told == reason and f"hub-{hub[0]}" in message for told, message in self.told)

    async def contents(self, hub: HubId) -> dict[str, bytes]:
        return dict((await self.secrets.read(hub_slot(self.secrets, hub).name)).contents)

    def _hub_of(self, address: HubAddress) -> MemoryHub:
        return next(hub for hub in self.hubs.values() if hub.authority.certificate.strip() in address.ca)


async def come(holds: Callable[[], object], within: timedelta = timedelta(hours=1)) -> None:
    """Waits, in virtual time. Raises TimeoutError."""
    async with asyncio.timeout(within.total_seconds()):
        while not holds():  # noqa: ASYNC110 - any condition, told by nobody
            await asyncio.sleep(max(within.total_seconds() / 3_000, 0.05))


def ready(stage: ReserveStage, *hubs: HubId) -> Callable[[], bool]:
    return lambda: all(stage.state(hub) is HubState.READY for hub in hubs or (B, C))


def sessions(hubs: Sequence[MemoryHub]) -> int:
    return sum(len(hub.sessions) for hub in hubs)
