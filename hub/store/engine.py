"""Engines for the two databases, set up so that a crash loses nothing and a stuck peer holds nothing for long.

SQLite: WAL, `synchronous=FULL`, transactions begun by us (the driver's own habits lose updates), writers with BEGIN IMMEDIATE,
readers that cannot write. PostgreSQL: every time-out of a session is at most a third of the leader's lease, because a replica
that was stopped inside a transaction otherwise holds the revision's row for ever.
"""

import sqlite3
import time
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError

from machinery.errors import InvalidError

SESSION_TIMEOUT_MS = 5000
"""A third of the leader's lease."""
BUSY_TIMEOUT_MS = 5000
WAL_RETRY_SECONDS = 0.02
PRIMARY = 0xFF
"""The part of an SQLite error code that tells its kind."""
READERS = 4
INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""An INSERT that knows ON CONFLICT, by dialect."""


def parse_url(text: str) -> URL:
    """A database URL. Raises InvalidError, which never holds the URL: it may hold a password."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise InvalidError("the database URL cannot be read: use sqlite:///PATH or postgresql://USER@HOST/NAME") from None
    match url.get_backend_name():
        case "sqlite" if url.database and url.database != ":memory:":
            return url.set(drivername="sqlite+pysqlite")
        case "postgresql":
            return url.set(drivername="postgresql+psycopg")
    raise InvalidError("the database must be sqlite:///PATH (a file) or postgresql://USER@HOST/NAME")


def writing_engine(url: URL, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> Engine:
    """One connection."""
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, "BEGIN IMMEDIATE", busy_timeout_ms, connections=1)
    return _postgres(url, "READ COMMITTED", connections=1)


def reading_engine(url: URL, *, busy_timeout_ms: int = BUSY_TIMEOUT_MS, connections: int = READERS + 1) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite(url, "BEGIN", busy_timeout_ms, connections=connections)
    engine = _postgres(url, "REPEATABLE READ", connections=connections)
    return engine.execution_options(postgresql_readonly=True)


def _sqlite(url: URL, begin: str, busy_timeout_ms: int, *, connections: int) -> Engine:
    arguments: dict[str, Any] = {"timeout": busy_timeout_ms / 1000, "check_same_thread": False}
    engine = create_engine(
        url, connect_args=arguments, pool_size=connections, max_overflow=0, pool_timeout=busy_timeout_ms / 1000
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        _use_wal(cursor, busy_timeout_ms / 1000)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        if begin == "BEGIN":
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _use_wal(cursor: Any, patience: float) -> None:
    """Switches to WAL. SQLite does not wait where two do that at once to a new file, so this does, for `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & PRIMARY != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(WAL_RETRY_SECONDS)
        else:
            return


def _postgres(url: URL, isolation: Any, *, connections: int) -> Engine:
    options = " ".join(
        f"-c {name}={SESSION_TIMEOUT_MS}"
        for name in ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
    )
    arguments = {
        "options": f"{options} -c timezone=UTC",
        "application_name": "muster-hub",
        "connect_timeout": 5,
        "keepalives": 1,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": SESSION_TIMEOUT_MS,
    }
    return create_engine(
        url,
        connect_args=arguments,
        isolation_level=isolation,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=SESSION_TIMEOUT_MS / 1000,
        pool_pre_ping=True,
    )
