"""Deletes old rows: change log and history, Events, audit records, transitions, certificate records, finished requests."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import structlog

from hub.api import history as rules
from hub.api.auditrecords import AuditSize
from hub.api.certificatesigningrequests import RequestRetention
from hub.api.events import EventRecord
from hub.api.history import RetentionPeriods, Trimmed
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.clock_guard import ClockGuard
from hub.ports import Store, Transaction
from hub.registry import auditrecords as audit, events
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as request_ends
from hub.registry.certificatesigningrequests.service import REMOVED_AT_ONCE
from hub.registry.generic import history
from hub.registry.generic.history import HistoryStatus
from hub.settings import HubSettings
from machinery.identity import SerialNumber
from machinery.runtime.controller import Reconciler

log = structlog.get_logger(__name__)

NAME = "compaction"
PERIOD = timedelta(minutes=5)
PORTION = 200
"""Events deleted per transaction, so that other writers wait only briefly."""
PORTIONS = 25
"""Portions of Events per query, which scans all Events."""
FORGOTTEN_AT_ONCE = 1_000
"""Transitions or certificate records per transaction."""
LOGINS_KEPT = timedelta(days=1)
"""A logged-in operator causes a dozen records an hour, each for a certificate of some minutes."""
CERTIFICATES_KEPT = timedelta(days=90)
"""After their end. Each agent causes about forty a year; recovery and revocation lists need only valid ones."""
STRANGERS_KEPT = 50_000
"""Audit records of refused callers without an identity, at most about 75 MB."""
PAUSE = timedelta(milliseconds=100)
"""Pause between portions, each of which blocks other writers for some milliseconds."""


class Compaction(Reconciler[str]):
    """Each step runs one portion per table, and runs again at once while there is more.

    `steady`: postpones deletion by age while the database's clock is not trusted.
    `standing`: retention and sizes after the last complete run, for metrics; None: not yet known.
    `tell`: records an Event.
    """

    def __init__(
        self,
        store: Store,
        keeping: RetentionPeriods,
        steady: ClockGuard,
        tell: Callable[[EventRecord], None] = lambda _told: None,
    ) -> None:
        self._store = store
        self._keeping = keeping
        self._steady = steady
        self._tell = tell
        self._gone: Counter[str] = Counter()
        self._due: Sequence[Callable[[], Awaitable[bool]]] = ()
        self._records: tuple[int, Mapping[str, AuditSize]] | None = None
        """The number of refusals without an identity, and sizes of other audit records by user; None: to be measured."""
        self.standing: HistoryStatus | None = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        due = self._due or (self._events, self._changes, self._transitions, self._certificates, self._audit)
        self._due = due  # a failed part stays due
        self._due = [part for part in due if await part()]
        if self._due:
            return PAUSE
        self.standing = await self._store.read(history.standing)
        self._say()
        return self._steady.wait or None

    async def _events(self) -> bool:
        """Query without blocking writers, then delete in portions."""
        most = PORTION * PORTIONS
        due = await self._steady.read(self._store, events.due, self._keeping.events, limit=most) or {}
        keys = list(due)
        for place in range(0, len(keys), PORTION):
            portion = {key: due[key] for key in keys[place : place + PORTION]}
            self._gone["events"] += await self._store.run(events.expire, portion, f"{ACTOR}:{NAME}")
        return len(due) == most

    async def _changes(self) -> bool:
        """Compact the log first, because only compacted history can be deleted."""
        return any([await self._log(), await self._past()])

    async def _log(self) -> bool:
        """Compact, then measure."""
        trimmed = await self._steady.run(self._store, history.compact, self._keeping.window) or Trimmed()
        self._gone["changes"] += trimmed.rows
        uncounted = await self._store.run(history.measure)
        return trimmed.more or uncounted

    async def _past(self) -> bool:
        """Delete by age, then by size."""
        trimmed = await self._steady.run(self._store, history.forget, self._keeping.history) or Trimmed()
        self._gone["past"] += trimmed.rows
        if trimmed.more:
            return True
        early = await self._store.run(history.make_room, self._keeping.history_bytes, self._keeping.reserve)
        self._gone["past before its time"] += early.rows
        return early.more

    async def _transitions(self) -> bool:
        return await self._steady.run(self._store, _forget, self._keeping.transitions) == FORGOTTEN_AT_ONCE

    async def _certificates(self) -> bool:
        """Query without blocking writers: it skips the records that are kept for ever."""
        logins = await self._steady.run(self._store, _forget_logins)
        ended = await self._steady.read(self._store, _ended) or ()
        if ended:
            self._gone["certificates"] += await self._store.run(_forget_certificates, ended)
        return FORGOTTEN_AT_ONCE in (logins, len(ended))

    async def _audit(self) -> bool:
        records = await self._steady.run(self._store, audit.trim, self._keeping.records) or 0
        self._gone["audit records"] += records
        return records >= audit.TRIMMED_AT_ONCE or await self._audit_size()

    async def _audit_size(self) -> bool:
        """Measure once per run without blocking writers, then delete in portions.

        Above the size limit, each portion is from the user with most bytes: a user who floods the log loses their own first.
        """
        if self._records is None:
            self._records = await self._store.read(audit.sizes)
        strangers, known = self._records
        if strangers > STRANGERS_KEPT:
            gone = await self._store.run(audit.trim_anonymous, strangers - STRANGERS_KEPT)
            strangers -= gone
        elif _bytes(known) > self._keeping.records_bytes:
            user, taken = max(known.items(), key=lambda item: item[1].bytes)
            portion = await self._store.run(audit.shorten, user, taken.floor)
            known = {**known, user: taken.without(portion)}
            gone = portion.records
            self._gone["audit records before their time"] += gone
        else:
            return False
        self._records = strangers, known
        return gone > 0

    def _say(self) -> None:
        gone = {name.replace(" ", "_"): count for name, count in self._gone.items() if count}
        if gone:
            log.info("old records removed", **gone)
        early, audit_early = self._gone["past before its time"], self._gone["audit records before their time"]
        self._gone.clear()
        taken, self._records = _bytes(self._records[1]) if self._records else 0, None
        warnings = [*rules.audit_warnings(self._keeping, taken, early=bool(audit_early))]
        if self.standing:
            warnings += rules.warnings(self._keeping, self.standing.volume, early=bool(early))
        for told in warnings:
            log.warning("room for the database", reason=told.reason, message=told.message)
            self._tell(told)


def _bytes(sizes: Mapping[str, AuditSize]) -> int:
    return sum(size.bytes for size in sizes.values())


def _forget(tx: Transaction, kept: timedelta) -> int:
    return tx.transitions.trim(tx.now - kept, FORGOTTEN_AT_ONCE)


def _forget_logins(tx: Transaction) -> int:
    return tx.certificates.forget_logins(tx.now - LOGINS_KEPT, FORGOTTEN_AT_ONCE)


def _ended(tx: Transaction) -> Sequence[SerialNumber]:
    return tx.certificates.ended(tx.now - CERTIFICATES_KEPT, FORGOTTEN_AT_ONCE)


def _forget_certificates(tx: Transaction, serials: Sequence[SerialNumber]) -> int:
    return tx.certificates.forget(serials)


CLEANUP = "request-cleanup"


class RequestCleanup(Reconciler[str]):
    """`ends`: retention of requests. `keep_credentials`: retention of expired or revoked credentials.

    `steady`: postpones all deletions while the database's clock is not trusted.
    """

    def __init__(self, store: Store, ends: RequestRetention, keep_credentials: timedelta, steady: ClockGuard) -> None:
        self._store = store
        self._ends = ends
        self._keep_credentials = keep_credentials
        self._steady = steady

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        due = await self._steady.read(self._store, request_ends.due_for_removal, self._ends) or ()
        portions = [due[place : place + REMOVED_AT_ONCE] for place in range(0, len(due), REMOVED_AT_ONCE)]
        gone = 0
        for names in portions:
            gone += await self._steady.run(self._store, request_ends.expire, names, self._ends, f"{ACTOR}:{CLEANUP}") or 0
        if gone:
            log.info("finished requests removed", count=gone)
        forgotten = await self._steady.run(self._store, credentials.forget_ended, self._keep_credentials)
        if forgotten:
            log.info("ended bootstrap credentials forgotten", count=forgotten)
        return self._steady.wait or None


def register(builder: ControllerBuilder) -> None:
    settings, store = builder.settings, builder.store
    requests = RequestRetention(settings.finished_requests, settings.pending_requests)
    cleanup = RequestCleanup(store, requests, settings.ended_credentials, ClockGuard(builder.clock))
    compaction = Compaction(store, _keeping(settings), ClockGuard(builder.clock), builder.record_event)
    builder.every(PERIOD, builder.add(CLEANUP, cleanup), at_once=True)
    builder.every(PERIOD, builder.add(NAME, compaction), at_once=True)


def _keeping(settings: HubSettings) -> RetentionPeriods:
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
