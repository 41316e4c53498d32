"""Renews the agent's certificate: a new key, a request under the present identity, one update of the secret.

The time is drawn once per certificate (`spoke.domain.schedule`). The session continues meanwhile. The agent then changes to the
new certificate, and keeps the old certificate until a beat over the new certificate is acknowledged.
"""

import asyncio
from collections.abc import Callable
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
"""How long one step waits for the decision. The request stays; the next step resumes it."""
MAX_REQUEUE = timedelta(hours=1)

log = structlog.get_logger(__name__)


class CertificateRotation(Reconciler[str]):
    """Renews one certificate over one connection. `hub_clock` shows the hub's time."""

    def __init__(
        self,
        client: HubClient,
        certificate: CertificateView,
        flow: CSRFlow,
        *,
        hub_clock: Clock,
        renewed: Callable[[Contents], None],
        report: Callable[[Condition], None],
        decision_timeout: timedelta = DECISION_TIMEOUT,
    ) -> None:
        self._client = client
        self._time = RenewalTime(certificate.serial, certificate.not_before, certificate.not_after)
        self._flow = flow
        self._clock = hub_clock
        self._renewed = renewed
        self._report = report
        self._decision_timeout = decision_timeout

    @property
    def due(self) -> datetime:
        """Time of the renewal, by the hub's clock."""
        return self._time.due

    def ask(self, renewal: RequestedRenewal | None) -> bool:
        """Apply the hub's request for an early renewal; return whether the renewal is now due earlier."""
        before = self.due
        if renewal is None or not self._time.ask(renewal.within, self._clock.now()):
            return False
        log.info("certificate.renewal_asked_for", due=format_time(self.due), was=format_time(before))
        return True

    async def reconcile(self, key: str) -> timedelta | None:
        del key
        remaining = self.due - self._clock.now()
        if not self._flow.is_under_way:
            if remaining > timedelta():
                return min(remaining, MAX_REQUEUE)
            log.info("CertificateRotationStarted", due=format_time(self.due))
        try:
            async with asyncio.timeout(self._decision_timeout.total_seconds()):
                leaf = await self._flow.run(self._client)
        except TimeoutError:
            return timedelta(seconds=1)
        except MusterError as error:
            self._report(rotation_failed_condition(error.message))
            raise
        self._report(rotated_condition(leaf))
        self._renewed(self._flow.credential)
        return None
