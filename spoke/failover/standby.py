"""Standby registration: one StandbyRegistration for each hub of the list except the one that the agent itself deals with.

When a hub becomes that one, its registration stops at once and leaves the slot to the agent. A write may still be in progress;
each write of a slot checks the version that it read, so that the later of two writes sees the earlier.
A slot is deleted when its hub has been off the list for a while, and only if the whole list is known.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId
from machinery.meta.timestamps import format_time
from spoke.bootstraps import Bootstrap, BootstrapListing
from spoke.credentials.slot import OWNER_SECRET, hub_slot
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.names import AgentIdentity
from spoke.failover.standby_registration import StandbyIdentity, StandbyRecord, StandbyRegistration
from spoke.options import AgentOptions, World

LEFT_AFTER = timedelta(minutes=1)
"""How long a hub must have been off the list before its slot is deleted: a file may be replaced in two steps."""

log = structlog.get_logger(__name__)

Tell = Callable[[str, str], None]
"""Reports a reason and a message to the operators of the management cluster."""


@dataclass(frozen=True, slots=True)
class StandbyContext:
    """The input of standby registration."""

    listing: BootstrapListing
    agent: AgentIdentity
    busy: HubId | None = None
    """The hub that the agent itself deals with: standby registration makes no call there. None: no hub."""
    owner: HubId | None = None
    """The hub that holds the session according to the owner's secret; None: none yet."""
    epoch: int = 0


@dataclass(slots=True)
class _Running:
    keeper: StandbyRegistration
    task: asyncio.Task[None]


class Standby:
    """Runs the registrations, unless the options switch them off."""

    def __init__(self, options: AgentOptions, world: World, tell: Tell = lambda _reason, _message: None) -> None:
        self._options = options
        self._world = world
        self._tell = tell
        self._running: dict[HubId, _Running] = {}
        self._post: StandbyContext | None = None
        self._stirred = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._hubs: Mapping[HubId, ListedHub] = MappingProxyType({})
        self._claims: dict[HubId, int] = {}

    @property
    def hubs(self) -> Mapping[HubId, ListedHub]:
        """The present state of each standby hub."""
        return self._hubs

    @property
    def epoch(self) -> int:
        """The highest epoch that any standby hub has claimed."""
        return max(self._claims.values(), default=0)

    def attend(self, post: StandbyContext) -> None:
        """Set the hubs to register at; returns at once. A hub that is no longer busy is then informed of the owner."""
        if not self._options.standby_registration:
            return
        self._post = post
        if post.busy is not None and post.busy in self._running:
            self._running[post.busy].task.cancel()
        self._stirred.set()

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on every change of `hubs`; return a function that ends this."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def run(self) -> None:
        """Maintain the registrations until cancelled."""
        sweeping: asyncio.Task[None] | None = None
        swept: object = None
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                if self._post is None:
                    continue
                await self._arrange(self._post)
                members = frozenset(hub.hub_id for hub in self._post.listing.hubs), self._post.listing.whole
                if members != swept:
                    swept = members
                    await _ended(sweeping)
                    sweeping = asyncio.create_task(self._sweep(), name="standby slots")
        finally:
            await _ended(sweeping)
            for hub in tuple(self._running):
                await self._let_go(hub)

    async def _arrange(self, post: StandbyContext) -> None:
        """Start and stop registrations as `post` requires."""
        wanted = {hub.hub_id: hub for hub in post.listing.hubs if hub.hub_id != post.busy}
        self._claims = {hub: self._claims[hub] for hub in (*wanted, post.busy) if hub in self._claims}
        errand = StandbyIdentity(post.agent, post.owner, post.epoch)
        for hub, running in tuple(self._running.items()):
            bootstrap = wanted.get(hub)
            if bootstrap is None or running.task.done() or _is_another(running.keeper, bootstrap, errand):
                await self._let_go(hub)
        for hub, bootstrap in wanted.items():
            if hub in self._running:
                self._running[hub].keeper.tell(errand)
            else:
                keeper = StandbyRegistration(bootstrap, errand, self._options, self._world, self._changed)
                self._running[hub] = _Running(keeper, asyncio.create_task(keeper.run(), name=f"standby {bootstrap.name}"))
        self._show()

    async def _let_go(self, hub: HubId) -> None:
        await _ended(self._running.pop(hub).task)

    def _changed(self, before: StandbyRecord, after: StandbyRecord) -> None:
        if after.epoch:
            self._claims[after.hub.hub_id] = after.epoch
        if before.hub.state is not after.hub.state:
            log.info("standby.state", hub=after.hub.name, state=after.hub.state.value)
        for reason, message in _news(before, after):
            self._tell(reason, message)
        self._show()

    def _show(self) -> None:
        hubs = {hub: each.keeper.kept.hub for hub, each in self._running.items()}
        if hubs != self._hubs:
            self._hubs = MappingProxyType(hubs)
            for changed in tuple(self._listeners):
                changed()

    async def _sweep(self) -> None:
        """Delete the slots of hubs that have left the list."""
        await asyncio.sleep(LEFT_AFTER.total_seconds())
        post = self._post
        if post is None or not post.listing.hubs or not post.listing.whole:
            return
        listed = {hub.hub_id for hub in post.listing.hubs}
        length = len(hub_slot(self._world.secrets, post.listing.hubs[0].hub_id).name)
        kept = {hub_slot(self._world.secrets, hub).name for hub in (*listed, post.busy, post.owner) if hub is not None}
        try:
            for name in await self._world.secrets.named(f"{OWNER_SECRET}-"):
                if name not in kept and len(name) == length:
                    await self._world.secrets.delete(name)
                    log.info("slot.deleted", secret=name, because="its hub is not on the list any more")
        except MusterError as error:
            log.warning("slots.not_swept", error=error.message)


def _is_another(keeper: StandbyRegistration, bootstrap: Bootstrap, errand: StandbyIdentity) -> bool:
    """Whether a registration's bootstrap credential or names have changed; a new one then continues from the slot."""
    same = keeper.bootstrap.connection == bootstrap.connection and keeper.bootstrap.name == bootstrap.name
    return not same or keeper.errand.agent != errand.agent


def _news(before: StandbyRecord, after: StandbyRecord) -> list[tuple[str, str]]:
    """The announcements of a change: the reason of an Event and a sentence."""
    name, state, told = after.hub.name, after.hub.state, []
    if state is not before.hub.state:
        if state is HubState.READY:
            told.append(("HubReady", f"the agent is registered at the hub {name} and accepted there"))
        elif state is HubState.NOT_ACCEPTED:
            told.append(("HubNotAccepted", f"the hub {name} has not accepted this cluster: hubctl accept it there"))
        elif state is HubState.DENIED:
            told.append(("HubDenied", f"the hub {name} has denied this cluster: {after.trouble}"))
        elif state is HubState.REVOKED:
            told.append(("HubRevoked", f"the hub {name} has revoked this cluster's credential: {after.trouble}"))
        elif state is HubState.LOST:
            told.append(("HubLost", f"there is no credential for the hub {name}, and no way to one: {after.trouble}"))
    ends_at = after.hub.credential_ends_at
    if after.ends_soon and not before.ends_soon and ends_at is not None:
        told.append(("HubCredentialEndsSoon", f"the credential for the hub {name} ends at {format_time(ends_at)}, not renewed"))
    return told


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Cancel the task and wait for it."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
