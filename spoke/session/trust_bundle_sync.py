"""Handles a CA bundle that a hub pushes in a session: check, try, store everywhere, then acknowledge.

Rules:

1. A bundle that holds no valid CAs, or does not verify this hub, is refused and reported; nothing changes.
2. Order of writes: kubeconfigs of add-ons, the hub's slot, the owner's secret, the directory, the connection in memory. A Hello
   reports the CAs in the owner's secret, so the hub pushes again after a crash in between. Meanwhile some places hold the old
   bundle and some the new one; both work, because the hub serves a chain for either during its change of CA.
3. A bundle that cannot be written or tried now is retried until the session ends or the hub pushes another.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from machinery.errors import InvalidError, MusterError
from machinery.runtime.backoff import Backoff
from spoke.credentials.owner import owner_of
from spoke.credentials.slot import OWNER_SECRET, Slot, hub_slot
from spoke.credentials.trust_bundle import checked, fingerprints, known_by, store_trust_bundle, tried
from spoke.domain.report import WARNING, AgentEvent
from spoke.session.context import ActiveSession, AgentContext

KeepAddOns = Callable[[bytes], Awaitable[None]]
"""Writes a new kubeconfig of the hub into the add-ons' secrets."""
TellNews = Callable[[AgentEvent], None]

log = structlog.get_logger(__name__)


class TrustBundleSync:
    """The handling over one link. `trust_hub_by` is called with the CAs with which the hub is verified from now on."""

    def __init__(self, agent: AgentContext, link: ActiveSession, trust_hub_by: Callable[[bytes], None]) -> None:
        self._agent = agent
        self._link = link
        self._know_by = trust_hub_by

    async def run(self, addons: KeepAddOns, tell: TellNews) -> None:
        """Adopt each pushed bundle as long as the session lasts. A refusal is reported to the operators of hub and cluster."""
        async with asyncio.TaskGroup() as group:
            working: asyncio.Task[None] | None = None
            while True:
                bundle = await self._link.session.trust_bundle()
                if working is not None:
                    working.cancel()
                    await asyncio.wait([working])
                working = group.create_task(self._take(bundle, addons, tell), name="session/trust bundle")

    async def _take(self, bundle: bytes, addons: KeepAddOns, tell: TellNews) -> None:
        pauses = Backoff(timedelta(milliseconds=500), timedelta(seconds=30), random=self._agent.world.random)
        while True:
            try:
                await self._adopt(bundle, addons)
            except InvalidError as error:
                self._refused(error, tell)
                return
            except MusterError as error:
                delay = pauses.next()
                log.warning("trust.not_kept", error=error.message, in_seconds=round(delay.total_seconds(), 1))
                await asyncio.sleep(delay.total_seconds())
            except Exception:
                log.exception("trust.failed")  # a defect of ours must not end the session
                return
            else:
                return

    async def _adopt(self, bundle: bytes, addons: KeepAddOns) -> None:
        """Raises InvalidError when the bundle is refused; another MusterError when it cannot be stored now."""
        link = self._link
        authorities = checked(bundle, self._agent.hub_clock.now())
        before = fingerprints(link.connection.address.ca)
        await tried(link.connection, bundle, self._agent.world.dial)
        await addons(known_by(link.connection, bundle).kubeconfig)
        await self._write(bundle)
        link.connection = known_by(link.connection, bundle)
        self._know_by(bundle)
        now = tuple(sorted({each.fingerprint for each in authorities}))
        log.info("trust.installed", before=[each[:16] for each in before], now=[each[:16] for each in now])
        await link.session.trust_installed(now)

    async def _write(self, bundle: bytes) -> None:
        """Write into the hub's slot, the owner's secret, and from there into the directory."""
        world, hub = self._agent.world, self._link.connection.hub_id
        await store_trust_bundle(hub_slot(world.secrets, hub), bundle, hub)
        held = await store_trust_bundle(Slot(world.secrets, OWNER_SECRET), bundle, hub)
        if world.directory is not None and owner_of(held) == hub:
            world.directory.replace(held)

    def _refused(self, error: InvalidError, tell: TellNews) -> None:
        message = f"the bundle of CAs that the hub sent is refused, and what was trusted stays: {error.message}"
        log.error("trust.refused", why=error.message)
        tell(AgentEvent("TrustBundleRefused", message, WARNING))
        self._agent.announcements.tell("TrustBundleRefused", message, warning=True)
