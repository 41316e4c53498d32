"""Deletes old rows: change log, Events, audit, transitions, certificates, requests, bootstrap credentials, console sessions."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from hub.api import history as history_rules
from hub.api.auditrecords import AuditSize
from hub.api.certificatesigningrequests import RequestRetention
from hub.api.events import EventRecord
from hub.api.history import Ledger, RetentionPeriods, Trimmed, Volume
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.clock_guard import ClockGuard
from hub.ports import Store, Transaction
from hub.registry import auditrecords as audit, consolesessions, events
from hub.registry.certificatesigningrequests import service as request_ends
from hub.registry.certificatesigningrequests.service import REMOVED_AT_ONCE
from hub.settings import HubSettings
from machinery.runtime.controller import Reconciler

log = structlog.get_logger(__name__)

NAME = "compaction"
PERIOD = timedelta(minutes=5)
CHANGES_AT_ONCE = 200
"""Rows of the change log per transaction. The number is small, so that other writers do not wait long."""
MEASURED_AT_ONCE = 2_000
RECORDS_AT_ONCE, SHORTENED_AT_ONCE = 2_000, 200
"""Audit records removed per transaction, by age and for space."""
PORTION = 25
"""Events deleted per transaction. The number is small, so that heartbeats and other writers do not wait long."""
PORTIONS = 200
"""Portions of Events per query, which scans all Events."""
FORGOTTEN_AT_ONCE = 1_000
"""Transitions or certificate records deleted per transaction."""
LOGINS_KEPT = timedelta(days=1)
"""Retention of login records after the expiry. An operator causes a dozen records per hour; a login is valid for minutes."""
CERTIFICATES_KEPT = timedelta(days=90)
"""Retention of the records of certificates other than logins after the expiry. An agent causes about forty a year. Recovery and
revocation lists need only valid certificates."""
STRANGERS_KEPT = 50_000
"""Largest number of audit records of refused callers without an identity (about 75 MB)."""
PAUSE = timedelta(milliseconds=100)
"""Pause between portions, each of which blocks other writers for some milliseconds."""


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """Retention and size of the history. `began`: start of the readable history; None: nothing is written yet."""

    ledger: Ledger
    volume: Volume
    began: datetime | None


def history_status(tx: Transaction) -> HistoryStatus:
    return HistoryStatus(tx.changes.ledger(), tx.volume(), tx.changes.began())


@dataclass(eq=False)
class Compaction(Reconciler[str]):
    """Deletes old rows. Each step deletes a limited number of rows per table. While there are more, it runs again after PAUSE.

    `clock_guard`: postpones deletion by age while the database's clock is not trusted.
    `status`: retention and sizes after the last complete run, for metrics; None: not yet known.
    `record_event`: records an Event.
    """

    store: Store
    periods: RetentionPeriods
    clock_guard: ClockGuard
    record_event: Callable[[EventRecord], None] = lambda _event: None

    def __post_init__(self) -> None:
        self._removed: Counter[str] = Counter()
        self._due: Sequence[Callable[[], Awaitable[bool]]] = ()
        self._records: tuple[int, Mapping[str, AuditSize]] | None = None
        """Number of refusals without an identity, and sizes of other audit records by user; None: not measured yet."""
        self.status: HistoryStatus | None = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        due = self._due or (self._events, self._changes, self._transitions, self._certificates, self._audit)
        self._due = due  # a failed part stays due
        self._due = [part for part in due if await part()]
        if self._due:
            return PAUSE
        self.status = await self.store.read(history_status)
        self._report()
        return self.clock_guard.wait or None

    async def _events(self) -> bool:
        """Query without blocking writers, then delete in portions."""
        most = PORTION * PORTIONS
        due = await self.store.read(self.clock_guard.guarded(events.due), self.periods.events, limit=most) or {}
        keys = list(due)
        for place in range(0, len(keys), PORTION):
            portion = {key: due[key] for key in keys[place : place + PORTION]}
            self._removed["events"] += await self.store.run(events.expire, portion, f"{ACTOR}:{NAME}")
            await asyncio.sleep(PAUSE.total_seconds())
        return len(due) == most

    async def _changes(self) -> bool:
        """Compact the log and measure the sizes of new rows, then delete history by age, and then by size."""
        compacted = await self.store.run(
            self.clock_guard.guarded(lambda tx: tx.changes.compact(tx.now - self.periods.window, limit=CHANGES_AT_ONCE))
        )
        unmeasured = await self.store.run(lambda tx: tx.changes.measure(limit=MEASURED_AT_ONCE))
        self._removed["changes"] += compacted.rows if compacted else 0
        more = unmeasured or (compacted is not None and compacted.more)
        trimmed = await self.store.run(
            self.clock_guard.guarded(lambda tx: tx.changes.forget(tx.now - self.periods.history, limit=CHANGES_AT_ONCE))
        )
        self._removed["past"] += trimmed.rows if trimmed else 0
        if trimmed is not None and trimmed.more:
            return True
        early = await self.store.run(self._free_space)
        self._removed["past before its time"] += early.rows
        return more or early.more

    def _free_space(self, tx: Transaction) -> Trimmed:
        """Remove the oldest history if the log is too large or the disk too full, but no rows that a watch may need."""
        left = tx.volume().left
        if tx.changes.ledger().bytes <= self.periods.history_bytes and (left is None or left >= self.periods.reserve):
            return Trimmed()
        return tx.changes.forget(None, limit=CHANGES_AT_ONCE)

    async def _transitions(self) -> bool:
        trimmed = await self.store.run(
            self.clock_guard.guarded(lambda tx: tx.transitions.trim(tx.now - self.periods.transitions, FORGOTTEN_AT_ONCE))
        )
        return trimmed == FORGOTTEN_AT_ONCE

    async def _certificates(self) -> bool:
        """Query without blocking writers. The query skips records that are never removed."""
        guarded = self.clock_guard.guarded
        logins = await self.store.run(
            guarded(lambda tx: tx.certificates.forget_logins(tx.now - LOGINS_KEPT, FORGOTTEN_AT_ONCE))
        )
        ended = await self.store.read(guarded(lambda tx: tx.certificates.ended(tx.now - CERTIFICATES_KEPT, FORGOTTEN_AT_ONCE)))
        if ended:
            self._removed["certificates"] += await self.store.run(lambda tx: tx.certificates.forget(ended))
        return FORGOTTEN_AT_ONCE in (logins, len(ended or ()))

    async def _audit(self) -> bool:
        removed = await self.store.run(
            self.clock_guard.guarded(lambda tx: tx.audit.remove(RECORDS_AT_ONCE, before=tx.now - self.periods.records).records)
        )
        self._removed["audit records"] += removed or 0
        return removed == RECORDS_AT_ONCE or await self._audit_size()

    async def _audit_size(self) -> bool:
        """Measure once per run without blocking writers, then delete in portions.

        Above the size limit, delete from the user with the most bytes, so that a flood displaces only this user's own records.
        """
        if self._records is None:
            self._records = await self.store.read(audit.sizes)
        strangers, known = self._records
        if strangers > STRANGERS_KEPT:
            limit = min(strangers - STRANGERS_KEPT, SHORTENED_AT_ONCE)
            gone = (await self.store.run(lambda tx: tx.audit.remove(limit, strangers=True))).records
            strangers -= gone
        elif _bytes(known) > self.periods.records_bytes:
            user, taken = max(known.items(), key=lambda item: item[1].bytes)
            portion = await self.store.run(
                lambda tx: tx.audit.remove(SHORTENED_AT_ONCE, strangers=False, user=user, since=taken.floor)
            )
            known = {**known, user: taken.without(portion)}
            gone = portion.records
            self._removed["audit records before their time"] += gone
        else:
            return False
        self._records = strangers, known
        return gone > 0

    def _report(self) -> None:
        gone = {name.replace(" ", "_"): count for name, count in self._removed.items() if count}
        if gone:
            log.info("old records removed", **gone)
        early, audit_early = self._removed["past before its time"], self._removed["audit records before their time"]
        self._removed.clear()
        taken, self._records = _bytes(self._records[1]) if self._records else 0, None
        warnings = [*history_rules.audit_warnings(self.periods, taken, early=bool(audit_early))]
        if self.status:
            warnings += history_rules.warnings(self.periods, self.status.volume, early=bool(early))
        for warning in warnings:
            log.warning("database is filling up", reason=warning.reason, message=warning.message)
            self.record_event(warning)


def _bytes(sizes: Mapping[str, AuditSize]) -> int:
    return sum(size.bytes for size in sizes.values())


CLEANUP = "request-cleanup"


class RequestCleanup(Reconciler[str]):
    """Removes old certificate requests, ended bootstrap credentials and ended console sessions.

    `ends`: retention of requests. `keep_credentials`: retention of ended credentials.
    `clock_guard`: postpones all deletions while the database's clock is not trusted.
    """

    def __init__(self, store: Store, ends: RequestRetention, keep_credentials: timedelta, clock_guard: ClockGuard) -> None:
        self._store = store
        self._ends = ends
        self._keep_credentials = keep_credentials
        self._clock_guard = clock_guard

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        if gone := await self._remove_requests():
            log.info("finished requests removed", count=gone)
        forgotten = await self._store.run(
            self._clock_guard.guarded(lambda tx: tx.credentials.forget_ended(tx.now - self._keep_credentials))
        )
        if forgotten:
            log.info("ended bootstrap credentials removed", count=forgotten)
        for name in await self._store.read(self._clock_guard.guarded(consolesessions.ended)) or ():
            await self._store.run(consolesessions.end, name, f"{ACTOR}:{CLEANUP}")
        return self._clock_guard.wait or None

    async def _remove_requests(self) -> int:
        """Examine the requests in portions, because a thread that parses thousands at once delays heartbeats."""
        guarded, gone, after = self._clock_guard.guarded, 0, None
        examine, expire = guarded(request_ends.due_for_removal), guarded(request_ends.expire)
        while True:
            found = await self._store.read(examine, self._ends, after)
            due, after = found or ((), None)
            for place in range(0, len(due), REMOVED_AT_ONCE):
                removed = await self._store.run(expire, due[place : place + REMOVED_AT_ONCE], self._ends, f"{ACTOR}:{CLEANUP}")
                gone += removed or 0
                await asyncio.sleep(PAUSE.total_seconds())
            if after is None:
                return gone
            await asyncio.sleep(PAUSE.total_seconds())


def register(builder: ControllerBuilder) -> None:
    settings, store = builder.settings, builder.store
    requests = RequestRetention(settings.finished_requests, settings.pending_requests)
    cleanup = RequestCleanup(store, requests, settings.ended_credentials, ClockGuard(builder.clock))
    compaction = Compaction(store, _periods_of(settings), ClockGuard(builder.clock), builder.record_event)
    builder.every(PERIOD, builder.add(CLEANUP, cleanup), at_once=True)
    builder.every(PERIOD, builder.add(NAME, compaction), at_once=True)


def _periods_of(settings: HubSettings) -> RetentionPeriods:
    return RetentionPeriods(
        window=settings.watch_window,
        history=settings.history_retention,
        history_bytes=settings.history_size,
        events=settings.event_lifetime,
        records=settings.audit_retention,
        transitions=settings.transition_retention,
        reserve=settings.disk_reserve,
        records_bytes=settings.audit_size,
    )
