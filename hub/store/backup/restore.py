"""Restores a backup into a database, completely or not at all.

The rows go into the schema of the release that made the backup; then the schema is migrated as usual. On SQLite, a complete new
database replaces the old database, which is kept under another name. On PostgreSQL the whole restore is one transaction. Tables
about processes (replicas, their CA states, sessions, marks) are not restored, and no replica is the leader.

It is unknown which revisions the hub served between backup and restore. So the change log continues far above them: clients
that resume a watch or a list get 410 (Expired) and list again.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import URL, Connection, Table, delete, func, insert, select, text, update

from hub.ports import HUB_ID, Transaction
from hub.store import schema
from hub.store.backup.archive import Archive
from hub.store.backup.backup import set_patient, tables_of
from hub.store.changelog.retention import ChangeLogRetention
from hub.store.engine.encoding import RowForm, from_micros
from hub.store.engine.engine import database_file, database_time, parse_url, translated_errors, writing_engine
from hub.store.migrate import HEAD, migration_lock, raise_to, raise_to_head, schema_of
from hub.store.query.inventory import inventory
from hub.store.writer.transaction import SqlTransaction
from machinery.errors import AlreadyExistsError, InvalidError, UnavailableError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock
from machinery.runtime.directory import sync

T = TypeVar("T")

OF_PROCESSES = frozenset(("replicas", "sessions", "hearing", "authority_followers"))
"""Names of the tables about processes of the former hub. A restore leaves these tables empty."""
RATE = 20_000
"""Revisions to skip for each second since the backup: more than a database writes per second."""
TERMS = 1_000_000
"""A restore adds this number to the leader term: more than the number of leader changes between backup and restore."""
ALIVE = timedelta(seconds=10)
"""Time within which a replica that has written its row may still write."""
ALL = timedelta(days=1)
"""Added to the current time, so that all rows of the log count as old, even if clocks differ."""
PORTION = 500

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """The database to fill. `replaces`: it may already have a hub. `above`: a revision that the lost hub has served."""

    url: str
    replaces: bool = False
    above: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore. The change log continues at `revision`. `former`: new path of a replaced SQLite database."""

    revision: int
    former: Path | None = None


def restore_tables(archive: Archive, target: RestoreTarget, change: Callable[[Transaction], T]) -> tuple[Restored, T]:
    """Restore the backup, apply `change` in the same transaction, and return both results. On an error nothing has changed.

    Raises AlreadyExistsError (there is a hub), InvalidError, UnavailableError (also if a replica still uses the database).
    """
    if archive.manifest.schema > HEAD:
        raise InvalidError(
            f'the backup has schema "{archive.manifest.schema}" of a newer release ({archive.manifest.program}), '
            f'and this one knows "{HEAD}": restore it with that release'
        )
    url = parse_url(target.url)
    file = database_file(url)
    with translated_errors():
        return _beside(archive, target, file, change) if file is not None else _within(archive, target, url, change)


def _beside(archive: Archive, target: RestoreTarget, file: Path, change: Callable[[Transaction], T]) -> tuple[Restored, T]:
    above = target.above
    if file.exists():
        revision, has_hub = _known_of_file(file)
        if has_hub:
            _check_replaced(target, f"the database {file}")
        above = max(above, revision)
    staged = file.with_name(f".{file.name}.restored")
    try:
        _remove(staged)
        staged.touch(mode=0o600)
        engine = writing_engine(URL.create("sqlite+pysqlite", database=str(staged)))
        try:
            with engine.begin() as connection:
                revision, made = _fill(connection, archive, above, change)
        finally:
            engine.dispose()
        with closing(sqlite3.connect(staged)) as whole:
            whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        former = _set_aside(file)
        staged.replace(file)
        sync(file.parent)
    finally:
        _remove(staged)
    return Restored(revision, former), made


def _within(archive: Archive, target: RestoreTarget, url: URL, change: Callable[[Transaction], T]) -> tuple[Restored, T]:
    engine = writing_engine(url, patient=True)
    try:
        with migration_lock(engine) as connection:
            set_patient(connection)
            above = target.above
            if schema_of(connection).version is not None:
                if connection.execute(select(schema.facts).where(schema.facts.c.name == HUB_ID)).first() is not None:
                    _check_replaced(target, "the database")
                _check_left(connection)
                above = max(above, connection.execute(select(schema.revision.c.value)).scalar_one())
                _drop(connection)
            revision, made = _fill(connection, archive, above, change)
        return Restored(revision), made
    finally:
        engine.dispose()


def _check_replaced(target: RestoreTarget, what: str) -> None:
    if not target.replaces:
        raise AlreadyExistsError(
            f"{what} has a hub already: name another (--data-dir, HUB_DATABASE_URL), or replace it with --replace"
        )


def _check_left(connection: Connection) -> None:
    """Raises UnavailableError if a replica was seen within ALIVE."""
    now = database_time(connection)
    seen = schema.replicas.c.seen_at
    for name, moment in connection.execute(select(schema.replicas.c.name, seen).order_by(seen.desc()).limit(1)):
        if now - from_micros(moment) < ALIVE:
            raise UnavailableError(
                f'replica "{name}" of a hub runs on this database: stop all replicas, wait {ALIVE.seconds} s, and restore again'
            )


def _drop(connection: Connection) -> None:
    if schema_of(connection).is_newer:
        raise InvalidError(
            "the existing database belongs to a newer release: restore into an empty database, and start the hub with that one"
        )
    for table in reversed(tables_of(connection)):
        table.drop(connection)
    inventory.drop(connection, checkfirst=True)
    connection.execute(text("DROP TABLE alembic_version"))


def _fill(connection: Connection, archive: Archive, above: int, change: Callable[[Transaction], T]) -> tuple[int, T]:
    """Create and fill the tables and apply `change`, in one transaction. Returns the revision where the log continues."""
    raise_to(connection, archive.manifest.schema)
    _insert(connection, archive)
    raise_to_head(connection)
    now = database_time(connection)
    revision = _go_on(connection, archive, above, now)
    form = RowForm(None, archive.manifest.group_suffix)
    transaction = SqlTransaction(connection, now, form=form, sender="restore", writable=True)
    transaction.agent_sessions.end_all()  # heartbeats are restored with the sessions that they belonged to
    made = change(transaction)
    transaction.flush()
    return revision, made


def _insert(connection: Connection, archive: Archive) -> None:
    entries = {entry.name: entry for entry in archive.manifest.tables}
    for table in tables_of(connection):
        entry = entries.pop(table.name, None)
        if entry is None or table.name in OF_PROCESSES:
            continue
        connection.execute(delete(table))  # rows that migrations put into a new database
        rows = archive.rows(entry)
        while portion := list(islice(rows, PORTION)):
            connection.execute(insert(table), portion)
        _continue(connection, table)
    if entries:
        raise InvalidError(f"the backup has tables that its schema does not: {', '.join(sorted(entries))}")


def _continue(connection: Connection, table: Table) -> None:
    """Set PostgreSQL's sequences so that they continue after the restored numbers."""
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        sequence = connection.execute(
            text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": table.name, "column": column.name}
        ).scalar_one_or_none()
        last = connection.execute(select(func.max(column))).scalar_one_or_none() if sequence else None
        if last is not None:
            connection.execute(select(func.setval(sequence, last)))


def _go_on(connection: Connection, archive: Archive, above: int, now: datetime) -> int:
    """Continue the log far above all served revisions, compact everything below, and raise the leader terms."""
    since = max(now - parse_time(archive.manifest.made), timedelta())
    far = max(archive.manifest.revision, above) + RATE * (int(since.total_seconds()) + 60)
    retention = ChangeLogRetention(connection, now + ALL)
    while retention.compact(now + ALL, limit=PORTION).more:
        pass
    retention.skip_to(far)  # history from before the backup stays readable
    term = schema.terms.c.term
    connection.execute(update(schema.terms).values(term=term + TERMS))
    connection.execute(update(schema.leaders).values(holder="", version=schema.leaders.c.version + 1))
    return far


def _known_of_file(file: Path) -> tuple[int, bool]:
    """Revision of the database to replace, and whether it has a hub. (0, False) without tables; (0, True) if unreadable."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            return 0, False
        found: Any = connection.execute("SELECT value FROM revision").fetchone()
        hub = connection.execute("SELECT 1 FROM facts WHERE name = ?", (HUB_ID,)).fetchone()
        return (int(found[0]) if found else 0), hub is not None
    log.warning("the previous database cannot be read", file=str(file))
    return 0, True


def _set_aside(file: Path) -> Path | None:
    """Keep the old database and its WAL under a name with the current time. Returns the new path; None: there was no database.

    After a crash at any moment, the old or the restored database is complete at the path. The WAL is removed from the old path
    once it is copied, because SQLite would apply it to the restored database.
    """
    if not file.exists():
        return None
    name = f"{file.name}.before-restore.{SystemClock().now():%Y%m%dT%H%M%SZ}"
    names = (file.with_name(f"{name}-{number}" if number else name) for number in count())
    former = next(each for each in names if not each.exists())
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as whole:  # a damaged database keeps its WAL
        whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            _doubled(file.with_name(file.name + ending), former.with_name(former.name + ending))
    sync(file.parent)  # from here on there are two copies
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    return former


def _doubled(file: Path, other: Path) -> None:
    """Hard-link the file, or copy it on file systems without links."""
    try:
        os.link(file, other)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        shutil.copy2(file, other)
        with other.open("rb") as copied:
            os.fsync(copied.fileno())


def _remove(file: Path) -> None:
    for ending in ("", "-wal", "-shm", "-journal"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
