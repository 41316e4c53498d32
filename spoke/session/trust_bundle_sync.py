"""What a hub pushes in a session about its CAs: checked, tried, written down everywhere, and only then answered.

Rules:

1. A bundle that is no bundle of CAs, or by which the hub itself could not be reached, is refused and told; nothing changes.
2. The order of writing: the kubeconfigs of add-ons, the hub's slot, the owner's secret, the directory, the memory of who dials.
   A Hello says what the owner's secret trusts, so that whatever a crash leaves undone is pushed again. In between some places
   know the hub by the bundle before and some by the new one, and both do: a hub shows a chain for either while it changes over.
3. What cannot be written now, or tried, is tried again until the session ends or the hub pushes another.
"""

import asyncio
from datetime import timedelta
from typing import Protocol

import structlog

from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from spoke.credentials.reconciliation import owner_of
from spoke.credentials.slot import OWNER_SECRET, Slot, hub_slot
from spoke.credentials.trust_bundle import checked, fingerprints, known_by, retrust, tried
from spoke.domain.event import WARNING, AgentEvent
from spoke.session.active_session import ActiveSession, KeepAddOns, TellNews
from spoke.session.context import SessionContext

log = structlog.get_logger(__name__)


class Stay(Protocol):
    """A stay with a hub, as far as it stands on a connection."""

    @property
    def hub(self) -> HubId: ...

    def know_by(self, authorities: bytes) -> None:
        """Whatever is dialled from now on is known by these CAs."""


class TrustBundleSync:
    """Of one stay with a hub."""

    def __init__(self, parts: SessionContext, stay: Stay) -> None:
        self._parts = parts
        self._stay = stay

    async def follow(self, link: ActiveSession, addons: KeepAddOns, tell: TellNews) -> None:
        """Takes what the hub pushes, for as long as the session lasts; what is refused is told to people there and here."""
        async with asyncio.TaskGroup() as group:
            working: asyncio.Task[None] | None = None
            while True:
                bundle = await link.session.trust_bundle()
                if working is not None:
                    working.cancel()
                    await asyncio.wait([working])
                working = group.create_task(self._take(link, bundle, addons, tell), name="session/trust bundle")

    async def _take(self, link: ActiveSession, bundle: bytes, addons: KeepAddOns, tell: TellNews) -> None:
        pauses = Backoff(timedelta(milliseconds=500), timedelta(seconds=30), random=self._parts.world.random)
        while True:
            try:
                await self._adopt(link, bundle, addons)
            except InvalidError as error:
                self._refused(error, tell)
                return
            except MusterError as error:
                delay = pauses.next()
                log.warning("trust.not_kept", error=error.message, in_seconds=round(delay.total_seconds(), 1))
                await asyncio.sleep(delay.total_seconds())
            except Exception:
                log.exception("trust.failed")  # a defect of ours must not cost the agent its session
                return
            else:
                return

    async def _adopt(self, link: ActiveSession, bundle: bytes, addons: KeepAddOns) -> None:
        """Raises InvalidError: it is refused; another MusterError: it could not be kept now."""
        authorities = checked(bundle, self._parts.hub_clock.now())
        before = fingerprints(link.connection.address.ca)
        await tried(link.connection, bundle, self._parts.world.dial)
        await addons(known_by(link.connection, bundle).kubeconfig)
        await self._write(bundle)
        link.connection = known_by(link.connection, bundle)
        self._stay.know_by(bundle)
        now = tuple(sorted({each.fingerprint for each in authorities}))
        log.info("trust.installed", before=[each[:16] for each in before], now=[each[:16] for each in now])
        await link.session.trust_installed(now)

    async def _write(self, bundle: bytes) -> None:
        """Into the hub's slot, the owner's secret, and from there into the directory."""
        world, hub = self._parts.world, self._stay.hub
        await retrust(hub_slot(world.secrets, hub), bundle, hub)
        held = await retrust(Slot(world.secrets, OWNER_SECRET), bundle, hub)
        if world.directory is not None and owner_of(held) == hub:
            world.directory.replace(held)

    def _refused(self, error: InvalidError, tell: TellNews) -> None:
        message = f"the bundle of CAs that the hub sent is refused, and what was trusted stays: {error.message}"
        log.error("trust.refused", why=error.message)
        tell(AgentEvent("TrustBundleRefused", message, WARNING))
        self._parts.announcements.tell("TrustBundleRefused", message, warning=True)
