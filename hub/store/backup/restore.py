"""A backup's rows in a database that has no hub, all of them or none, and what has to be otherwise than it was.

The rows go into the schema of the release that made the backup, and that is then migrated as any other. An embedded database is
made beside its place and put there when it is whole; the one that was there is kept beside it. On PostgreSQL all is one
transaction. What was true of processes alone (replicas, sessions, marks, the leader) is left out.

What was served between the backup and the restore is unknown, so the log goes on far above what can have been: who watched, or
read a list, is told that it is gone (410), and reads anew.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import URL, Connection, Table, delete, func, insert, select, text, update

from hub.ports import Transaction
from hub.store import schema
from hub.store.backup.archive import Archive
from hub.store.backup.backup import PATIENT, tables_of
from hub.store.changelog.retention import ChangeLogRetention
from hub.store.engine.engine import database_file, migrating_engine, parse_url
from hub.store.engine.errors import translated
from hub.store.engine.instants import from_micros
from hub.store.engine.row_format import RowForm
from hub.store.engine.timeouts import DEFAULT
from hub.store.migrate import HEAD, raise_to, raise_to_head, schema_of, sole_migrator
from hub.store.query.inventory import inventory
from hub.store.writer.transaction import SqlTransaction
from machinery.errors import AlreadyExistsError, InvalidError, UnavailableError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock
from machinery.runtime.directory import sync

T = TypeVar("T")

OF_PROCESSES = frozenset(("replicas", "sessions", "hearing", "authority_followers"))
"""Tables that tell of processes, none of which is there any more."""
RATE = 20_000
"""Revisions in a second: more than any database here takes."""
TERMS = 1_000_000
"""More than a lock changes hands while it is not looked at."""
ALIVE = timedelta(seconds=10)
"""A replica that was seen so long ago at most may still write."""
ALL = timedelta(days=1)
"""Ahead of now: whatever the clocks say, all that is in the log is older."""
PORTION = 500

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Where to. `replaces`: what is there may go; `above`: a revision that is known to have been served."""

    url: str
    replaces: bool = False
    above: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """`revision`: where the log goes on; `former`: what became of the database that was there before."""

    revision: int
    former: Path | None = None


def restore_tables(archive: Archive, target: RestoreTarget, change: Callable[[Transaction], T]) -> tuple[Restored, T]:
    """The backup's hub is in the database, with what `change` makes of it; else nothing has changed.

    Raises AlreadyExistsError (there is a hub), InvalidError, UnavailableError (also: a replica of a hub still runs on it).
    """
    if archive.manifest.schema > HEAD:
        raise InvalidError(
            f'the backup has schema "{archive.manifest.schema}" of a newer release ({archive.manifest.program}), '
            f'and this one knows "{HEAD}": restore it with that release'
        )
    url = parse_url(target.url)
    file = database_file(url)
    try:
        return _beside(archive, target, file, change) if file is not None else _within(archive, target, url, change)
    except Exception as error:
        raise translated(error) from error


def _beside(archive: Archive, target: RestoreTarget, file: Path, change: Callable[[Transaction], T]) -> tuple[Restored, T]:
    above = target.above
    if file.exists():
        _check_replaced(target, f"the database {file}")
        above = max(above, _revision_of_file(file))
    staged = file.with_name(f".{file.name}.restored")
    try:
        _remove(staged)
        staged.touch(mode=0o600)
        engine = migrating_engine(URL.create("sqlite+pysqlite", database=str(staged)), DEFAULT)
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
    engine = migrating_engine(url, DEFAULT)
    try:
        with sole_migrator(engine) as connection:
            for setting in PATIENT:
                connection.execute(text(setting))
            above = target.above
            if schema_of(connection).version is not None:
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
            f"{what} has a hub already: name another (--data-dir, HUB_DATABASE_URL), or let it go with --replace"
        )


def _check_left(connection: Connection) -> None:
    """No replica was seen just now."""
    now: datetime = connection.execute(text("SELECT now()")).scalar_one()
    seen = schema.replicas.c.seen_at
    for name, moment in connection.execute(select(schema.replicas.c.name, seen).order_by(seen.desc()).limit(1)):
        if now.astimezone(UTC) - from_micros(moment) < ALIVE:
            raise UnavailableError(
                f'replica "{name}" of a hub runs on this database: stop all replicas, wait {ALIVE.seconds} s, and restore again'
            )


def _drop(connection: Connection) -> None:
    if schema_of(connection).is_newer:
        raise InvalidError("the database there is of a newer release: restore with that one, or into an empty database")
    for table in reversed(tables_of(connection)):
        table.drop(connection)
    inventory.drop(connection, checkfirst=True)
    connection.execute(text("DROP TABLE alembic_version"))


def _fill(connection: Connection, archive: Archive, above: int, change: Callable[[Transaction], T]) -> tuple[int, T]:
    """The tables, and in the same transaction all that has to be otherwise; where the log goes on."""
    raise_to(connection, archive.manifest.schema)
    _insert(connection, archive)
    raise_to_head(connection)
    now = _now(connection)
    revision = _go_on(connection, archive, above, now)
    form = RowForm(None, archive.manifest.group_suffix)
    transaction = SqlTransaction(connection, now, form=form, ringer="restore", writable=True)
    made = change(transaction)
    transaction.flush()
    return revision, made


def _insert(connection: Connection, archive: Archive) -> None:
    entries = {entry.name: entry for entry in archive.manifest.tables}
    for table in tables_of(connection):
        entry = entries.pop(table.name, None)
        if entry is None or table.name in OF_PROCESSES:
            continue
        connection.execute(delete(table))  # what a migration puts into a new database
        rows = archive.rows(entry)
        while portion := list(islice(rows, PORTION)):
            connection.execute(insert(table), portion)
        _continue(connection, table)
    if entries:
        raise InvalidError(f"the backup has tables that its schema does not: {', '.join(sorted(entries))}")


def _continue(connection: Connection, table: Table) -> None:
    """Numbers that PostgreSQL gives by itself go on after those that were restored."""
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
    """The log continues where nobody can have been, and everything below is compacted; so do the terms of leaders."""
    since = max(now - parse_time(archive.manifest.made), timedelta())
    far = max(archive.manifest.revision, above) + RATE * (int(since.total_seconds()) + 60)
    retention = ChangeLogRetention(connection, now + ALL)
    while retention.compact(now + ALL, PORTION).more:
        pass
    connection.execute(update(schema.revision).values(value=far, compacted=far))
    connection.execute(update(schema.history).values(compacted=far))  # the past before the backup can be read still
    term = schema.terms.c.term
    connection.execute(update(schema.terms).values(term=term + TERMS))
    connection.execute(update(schema.leaders).values(holder="", version=schema.leaders.c.version + 1))
    return far


def _now(connection: Connection) -> datetime:
    if connection.dialect.name == "sqlite":
        return SystemClock().now()
    now: datetime = connection.execute(text("SELECT now()")).scalar_one()
    return now.astimezone(UTC)


def _revision_of_file(file: Path) -> int:
    """Of the database that is there, as far as it can be read: it may be what makes the restore necessary."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        found: Any = connection.execute("SELECT value FROM revision").fetchone()
        return int(found[0]) if found else 0
    log.warning("the database that was there cannot be read", file=str(file))
    return 0


def _set_aside(file: Path) -> Path | None:
    """What was there, with its log, also under a name that tells when; None: nothing was.

    A crash at any moment leaves a database in its place: what was there, or what is restored. Without its log, once that is
    kept elsewhere: SQLite would take it for the log of the database that comes.
    """
    if not file.exists():
        return None
    name = f"{file.name}.before-restore.{SystemClock().now():%Y%m%dT%H%M%SZ}"
    names = (file.with_name(f"{name}-{number}" if number else name) for number in count())
    former = next(each for each in names if not each.exists())
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as whole:  # a damaged one keeps its log
        whole.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            _doubled(file.with_name(file.name + ending), former.with_name(former.name + ending))
    sync(file.parent)  # from here on it is there twice
    for ending in ("-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    return former


def _doubled(file: Path, other: Path) -> None:
    """The same file by another name; a copy, where the file system knows no links."""
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
