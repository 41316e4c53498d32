"""Migration of the database at a URL, with a copy of an SQLite database before its schema changes."""

import os
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import URL

from hub.store.engine.engine import database_file, reading_engine, translating, writing_engine
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from hub.store.migrate import PATIENCE, Schema, schema_of, upgrade
from machinery.errors import UnavailableError
from machinery.runtime.clock import SystemClock
from machinery.runtime.directory import sync

KEPT = 3
PRIVATE = 0o600

log = structlog.get_logger(__name__)


def copy_before_migration(database: Path, version: str, now: datetime) -> Path:
    """Copy the committed state beside the database and remove all but the newest `KEPT` copies.

    Raises UnavailableError and then leaves no file behind.
    """
    copy = database.with_name(f"{database.name}.schema-{version}.{now:%Y%m%dT%H%M%SZ}")
    staged = copy.with_name(f".{copy.name}.new")
    try:
        staged.unlink(missing_ok=True)
        os.close(os.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, PRIVATE))
        _copy(database, staged)
        staged.replace(copy)
        sync(copy.parent)
        for old in copies(database)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        staged.unlink(missing_ok=True)
        raise UnavailableError(
            f"the database cannot be copied to {copy} before it is migrated, so it is not migrated: {error}; make room there"
        ) from error
    log.info("database copied before its migration", copy=str(copy), schema=version)
    return copy


def copies(database: Path) -> list[Path]:
    """The copies, oldest first."""
    found = database.parent.glob(f"{database.name}.schema-*")
    return sorted(found, key=lambda path: path.name.rpartition(".")[2])


def _copy(database: Path, staged: Path) -> None:
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source:
        with closing(sqlite3.connect(staged)) as target:
            source.backup(target)
        sync(staged)


def migrate_database(url: URL, limits: SessionLimits = DEFAULT, *, patience: timedelta = PATIENCE) -> None:
    """Migrate the schema; an SQLite database is copied first. Raises InvalidError, UnavailableError."""
    engine = writing_engine(url, limits, patient=True)
    file = database_file(url)
    prepare = None if file is None else partial(copy_before_migration, file, now=SystemClock().now())
    with translating(engine):
        upgrade(engine, prepare=prepare, patience=patience)


def schema_at(url: URL) -> Schema:
    """The schema, read without creating a missing database file. Raises UnavailableError."""
    file = database_file(url)
    if file is not None and not file.exists():
        return Schema(None)
    engine = reading_engine(url, connections=1)
    with translating(engine), engine.connect() as connection:
        return schema_of(connection)
