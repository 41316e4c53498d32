"""The SQL store: use cases run on threads, and changes are delivered in revision order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_hex
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, Engine, text

from hub.api.meta.change import Change, Kind
from hub.ports import RECORDING, Store, Transaction
from hub.store.changelog.tail import Tail, skip_lost_changes, tail_changes
from hub.store.engine.encoding import RowForm
from hub.store.engine.engine import (
    READERS,
    database_time,
    follow_writer,
    is_sqlite,
    parse_url,
    reading_engine,
    translated_errors,
    writing_engine,
)
from hub.store.engine.notify import CHANGES, REVOCATIONS, SESSIONS, Topic, Wake, WakeCallbacks
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from hub.store.migrate import migrate_database
from hub.store.objects.rows import reindex
from hub.store.writer.coalesced_reads import CoalescedReads
from hub.store.writer.measures import StoreCounts, timed, traced
from hub.store.writer.transaction import SqlTransaction
from hub.store.writer.write_queue import CLOSED, WriteQueue
from machinery.errors import UnavailableError
from machinery.pki.encryption import Seal
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

POLL = timedelta(milliseconds=500)
SHARED_ON_SQLITE = 64
SHARED_ON_POSTGRES = 16
"""Largest number of use cases per transaction. It is lower on PostgreSQL, where other replicas wait for the revision
counter."""

_LOCK = text("SELECT now() FROM revision FOR UPDATE")
PROBE, PROBE_SIZE = "write-probe", 32 * 1024
"""Name and size in bytes of the fact that `check` writes. It is too large for the space of removed rows."""


class SqlStore(Store):
    """Store in the database at a URL. `open` migrates and connects. A store belongs to one event loop.

    `seal` encrypts Secrets; without it, Secrets can be neither read nor written. `clock` replaces the database's time, which is
    the time of PostgreSQL, or of the machine on SQLite. `session` limits how long this replica may hold locks.
    `doorbell=False`: the store finds changes of other replicas only by polling. `alone`: no other process writes to this
    database. `engines`: engines for writing and for reading, in place of those made from the URL.
    """

    def __init__(
        self,
        url: str,
        seal: Seal | None = None,
        *,
        clock: Clock | None = None,
        poll: timedelta = POLL,
        group_suffix: str = GROUP_SUFFIX,
        session: SessionLimits = DEFAULT,
        doorbell: bool = True,
        alone: bool = False,
        engines: tuple[Engine, Engine] | None = None,
    ) -> None:
        """Raises InvalidError when the URL is malformed."""
        self._url = parse_url(url)
        self._form = RowForm(seal, group_suffix)
        self._is_sqlite = is_sqlite(self._url)
        self._clock = clock
        self._poll = poll
        self._limits = session
        self._sender = uuid4().hex[:12]
        self._doorbell = doorbell and not self._is_sqlite
        self._notifications_work: Callable[[], bool] = lambda: alone
        if engines is None:
            engines = writing_engine(self._url, self._limits), reading_engine(self._url)
            follow_writer(reading=engines[1], writing=engines[0])
        self._writing, self._reading = engines
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._looks = CoalescedReads(self.read)
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="store-check")
        self._writer: WriteQueue | None = None
        self._tail: Tail | None = None
        self._following: asyncio.Task[None] | None = None
        self._revocations, self._sessions = WakeCallbacks(), WakeCallbacks()
        self._closed = False
        self.counts = StoreCounts()

    async def open(self) -> None:
        """Migrate the schema and start the writer and the tail.

        Raises UnavailableError, InvalidError (a newer schema, or Secrets that are sealed with a key that this hub does not
        have).
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._checker, self._migrate)
        newest = await self._on(self._readers, self._query, _newest)
        tail = Tail(self._fetch, self._repair, newest, self._poll, self._is_notified)
        at_most = SHARED_ON_SQLITE if self._is_sqlite else SHARED_ON_POSTGRES
        self._writer = WriteQueue(self._writing, self._begin, partial(self._committed, loop, tail), at_most=at_most)
        self._writer.start()
        self._tail = tail
        self._following = asyncio.create_task(self._follow_others(tail), name="store-tail")

    async def _follow_others(self, tail: Tail) -> None:
        if not self._doorbell:
            return await tail.run()
        from hub.store.changelog.doorbell import Doorbell  # noqa: PLC0415 - only on PostgreSQL

        bell = Doorbell(self._url, self._limits, self._sender)
        self._notifications_work = lambda: bell.is_proven
        with ExitStack() as stack:
            for topic, wake in ((CHANGES, tail.ring), (REVOCATIONS, self._revocations.wake), (SESSIONS, self._sessions.wake)):
                stack.enter_context(bell.registered(topic, wake))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(bell.run(), name="store-doorbell")
                tasks.create_task(tail.run(), name="store-tail")
        return None

    def _is_notified(self) -> bool:
        return self._notifications_work()

    def _migrate(self) -> None:
        migrate_database(self._url, self._limits)
        with translated_errors():
            with self._writing.begin() as connection:
                self._form.renew(connection)
            reindex(self._writing)

    def _committed(
        self, loop: asyncio.AbstractEventLoop, tail: Tail, changes: Sequence[Change], topics: Collection[Topic]
    ) -> None:
        """Pass on the changes, and the topics for which the database sends no notification."""
        with suppress(RuntimeError):  # the loop has ended: there are no followers
            if changes:
                loop.call_soon_threadsafe(tail.offer, changes)
            if REVOCATIONS in topics:
                loop.call_soon_threadsafe(self._revocations.wake)

    def _begin(self, connection: Connection) -> Callable[[], SqlTransaction]:
        """Lock the revision counter, so that PostgreSQL runs one writing transaction at a time, like SQLite.

        Without this, transactions would lock rows in different orders and the counter last. Replicas would then deadlock for
        one second (measured).
        """
        if self._is_sqlite:
            now = database_time(connection, self._clock)
        else:
            locked: datetime = connection.execute(_LOCK).scalar_one()
            now = self._clock.now() if self._clock is not None else locked.astimezone(UTC)
        return partial(SqlTransaction, connection, now, form=self._form, sender=self._sender, writable=True)

    @property
    def newest(self) -> int:
        """The newest revision that this replica has seen; 0 before `open`."""
        return self._tail.newest if self._tail is not None else 0

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(partial(_call, use_case, args, kwargs), use_case, args)

    async def run_first(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._write(partial(_call, use_case, args, kwargs), use_case, args, is_urgent=True)

    async def _write(
        self, work: Callable[[SqlTransaction], T], use_case: Callable[..., T], args: tuple[Any, ...], *, is_urgent: bool = False
    ) -> T:
        if self._writer is None:
            raise UnavailableError(CLOSED)
        with self.counts.writing.counted(), traced("store write", use_case, args) as span:
            return await asyncio.wrap_future(self._writer.submit(timed(span, work), RECORDING.get(), is_urgent=is_urgent))

    @property
    def write_delay(self) -> float:
        return self._writer.delay if self._writer is not None else 0.0

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        work: Callable[[SqlTransaction], T] = partial(_call, query, args, kwargs)
        with self.counts.reading.counted(), traced("store read", query, args) as span:
            return await self._on(self._readers, self._query, timed(span, work))

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self._looks.join(partial(_call, query, args, kwargs))
        return found

    async def _on(self, threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any) -> T:
        if self._closed:
            raise UnavailableError(CLOSED)
        return await asyncio.get_running_loop().run_in_executor(threads, partial(function, *args))

    def _query(self, work: Callable[[SqlTransaction], T]) -> T:
        with translated_errors(), self._reading.connect() as connection, connection.begin():
            now = database_time(connection, self._clock)
            return work(SqlTransaction(connection, now, form=self._form, sender=self._sender, writable=False))

    async def _fetch(self, revision: int, checked: int) -> tuple[Sequence[Change] | None, int]:
        return await self.read(tail_changes, revision, checked)

    async def _repair(self, seen: int, shown: Change | None) -> bool:
        return await self.run(skip_lost_changes, seen, shown)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        return await self._followed.wait(after, within)

    async def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        tail = self._followed
        await self.read(_since, after, 1)
        while True:
            changes = tail.after(after)
            if changes is None:
                changes = await self.read(_since, after)
            if not changes:
                yield ()
                await tail.wait(after)
                continue
            after = changes[-1].revision
            chosen = changes if kinds is None else tuple(change for change in changes if change.kind in kinds)
            if chosen:
                yield chosen

    @contextmanager
    def subscribe_to_revocations(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        with self._revocations.registered(wake):
            yield self._is_notified

    @contextmanager
    def subscribe_to_sessions(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        with self._sessions.registered(wake):
            yield self._is_notified

    @property
    def _followed(self) -> Tail:
        if self._tail is None or self._closed:
            raise UnavailableError(CLOSED)
        return self._tail

    async def check(self) -> None:
        """Check that the database answers and, after a failed write, that it accepts a write that needs new disk space."""
        await self._on(self._checker, self._query, _newest)
        if self._writer is not None and (fault := self._writer.fault) is not None:
            await self.run(_write_something)
            self._writer.proven(fault)

    async def close(self) -> None:
        """Finish the submitted work and close the connections. Idempotent; allowed before `open`."""
        if self._closed:
            return
        self._closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
        await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _release(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._readers.shutdown(wait=True)
        self._checker.shutdown(wait=True)
        self._writing.dispose()
        self._reading.dispose()


def _call(use_case: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], transaction: SqlTransaction) -> T:
    return use_case(transaction, *args, **kwargs)


def _newest(transaction: Transaction) -> int:
    return transaction.changes.newest()


def _write_something(transaction: Transaction) -> None:
    """Write a value that needs disk space, and remove it."""
    transaction.facts.set(PROBE, token_hex(PROBE_SIZE))
    transaction.facts.set(PROBE, "")


def _since(transaction: Transaction, after: int, limit: int = 500) -> Sequence[Change]:
    return transaction.changes.since(after, limit=limit)
