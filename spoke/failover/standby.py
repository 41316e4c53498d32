"""Standby registration: one StandbyRegistration for each hub of the list except the busy hub, which the agent itself uses.

When a hub becomes busy, its registration stops immediately. A write of the slot may still be in progress then. This is safe,
because each write checks the version that it read, so that the later of two writes fails. If a hub leaves the list, its slot is
deleted after SWEEP_DELAY, provided that all sources of the list are readable.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import structlog

from machinery.errors import MusterError
from machinery.identity import HubId
from machinery.meta.timestamps import format_time
from machinery.runtime.tasks import cancel_and_wait
from spoke.bootstraps.listing import BootstrapListing
from spoke.credentials.slot import OWNER_SECRET, hub_slot
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.names import AgentIdentity
from spoke.failover.standby_registration import StandbyIdentity, StandbyRecord, StandbyRegistration
from spoke.options import AgentOptions, AgentPorts

SWEEP_DELAY = timedelta(minutes=1)
"""Delay before the slot of a hub that has left the list is deleted, because a file may be replaced in two steps."""

log = structlog.get_logger(__name__)

RecordEvent = Callable[[str, str], None]
"""Reports a reason and a message to the operators of the management cluster."""


@dataclass(frozen=True, slots=True)
class StandbyContext:
    """The input of standby registration: the hubs, the owner and the agent's names."""

    listing: BootstrapListing
    agent: AgentIdentity
    busy: HubId | None = None
    """The hub that the agent itself works with, so standby registration does not call it; None: no hub."""
    owner: HubId | None = None
    epoch: int = 0


class Standby:
    """Runs the agent's standby registrations, unless the options switch them off."""

    def __init__(
        self, options: AgentOptions, ports: AgentPorts, record_event: RecordEvent = lambda _reason, _message: None
    ) -> None:
        self._options = options
        self._ports = ports
        self._record_event = record_event
        self._running: dict[HubId, tuple[StandbyRegistration, asyncio.Task[None]]] = {}
        self._post: StandbyContext | None = None
        self._stirred = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self.hubs: Mapping[HubId, ListedHub] = MappingProxyType({})
        self._claims: dict[HubId, int] = {}

    @property
    def epoch(self) -> int:
        return max(self._claims.values(), default=0)

    def answered_at(self, hub: HubId) -> float | None:
        """Return the monotonic time at which the hub last answered that it would accept a session; None: never."""
        return self._running[hub][0].answered_at if hub in self._running else None

    def attend(self, post: StandbyContext) -> None:
        """Set the hubs to register at, without waiting. If a hub is no longer busy, StandBy later reports the owner to it."""
        if not self._options.standby_registration:
            return
        self._post = post
        if post.busy is not None and post.busy in self._running:
            self._running[post.busy][1].cancel()
        self._stirred.set()

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` on every change of `hubs`. Return a function that removes the callback."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def run(self) -> None:
        sweeping: tuple[asyncio.Task[None], ...] = ()
        swept: object = None
        try:
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                if self._post is None:
                    continue
                await self._reconcile(self._post)
                members = frozenset(hub.hub_id for hub in self._post.listing.hubs), self._post.listing.whole
                if members != swept:
                    swept = members
                    await cancel_and_wait(*sweeping)
                    sweeping = (asyncio.create_task(self._sweep(), name="standby slots"),)
        finally:
            await cancel_and_wait(*sweeping, *(task for _, task in self._running.values()))
            self._running.clear()

    async def _reconcile(self, post: StandbyContext) -> None:
        """Start and stop registrations as `post` requires.

        If the bootstrap credential or the agent's names have changed, a new registration continues with the content of the
        slot.
        """
        wanted = {hub.hub_id: hub for hub in post.listing.hubs if hub.hub_id != post.busy}
        self._claims = {hub: self._claims[hub] for hub in (*wanted, post.busy) if hub in self._claims}
        identity = StandbyIdentity(post.agent, post.owner, post.epoch)
        for hub, (registration, task) in tuple(self._running.items()):
            now, before = wanted.get(hub), registration.bootstrap
            same = now is not None and (now.name, now.connection) == (before.name, before.connection)
            if task.done() or not same or registration.identity.agent != identity.agent:
                del self._running[hub]
                await cancel_and_wait(task)
        for hub, bootstrap in wanted.items():
            if hub in self._running:
                self._running[hub][0].update(identity)
            else:
                registration = StandbyRegistration(bootstrap, identity, self._options, self._ports, self._changed)
                task = asyncio.create_task(registration.run(), name=f"standby {bootstrap.name}")
                self._running[hub] = registration, task
        self._show()

    def _changed(self, before: StandbyRecord, after: StandbyRecord) -> None:
        if after.epoch:
            self._claims[after.hub.hub_id] = after.epoch
        if before.hub.state is not after.hub.state:
            log.info("standby.state", hub=after.hub.name, state=after.hub.state.value)
        for reason, message in _events(before, after):
            self._record_event(reason, message)
        self._show()

    def _show(self) -> None:
        hubs = {hub: registration.record.hub for hub, (registration, _) in self._running.items()}
        if hubs != self.hubs:
            self.hubs = MappingProxyType(hubs)
            for changed in tuple(self._listeners):
                changed()

    async def _sweep(self) -> None:
        await asyncio.sleep(SWEEP_DELAY.total_seconds())
        post = self._post
        if post is None or not post.listing.hubs or not post.listing.whole:
            return
        listed = {hub.hub_id for hub in post.listing.hubs}
        length = len(hub_slot(self._ports.secrets, post.listing.hubs[0].hub_id).name)
        kept = {hub_slot(self._ports.secrets, hub).name for hub in (*listed, post.busy, post.owner) if hub is not None}
        try:
            for name in await self._ports.secrets.named(f"{OWNER_SECRET}-"):
                if name not in kept and len(name) == length:
                    await self._ports.secrets.delete(name)
                    log.info("slot.deleted", secret=name, because="its hub is not on the list any more")
        except MusterError as error:
            log.warning("slots.removal_failed", error=error.message)


_EVENTS = {
    HubState.READY: ("HubReady", "the agent is registered at the hub {name} and accepted there"),
    HubState.NOT_ACCEPTED: ("HubNotAccepted", "the hub {name} has not accepted this cluster: hubctl accept it there"),
    HubState.DENIED: ("HubDenied", "the hub {name} has denied this cluster: {trouble}"),
    HubState.REVOKED: ("HubRevoked", "the hub {name} has revoked this cluster's credential: {trouble}"),
    HubState.LOST: ("HubLost", "there is no credential for the hub {name}, and no way to one: {trouble}"),
}


def _events(before: StandbyRecord, after: StandbyRecord) -> Iterator[tuple[str, str]]:
    name, state, ends_at = after.hub.name, after.hub.state, after.hub.credential_ends_at
    if state is not before.hub.state and state in _EVENTS:
        reason, message = _EVENTS[state]
        yield reason, message.format(name=name, trouble=after.trouble)
    if after.ends_soon and not before.ends_soon and ends_at is not None:
        yield "HubCredentialEndsSoon", f"the credential for the hub {name} ends at {format_time(ends_at)}, not renewed"
