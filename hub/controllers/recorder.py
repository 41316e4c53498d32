"""Owns the hub's own Events: what the chronicle has to tell becomes objects, many in one transaction."""

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
AT_MOST, KEPT = 50, 2_000

log = structlog.get_logger(__name__)


class Recorder(Reconciler[str]):
    """Keeps the newest `KEPT` news while the database is away; what is older is lost, and the log says how much."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: deque[Told] = deque(maxlen=KEPT)
        self._lost = 0

    def wants(self, told: Told) -> None:
        """Puts it among what the next step records; the caller enqueues TOGETHER."""
        self._lost += len(self._waiting) == KEPT
        self._waiting.append(told)

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        portion = [self._waiting.popleft() for _ in range(min(AT_MOST, len(self._waiting)))]
        try:
            await self._store.run(events.tell, portion, f"{ACTOR}:{NAME}")
        except Exception:
            room = KEPT - len(self._waiting)
            self._waiting.extendleft(reversed(portion[-room:] if room else []))
            raise
        if self._lost:
            log.warning("events were not recorded while the database was away", count=self._lost)
            self._lost = 0
        return timedelta() if self._waiting else None
