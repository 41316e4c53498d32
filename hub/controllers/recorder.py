"""Owns the hub's own Events: what the chronicle has to tell becomes objects, many in one transaction.

Events are told in the hub's spare time: portions of `AT_MOST`, `GATHER` apart. A storm of joins makes four of them per cluster,
and the clusters' certificates come first.
"""

from collections import deque
from datetime import timedelta

import structlog

from hub.controllers import ACTOR
from hub.domain.event import Told
from hub.ports import Store
from hub.services import events
from machinery.controller import Reconciler

NAME = "events"
TOGETHER = "told"
"""The one key of the queue; the news waits in the recorder."""
AT_MOST, KEPT = 50, 10_000
GATHER = timedelta(seconds=1)

log = structlog.get_logger(__name__)


class Recorder(Reconciler[str]):
    """Keeps the newest news, `kept` of them, while they wait; what is older is lost, and the log says how much."""

    def __init__(self, store: Store, *, kept: int = KEPT) -> None:
        self._store = store
        self.waiting: deque[Told] = deque(maxlen=kept)
        self._kept = kept
        self._lost = 0

    def wants(self, told: Told) -> None:
        """Puts it among what the next steps record; the caller enqueues TOGETHER after GATHER."""
        self._lost += len(self.waiting) == self._kept
        self.waiting.append(told.brief())

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        portion = [self.waiting.popleft() for _ in range(min(AT_MOST, len(self.waiting)))]
        try:
            await self._store.run(events.tell, portion, f"{ACTOR}:{NAME}")
        except Exception:
            room = self._kept - len(self.waiting)
            self.waiting.extendleft(reversed(portion[-room:] if room else []))
            raise
        if self._lost:
            log.warning("there were more events than could be recorded", count=self._lost)
            self._lost = 0
        return GATHER if self.waiting else None
