"""Renews the agent's certificate: a new key, a request under the present identity, one update of the secret.

Each certificate has a pseudo-random time of renewal (`spoke.domain.schedule`). The session continues during the renewal. Then
the agent changes to a session with the new certificate. It keeps the old certificate until the hub acknowledges a beat of the
new session.
"""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta

import structlog

from machinery.errors import MusterError
from machinery.meta.conditions import Condition
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler
from spoke.credentials.slot import Contents
from spoke.domain.credential import CertificateView
from spoke.domain.schedule import RenewalTime, RequestedRenewal
from spoke.ports.hub import HubClient
from spoke.registration.csr_flow import CSRFlow, rotated_condition, rotation_failed_condition

KEY = "certificate"
DECISION_TIMEOUT = timedelta(minutes=2)
"""Time for which one call of `reconcile` waits for the decision on its request. The next call resumes the stored request."""
MAX_REQUEUE = timedelta(hours=1)

log = structlog.get_logger(__name__)


@dataclass(eq=False)
class CertificateRotation(Reconciler[str]):
    """Renews one certificate over `client`, by hub time. Calls `renewed` with the credential, and `report` with a condition."""

    client: HubClient
    certificate: CertificateView
    flow: CSRFlow
    _: KW_ONLY
    hub_clock: Clock
    renewed: Callable[[Contents], None]
    report: Callable[[Condition], None]

    def __post_init__(self) -> None:
        leaf = self.certificate
        self._time = RenewalTime(leaf.serial, leaf.not_before, leaf.not_after)

    @property
    def due(self) -> datetime:
        """Time of the renewal, by the hub's clock."""
        return self._time.due

    def ask(self, renewal: RequestedRenewal | None) -> bool:
        """Apply the hub's request for an early renewal (None: no request). Return whether the renewal is now due earlier."""
        before = self.due
        if renewal is None or not self._time.ask(renewal.within, self.hub_clock.now()):
            return False
        log.info("certificate.renewal_asked_for", due=format_time(self.due), was=format_time(before))
        return True

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        remaining = self.due - self.hub_clock.now()
        if not self.flow.is_under_way:
            if remaining > timedelta():
                return min(remaining, MAX_REQUEUE)
            log.info("CertificateRotationStarted", due=format_time(self.due))
        try:
            async with asyncio.timeout(DECISION_TIMEOUT.total_seconds()):
                leaf = await self.flow.run(self.client)
        except TimeoutError:
            return timedelta(seconds=1)
        except MusterError as error:
            self.report(rotation_failed_condition(error.message))
            raise
        self.report(rotated_condition(leaf))
        self.renewed(self.flow.credential)
        return None
