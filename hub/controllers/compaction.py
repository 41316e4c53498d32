"""Owns what is kept for a time only: the change log and the past in it, Events, audit records, transitions, logins."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.controllers import ACTOR
from hub.domain import history as rules
from hub.domain.event import Told
from hub.domain.history import Keeping
from hub.ports import Store, Transaction
from hub.services import audit, events, history
from hub.services.history import Standing
from machinery.controller import Reconciler

NAME = "compaction"
PORTION = 200
"""Events that go in one transaction: others write meanwhile."""
FORGOTTEN_AT_ONCE = 1_000
"""Transitions, and records of logins."""
LOGINS_KEPT = timedelta(days=1)
"""Somebody who is logged in leaves a dozen of them an hour, and each opens something for minutes."""
PAUSE = timedelta(milliseconds=100)
"""What left something old behind goes on after this. Others write meanwhile; a portion blocks them for some milliseconds."""

log = structlog.get_logger(__name__)


class Compaction(Reconciler[str]):
    """Each step is a few short transactions, one portion each; it comes again at once while there is more.

    `standing`: what is kept and what it takes, as of the last time that all was done, for whoever shows numbers; None: not yet.
    `tell`: has an Event made of it.
    """

    def __init__(self, store: Store, keeping: Keeping, tell: Callable[[Told], None] = lambda _told: None) -> None:
        self._store = store
        self._keeping = keeping
        self._tell = tell
        self._gone: Counter[str] = Counter()
        self.standing: Standing | None = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        more = [await part() for part in (self._events, self._log, self._past, self._others)]
        if any(more):
            return PAUSE
        self.standing = await self._store.read(history.standing)
        self._say()
        return None

    async def _events(self) -> bool:
        expired = await self._store.run(events.expire, self._keeping.events, f"{ACTOR}:{NAME}", limit=PORTION)
        self._gone["events"] += expired
        return expired == PORTION

    async def _log(self) -> bool:
        """Compacted, and counted as it is then."""
        trimmed = await self._store.run(history.compact, self._keeping.window)
        self._gone["changes"] += trimmed.rows
        uncounted = await self._store.run(history.measure)
        return trimmed.more or uncounted

    async def _past(self) -> bool:
        """By age first, and what is left by size."""
        trimmed = await self._store.run(history.forget, self._keeping.history)
        self._gone["past"] += trimmed.rows
        if trimmed.more:
            return True
        early = await self._store.run(history.make_room, self._keeping.history_bytes, self._keeping.reserve)
        self._gone["past before its time"] += early.rows
        return early.more

    async def _others(self) -> bool:
        transitions = await self._store.run(_forget, self._keeping.transitions)
        logins = await self._store.run(_forget_logins)
        records = await self._store.run(audit.trim, self._keeping.records)
        self._gone["audit records"] += records
        return records >= audit.TRIMMED_AT_ONCE or FORGOTTEN_AT_ONCE in (transitions, logins)

    def _say(self) -> None:
        gone = {name.replace(" ", "_"): count for name, count in self._gone.items() if count}
        if gone:
            log.info("old records removed", **gone)
        early = self._gone["past before its time"]
        self._gone.clear()
        for told in rules.warnings(self._keeping, self.standing.volume, early=bool(early)) if self.standing else ():
            log.warning("room for the database", reason=told.reason, message=told.message)
            self._tell(told)


def _forget(tx: Transaction, kept: timedelta) -> int:
    return tx.transitions.trim(tx.now - kept, FORGOTTEN_AT_ONCE)


def _forget_logins(tx: Transaction) -> int:
    return tx.certificates.forget_logins(tx.now - LOGINS_KEPT, FORGOTTEN_AT_ONCE)
