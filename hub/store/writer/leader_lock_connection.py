"""The database connection for leader election, with its own thread and no other users.

So a renewal never waits for the store's pools and threads. A cancelled query shuts down its socket. Otherwise the thread and
the next query would wait forever on a network path that drops all packets.
"""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import event

from hub.ports.liveness import LeaderLockConnection, Leaders
from hub.store.engine.engine import database_time, parse_url, transaction, writing_engine
from hub.store.engine.errors import is_read_only, translated
from hub.store.engine.timeouts import SessionLimits
from hub.store.tables.leaders import SqlLeaders
from machinery.errors import UnavailableError
from machinery.runtime.clock import Clock

T = TypeVar("T")

CLOSED = "the connection for the leader election is closed"


class SqlLeaderLockConnection(LeaderLockConnection):
    """Leader lock connection to the database at a URL.

    `lease`: the leader's lease duration. `clock` replaces the database's time, as in the store.
    """

    def __init__(self, url: str, *, lease: timedelta, clock: Clock | None = None) -> None:
        """Raises InvalidError when the URL is malformed."""
        self._clock = clock
        self._engine = writing_engine(parse_url(url), SessionLimits.of_lease(lease))
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
                return use_case(SqlLeaders(connection, lambda: database_time(connection, self._clock)))
        except Exception as error:
            if is_read_only(error):
                self._engine.dispose()  # the server accepts no writes now: another server may have the leader's record
            raise translated(error) from error

    def _cut(self) -> None:
        """Shut down the socket. The thread that waits on it fails, and the next query opens a new connection."""
        number = getattr(self._connection, "fileno", None)
        if number is None:  # waits of SQLite have a time limit
            return
        ended = (OSError, self._engine.dialect.loaded_dbapi.Error)  # if the connection has ended in the meantime
        with suppress(*ended), socket.fromfd(number(), socket.AF_INET, socket.SOCK_STREAM) as its:
            its.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            self._cut()
            await asyncio.get_running_loop().run_in_executor(None, self._release)

    def _release(self) -> None:
        self._thread.shutdown(wait=True)
        self._engine.dispose()
