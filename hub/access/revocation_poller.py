"""Decides when to read revocations: soon after a notification, and periodically.

The time of a revocation is the start of its transaction, but the commit can be much later: PostgreSQL delays commit and
notification until the synchronous standby confirms. Most reads cover only the time since the last read, with an overlap. Far
reads cover the last 7 days (`FAR`). The first read is a far read. Later far reads follow each notification, and each minute.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import structlog

from hub.ports import Store
from machinery.errors import MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.event_loop import until_tick, wait_at_most

POLL = timedelta(milliseconds=500)
RARELY = timedelta(seconds=5)
"""Interval of reads while notifications work."""
OVERLAP = timedelta(seconds=15)
"""Each read covers this much of the previous read again, because earlier transactions may have committed since."""
FAR = timedelta(days=7)
"""Length of time that a far read covers, to find commits that waited for PostgreSQL's standby."""
NOTIFICATION_DELAY = timedelta(milliseconds=500)
"""Delay of the far read after a notification; several notifications share one read."""
AFRESH = timedelta(minutes=1)
"""Longest time between two far reads."""

log = structlog.get_logger(__name__)


class RevocationPoller:
    """Schedules reads, and logs a failure once. `failure`, `recovery`: log events; `poll`: interval without notifications."""

    def __init__(self, store: Store, failure: str, recovery: str = "", *, poll: timedelta = POLL) -> None:
        self._store = store
        self._failure = failure
        self._recovery = recovery
        self._poll = poll
        self._once = LogOnce(log)
        self._notifications_work: Callable[[], bool] = lambda: False

    @property
    def is_notified(self) -> bool:
        """Whether notifications work and the last read succeeded, so that reads are rare."""
        return self._notifications_work() and not self._once.text

    async def run(self, look: Callable[..., Awaitable[object]], on_failure: Callable[[], None] = lambda: None) -> None:
        """Calls `look` until cancelled: immediately, soon after every revocation on any replica, and periodically.

        `look` reads the revocations once; with `far=True`, of the last 7 days (`FAR`). After a MusterError, `on_failure` runs.
        """
        loop, notified = asyncio.get_running_loop(), asyncio.Event()
        far_due = loop.time()
        with self._store.subscribe_to_revocations(notified.set) as self._notifications_work:
            while True:
                notified.clear()
                far = loop.time() >= far_due
                try:
                    await look(far=far)
                except MusterError as error:
                    self._once.warning(self._failure, error.message)
                    on_failure()
                    wait = until_tick(self._poll)
                else:
                    if self._once.reset() and self._recovery:
                        log.info(self._recovery)
                    if far:
                        far_due = loop.time() + AFRESH.total_seconds()
                    wait = min(until_tick(max(self._poll, RARELY) if self.is_notified else self._poll), far_due - loop.time())
                if await wait_at_most(notified, wait):
                    far_due = min(far_due, loop.time() + NOTIFICATION_DELAY.total_seconds())
