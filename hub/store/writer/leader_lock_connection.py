"""The leader's own way to the database: one connection and one thread, which nothing else uses.

However busy the store is, its threads and its pools, a renewal waits for none of it. A question that is given up is cut off at
the socket: a thread that waits on a path that swallows everything would otherwise wait for ever, and the next question with it.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, event, text

from hub.ports import Leaders, Lifeline
from hub.store.engine.commit import transaction
from hub.store.engine.engine import is_sqlite, parse_url, writing_engine
from hub.store.engine.errors import is_read_only, translated
from hub.store.engine.timeouts import DatabaseTimeouts, SessionLimits
from hub.store.tables.leaders import SqlLeaders
from machinery.errors import UnavailableError
from machinery.runtime.clock import Clock, SystemClock

T = TypeVar("T")

CLOSED = "the connection for the election is closed"


class SqlLifeline(Lifeline):
    """At a database's URL. `lease`: the leader's. `clock` stands in for the database's time, as in the store."""

    def __init__(self, url: str, *, lease: timedelta, clock: Clock | None = None) -> None:
        """Raises InvalidError when the URL is not one."""
        parsed = parse_url(url)
        self._clock = clock or (SystemClock() if is_sqlite(parsed) else None)
        self._engine = writing_engine(parsed, DatabaseTimeouts(session=SessionLimits.of_lease(lease)))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lifeline")
        self._connection: Any = None
        self._closed = False

        @event.listens_for(self._engine, "connect")
        def connected(connection: Any, _record: Any) -> None:
            self._connection = connection

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        if self._closed:
            raise UnavailableError(CLOSED)
        answer = self._thread.submit(self._asked, use_case)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not answer.cancelled():
                self._cut()
            raise

    def _asked(self, use_case: Callable[[Leaders], T]) -> T:
        try:
            with transaction(self._engine) as connection:
                return use_case(SqlLeaders(connection, lambda: self._now(connection)))
        except Exception as error:
            if is_read_only(error):
                self._engine.dispose()  # a server that takes no writes now: whoever leads is known to another
            raise translated(error) from error

    def _now(self, connection: Connection) -> datetime:
        if self._clock is not None:
            return self._clock.now()
        now: datetime = connection.execute(text("SELECT now()")).scalar_one()
        return now.astimezone(UTC)

    def _cut(self) -> None:
        """Ends the connection under the thread that waits for it, which then has an error, and the next a new connection."""
        number = getattr(self._connection, "fileno", None)
        if number is None:  # SQLite's waits end by themselves
            return
        ended = (OSError, self._engine.dialect.loaded_dbapi.Error)  # by itself, meanwhile
        with suppress(*ended), socket.fromfd(number(), socket.AF_INET, socket.SOCK_STREAM) as its:
            its.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Lets go of the connection. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._cut()
            await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _release(self) -> None:
        self._thread.shutdown(wait=True)
        self._engine.dispose()
