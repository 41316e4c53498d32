"""SQLAlchemy engines for both databases, configured for durability and short waits, and their transactions.

SQLite: WAL, `synchronous=FULL`, explicit BEGIN (the driver's implicit one loses updates), BEGIN IMMEDIATE for writers,
read-only connections for readers. PostgreSQL: see `hub.store.engine.postgres`; its driver is loaded only when used.

The writer detects a fail-over of the database, because its server no longer accepts writes or no longer answers. A reading
connection does not: it may return old data from a server that has become a standby or is cut off. So a reading connection that
is older than the writer's connection is replaced before its next use.

If the answer to a commit is lost, the commit may have succeeded. A second run of the use case could apply it twice. So the
caller gets UnknownOutcomeError and has to read the current state. The same applies if PostgreSQL stopped waiting for its
synchronous standby: the commit then exists on only one server.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, bindparam, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError

from hub.store.engine.errors import sqlstate, translated
from hub.store.engine.statements import Statement
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.clock import Clock, SystemClock

WAL_RETRY_SECONDS = 0.02
BUSY_SECONDS = 5.0
"""Time for which a session waits for the lock of an SQLite file."""
PRIMARY = 0xFF
"""Mask for the primary result code of an SQLite error."""
READERS = 4


def insert_into(table: Table, dialect: str) -> Any:
    """Return an INSERT with ON CONFLICT support. A dialect is imported at its first use, because PostgreSQL's needs 3 MB."""
    return import_module(f"sqlalchemy.dialects.{dialect}").insert(table)


def upsert(table: Table, dialect: str) -> Any:
    """Return an INSERT of a full row that replaces the row with the same primary key."""
    new = insert_into(table, dialect).values({column.name: bindparam(column.name) for column in table.columns})
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


def present_url(given: str) -> URL:
    """Parse a URL of a database to back up. Raises InvalidError, also if an SQLite file is missing: to connect creates it."""
    if is_sqlite(url := parse_url(given)) and not Path(str(url.database)).exists():
        raise InvalidError(f"there is nothing to back up: the database {url.database} does not exist")
    return url


def writing_engine(url: URL, limits: SessionLimits = DEFAULT, *, patient: bool = False) -> Engine:
    """Return an engine with one connection for writes. `patient`: no time limit for PostgreSQL's answers, for migrations."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN IMMEDIATE", connections=1)
    return _postgres(url, "READ COMMITTED", limits, connections=1, patient=patient)


def reading_engine(url: URL, *, connections: int = READERS + 1) -> Engine:
    """Return an engine for reads. It has the default limits, because readers hold no locks that other replicas wait for."""
    if is_sqlite(url):
        return _sqlite(url, "BEGIN", connections=connections)
    return _postgres(url, "REPEATABLE READ", DEFAULT, connections=connections).execution_options(postgresql_readonly=True)


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def database_file(url: URL) -> Path | None:
    """Return the path of an SQLite database; None for PostgreSQL."""
    return Path(str(url.database)) if is_sqlite(url) else None


def _postgres(url: URL, isolation: str, limits: SessionLimits, *, connections: int, patient: bool = False) -> Engine:
    from hub.store.engine.postgres import postgres_engine  # noqa: PLC0415 - see the module

    return postgres_engine(url, isolation, limits, connections=connections, patient=patient)


def _sqlite(url: URL, begin: str, *, connections: int) -> Engine:
    arguments: dict[str, Any] = {"timeout": BUSY_SECONDS, "check_same_thread": False}
    engine = create_engine(url, connect_args=arguments, pool_size=connections, max_overflow=0, pool_timeout=BUSY_SECONDS)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        _use_wal(cursor, BUSY_SECONDS)
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
    """Switch to WAL. SQLite fails if two processes do this with a new file, so retry for `patience` seconds."""
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


MADE = "muster-made-after"


def follow_writer(reading: Engine, writing: Engine) -> None:
    """When a connection of `reading` is checked out, replace it if it is older than the newest connection of `writing`."""
    newest = 0

    @event.listens_for(writing, "connect")
    def written(_connection: Any, _record: Any) -> None:
        nonlocal newest
        newest += 1

    @event.listens_for(reading, "connect")
    def made(_connection: Any, record: Any) -> None:
        record.info[MADE] = newest

    @event.listens_for(reading, "checkout")
    def used(_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info[MADE] != newest:
            raise DisconnectionError("the writer has another connection by now")  # the pool reconnects


UNKNOWN = "the database did not confirm whether this was written: check the current state before you retry"
BAD_DISK = (
    "the disk of the database reports errors, so it is unknown whether this was written: free space or repair it, "
    "and check the current state before you retry"
)
ONE_SERVER_ONLY = (
    "this was written on one database server, and its standby did not confirm it in time: "
    "check the current state before you retry"
)
_ENDED_BY_SERVER = frozenset(("57P01", "57P02", "57P03"))
"""The server ended the session; the error does not show whether this was before or after the commit."""


def database_time(connection: Connection, clock: Clock | None = None) -> datetime:
    """Return `clock`'s time. Without a clock: PostgreSQL's at the start of the transaction, or the machine's on SQLite."""
    if clock is None and connection.dialect.name == "sqlite":
        clock = SystemClock()
    if clock is not None:
        return clock.now()
    now: datetime = connection.execute(text("SELECT now()")).scalar_one()
    return now.astimezone(UTC)


@contextmanager
def translated_errors(engine: Engine | None = None) -> Iterator[None]:
    """Convert database errors of the block to domain errors. Dispose of the engine at the end."""
    try:
        yield
    except Exception as error:
        raise translated(error) from error
    finally:
        if engine is not None:
            engine.dispose()


class UnknownOutcomeError(UnavailableError):
    """The write may or may not have been committed."""


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction. Raises UnknownOutcomeError if the commit is in doubt; other errors: no write."""
    with engine.connect() as connection:
        with connection.begin() as begun:
            yield connection
            raw: Any = connection.connection.dbapi_connection
            try:
                begun.commit()
            except DBAPIError as error:
                if is_in_doubt(error, connection):
                    raise UnknownOutcomeError(BAD_DISK if connection.dialect.name == "sqlite" else UNKNOWN) from error
                raise
        if getattr(raw, "unconfirmed", False):
            connection.invalidate()  # the next transaction connects anew and finds the server that accepts writes
            raise UnknownOutcomeError(ONE_SERVER_ONLY)


def is_in_doubt(error: DBAPIError, connection: Connection) -> bool:
    state = sqlstate(error)
    if connection.dialect.name == "sqlite":
        return "disk I/O error" in str(error.orig)
    return not state or state.startswith("08") or state in _ENDED_BY_SERVER
