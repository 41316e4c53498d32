"""Owns what is kept for a time only: the change log for the watch window, Events, audit records, transitions, logins."""

from datetime import timedelta

import structlog

from hub.controllers import ACTOR
from hub.ports import Store, Transaction
from hub.services import audit, events
from machinery.controller import Reconciler

NAME = "compaction"
PORTION = 200
"""Events that go in one transaction: others write meanwhile."""
FORGOTTEN_AT_ONCE = 1_000
"""Transitions, and records of logins."""
LOGINS_KEPT = timedelta(days=1)
"""Somebody who is logged in leaves a dozen of them an hour, and each opens something for minutes."""
MORE = timedelta(seconds=1)
"""A trim of the audit log that left something old behind goes on after this."""

log = structlog.get_logger(__name__)


class Compaction(Reconciler[str]):
    """`window`: a watch can resume from a change that is at most this old. `events`: how long an Event stays unwritten.

    `records`: how long audit records stay; `transitions`: how long changes of availability do.
    """

    def __init__(
        self, store: Store, *, window: timedelta, events: timedelta, records: timedelta, transitions: timedelta
    ) -> None:
        self._store = store
        self._window = window
        self._events = events
        self._records = records
        self._transitions = transitions

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        expired = await self._store.run(events.expire, self._events, f"{ACTOR}:{NAME}", limit=PORTION)
        if expired:
            log.info("events expired", count=expired)
        if expired == PORTION:
            return timedelta()
        gone = await self._store.run(_compact, self._window)
        if gone:
            log.info("change log compacted", rows=gone)
        forgotten = await self._store.run(_forget, self._transitions)
        logins = await self._store.run(_forget_logins)
        gone = await self._store.run(audit.trim, self._records)
        if gone:
            log.info("audit log trimmed", records=gone)
        return MORE if gone >= audit.TRIMMED_AT_ONCE or FORGOTTEN_AT_ONCE in (forgotten, logins) else None


def _forget(tx: Transaction, kept: timedelta) -> int:
    return tx.transitions.trim(tx.now - kept, FORGOTTEN_AT_ONCE)


def _forget_logins(tx: Transaction) -> int:
    return tx.certificates.forget_logins(tx.now - LOGINS_KEPT, FORGOTTEN_AT_ONCE)


def _compact(tx: Transaction, window: timedelta) -> int:
    return tx.changes.compact(tx.now - window)
