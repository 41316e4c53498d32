"""SQLAlchemy engines for both databases, configured for durability and for short waits.

SQLite: WAL, `synchronous=FULL`, explicit BEGIN (the driver's implicit one loses updates), BEGIN IMMEDIATE for writers,
read-only connections for readers. PostgreSQL: see `hub.store.engine.postgres`; its driver is loaded only when used.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, bindparam, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError

from hub.store.engine.server_affinity import follow_writer
from hub.store.engine.statements import Statement
from hub.store.engine.timeouts import DEFAULT, DatabaseTimeouts
from machinery.errors import InvalidError

WAL_RETRY_SECONDS = 0.02
PRIMARY = 0xFF
"""Mask for the primary result code of an SQLite error."""
READERS = 4


class _Inserts(Mapping[str, Any]):
    """Loads a dialect when it is first used: PostgreSQL's takes 3 MB."""

    _dialects = ("sqlite", "postgresql")

    def __getitem__(self, dialect: str) -> Any:
        return import_module(f"sqlalchemy.dialects.{dialect}").insert

    def __iter__(self) -> Iterator[str]:
        return iter(self._dialects)

    def __len__(self) -> int:
        return len(self._dialects)


INSERTS = _Inserts()
"""INSERT with ON CONFLICT support, by dialect."""


def upsert(table: Table, dialect: str) -> Any:
    """INSERT of a full row that replaces the row with the same primary key."""
    new = INSERTS[dialect](table).values({column.name: bindparam(column.name) for column in table.columns})
    changed = {column.name: new.excluded[column.name] for column in table.columns if not column.primary_key}
    return new.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)


def parse_url(given: str) -> URL:
    """Parse a database URL. Raises InvalidError; its message never contains the URL, which may hold a password."""
    try:
        if given.startswith("postgres"):
            from hub.store.engine.postgres import make_postgres_url  # noqa: PLC0415 - see the module

            return make_postgres_url(given)
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise InvalidError("the database URL cannot be read: use sqlite:///PATH or postgresql://USER@HOST/NAME") from None
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return url.set(drivername="sqlite+pysqlite")
    raise InvalidError("the database must be sqlite:///PATH (a file) or postgresql://USER@HOST/NAME")


def writing_engine(url: URL, bounds: DatabaseTimeouts = DEFAULT) -> Engine:
    """Engine with one connection for writes."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN IMMEDIATE", bounds.busy_timeout_ms, connections=1)
    return _postgres(url, "READ COMMITTED", bounds, connections=1)


def migrating_engine(url: URL, bounds: DatabaseTimeouts = DEFAULT) -> Engine:
    """Engine with one connection and, on PostgreSQL, no time limit for answers."""
    if is_sqlite(url):
        return writing_engine(url, bounds)
    return _postgres(url, "READ COMMITTED", bounds, connections=1, patient=True)


def reading_engine(url: URL, bounds: DatabaseTimeouts = DEFAULT, *, connections: int = READERS + 1) -> Engine:
    if is_sqlite(url):
        return _sqlite(url, "BEGIN", bounds.busy_timeout_ms, connections=connections)
    engine = _postgres(url, "REPEATABLE READ", bounds, connections=connections)
    return engine.execution_options(postgresql_readonly=True)


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a store."""

    writing: Engine
    reading: Engine


def store_engines(url: URL, bounds: DatabaseTimeouts) -> Engines:
    """Engines of a store. Only writing sessions have the limits of `bounds`: readers hold no locks that others wait for."""
    engines = Engines(writing_engine(url, bounds), reading_engine(url, DatabaseTimeouts(bounds.busy_timeout_ms)))
    follow_writer(engines.reading, engines.writing)
    return engines


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def database_file(url: URL) -> Path | None:
    """Path of an SQLite database; None for PostgreSQL."""
    return Path(str(url.database)) if is_sqlite(url) else None


def _postgres(url: URL, isolation: str, bounds: DatabaseTimeouts, *, connections: int, patient: bool = False) -> Engine:
    from hub.store.engine.postgres import postgres_engine  # noqa: PLC0415 - see the module

    return postgres_engine(url, isolation, bounds.session, connections=connections, patient=patient)


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

    statement = Statement(text(begin))

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        statement.run(connection, {})

    return engine


def _use_wal(cursor: Any, patience: float) -> None:
    """Switch to WAL. SQLite fails at once when two processes do this to a new file, so retry for `patience` seconds."""
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
