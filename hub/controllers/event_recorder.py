"""Records the hub's own Events, many in one transaction.

After each portion of `AT_MOST` Events the recorder waits for `GATHER`: a mass registration causes four Events per cluster, and
their writes must not delay the issuance of certificates.
"""

from collections import deque
from collections.abc import Sequence
from datetime import timedelta

import structlog

from hub.api.events import EventRecord
from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry import events
from machinery.errors import ConflictError, DeadlineError, UnavailableError
from machinery.runtime.controller import Reconciler

NAME = "events"
AT_MOST, KEPT = 50, 10_000
GATHER = timedelta(seconds=1)
PASSING = (UnavailableError, DeadlineError, ConflictError)
"""Errors after which a retry may succeed."""

log = structlog.get_logger(__name__)


class Recorder(Reconciler[str]):
    """Records waiting Events. Keeps only the newest `kept` of them, and logs the number of dropped Events."""

    def __init__(self, store: Store, *, kept: int = KEPT) -> None:
        self._store = store
        self.waiting: deque[EventRecord] = deque(maxlen=kept)
        self._kept = kept
        self._lost = 0
        self._alone = 0
        """How many of the next Events are recorded one by one, because one of these Events causes an error."""

    def add(self, record: EventRecord) -> None:
        """Add an Event to the waiting Events. The caller must enqueue a step with the delay GATHER."""
        self._lost += len(self.waiting) == self._kept
        self.waiting.append(record.trimmed_event())

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        at_most = 1 if self._alone else AT_MOST
        portion = [self.waiting.popleft() for _ in range(min(at_most, len(self.waiting)))]
        self._alone = max(0, self._alone - 1)
        try:
            await self._store.run(events.record, portion, f"{ACTOR}:{NAME}")
        except PASSING:
            self._put_back(portion)
            raise
        except Exception as error:  # noqa: BLE001 - one bad Event must not block all later ones
            self._set_apart(portion, error)
        if self._lost:
            log.warning("Events were dropped: too many waited to be recorded", count=self._lost)
            self._lost = 0
        if self._alone:
            return timedelta()
        return GATHER if self.waiting else None

    def _set_apart(self, portion: Sequence[EventRecord], error: Exception) -> None:
        """Retry the Events of a portion one by one. Drop an Event that fails alone."""
        if len(portion) > 1:
            self._put_back(portion)
            self._alone = min(len(portion), len(self.waiting))
            return
        for record in portion:
            log.error("an Event cannot be recorded", cluster=record.cluster, reason=record.reason, error=str(error))

    def _put_back(self, portion: Sequence[EventRecord]) -> None:
        room = self._kept - len(self.waiting)
        self.waiting.extendleft(reversed(portion[-room:] if room else ()))
