"""Handles a CA bundle that a hub pushes in a session: check, try, store everywhere, then acknowledge.

Rules:

1. A bundle that contains no valid CAs, or does not verify this hub, is refused and reported. Nothing changes then.
2. Order of writes: kubeconfigs of add-ons, the hub's slot, the owner's secret, the directory, the connection in memory. Hello
   reports the CAs in the owner's secret. So after a crash between these writes the hub pushes the bundle again. Until then some
   places have the old bundle and others the new one. Both work, because during a change of CA the hub's chain fits both.
3. If a bundle cannot be tried or stored now, the agent retries until the session ends or the hub pushes another bundle.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from machinery.errors import InvalidError, MusterError
from machinery.runtime.tasks import cancel_and_wait
from spoke.credentials.owner import owner_of
from spoke.credentials.slot import OWNER_SECRET, Slot, hub_slot
from spoke.credentials.trust_bundle import checked, fingerprints, known_by, store_trust_bundle, tried
from spoke.domain.report import WARNING, AgentEvent
from spoke.session.context import ActiveSession, AgentContext

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TrustBundleSync:
    """Handles the bundles that the hub pushes in one session."""

    agent: AgentContext
    active: ActiveSession
    trust_hub_by: Callable[[bytes], None]
    """Called last, with the CAs that verify the hub from now on."""
    update_addons: Callable[[bytes], Awaitable[None]]
    """Called first, with the hub's new kubeconfig."""
    send_event: Callable[[AgentEvent], None]
    """Called with the Event about a refused bundle, for the operators of the hub."""

    async def run(self) -> None:
        """Apply each pushed bundle while the session lasts. Report a refusal to the operators of hub and cluster."""
        async with asyncio.TaskGroup() as group:
            working: asyncio.Task[None] | None = None
            while True:
                bundle = await self.active.session.trust_bundle()
                if working is not None:
                    await cancel_and_wait(working)
                working = group.create_task(self._retry(bundle), name="session/trust bundle")

    async def _retry(self, bundle: bytes) -> None:
        pauses = self.agent.options.pauses.retry.backoff(self.agent.ports.random)
        while True:
            try:
                return await self._adopt(bundle)
            except InvalidError as error:
                message = f"the bundle of CAs that the hub sent is refused, and what was trusted stays: {error.message}"
                log.error("trust.refused", why=error.message)  # noqa: TRY400 - the message suffices
                self.send_event(AgentEvent("TrustBundleRefused", message, WARNING))
                return self.agent.announcements.record("TrustBundleRefused", message, warning=True)
            except MusterError as error:
                delay = pauses.next()
                log.warning("trust.store_failed", error=error.message, in_seconds=round(delay.total_seconds(), 1))
                await asyncio.sleep(delay.total_seconds())
            except Exception:
                log.exception("trust.failed")  # an unexpected exception is a defect of the agent; it must not end the session
                return None

    async def _adopt(self, bundle: bytes) -> None:
        """Check and store a bundle. Raises InvalidError if it is refused, another MusterError if it cannot be stored now."""
        active, ports, hub = self.active, self.agent.ports, self.active.connection.hub_id
        authorities = checked(bundle, self.agent.hub_clock.now())
        before = fingerprints(active.connection.address.ca)
        await tried(active.connection, bundle, ports.dial)
        await self.update_addons(known_by(active.connection, bundle).kubeconfig)
        await store_trust_bundle(hub_slot(ports.secrets, hub), bundle, hub)
        held = await store_trust_bundle(Slot(ports.secrets, OWNER_SECRET), bundle, hub)
        if ports.directory is not None and owner_of(held) == hub:
            ports.directory.replace(held)
        active.connection = known_by(active.connection, bundle)
        self.trust_hub_by(bundle)
        now = tuple(sorted({each.fingerprint for each in authorities}))
        log.info("trust.installed", before=[each[:16] for each in before], now=[each[:16] for each in now])
        await active.session.trust_installed(now)
