"""Migrates a database's schema exactly once, also with concurrent replicas. Copies an SQLite database first.

A current database is recognized by its version alone: Alembic (10 MB) is loaded only for a migration.

During a rolling update, two releases run on one schema. The older release cannot know whether it can run on the new schema. So
each migration records in the database the oldest schema whose release can also run on the new schema.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from hub.store.engine.engine import database_file, reading_engine, translated_errors, writing_engine
from hub.store.engine.errors import is_race, sqlstate
from hub.store.engine.timeouts import DEFAULT, SessionLimits
from hub.store.tables.leaders import SqlFacts
from machinery.errors import InvalidError, UnavailableError
from machinery.runtime.clock import SystemClock
from machinery.runtime.directory import sync

KEPT = 3
"""Number of copies of an SQLite database that are kept next to it."""
PRIVATE = 0o600
HEAD = "0001"
"""The newest schema that this release knows."""
USABLE_FROM = "schema-usable-from"
"""Fact: the oldest schema whose release can run on this database. A migration script may set `usable_from`; the default is the
previous schema."""
ADVISORY_LOCK = 0x6D7573746572
"""PostgreSQL's advisory lock for an upgrade; on SQLite the transaction's write lock suffices."""
SCRIPTS = files("hub.store") / "migrations"
PATIENCE = timedelta(minutes=5)
PAUSE = 0.25
TABLE_LOCK = "2s"
"""Lock time-out for tables. It is short, because other sessions queue behind a waiting ALTER TABLE."""
LOCKED = "55P03"

log = structlog.get_logger(__name__)

Prepare = Callable[[str], object]
"""Called with the database's version before the first migration. An exception prevents the migration."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database. `version` None: the database is empty."""

    version: str | None
    usable_from: str | None = None

    @property
    def is_current(self) -> bool:
        return self.version == HEAD

    @property
    def is_newer(self) -> bool:
        return self.version is not None and self.version > HEAD

    def check(self) -> None:
        """Raises InvalidError when this release cannot run on this newer schema."""
        if self.is_newer and (self.usable_from is None or self.usable_from > HEAD):
            raise InvalidError(
                f'the database has schema "{self.version}", which is newer than "{HEAD}", the newest this release knows, and '
                "this release cannot run on it: run a newer release, or restore a backup that was made before the upgrade"
            )


def schema_of(connection: Connection) -> Schema:
    if not inspect(connection).has_table("alembic_version"):
        return Schema(None)
    version: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return Schema(version, SqlFacts(connection).get(USABLE_FROM) if version else None)


def upgrade(engine: Engine, *, prepare: Prepare | None = None, patience: timedelta = PATIENCE) -> None:
    """Migrate to the newest known schema, or wait while another process migrates.

    Raises InvalidError for a schema that is too new (nothing is changed), UnavailableError after `patience`.
    """
    with engine.begin() as connection:
        if _is_usable(schema_of(connection)):
            return
    from alembic import command  # noqa: F401, PLC0415 - loading takes seconds with little CPU: not within a transaction

    _scripts()
    deadline, logged = time.monotonic() + patience.total_seconds(), ""
    while obstacle := _attempt(engine, prepare):
        if obstacle != logged:
            log.info("waiting to migrate the database", because=obstacle)
        logged = obstacle
        if time.monotonic() > deadline:
            raise UnavailableError(f"the database could not be migrated within {patience.total_seconds():g} s: {obstacle}")
        time.sleep(PAUSE)


def _is_usable(schema: Schema) -> bool:
    schema.check()
    if schema.is_newer:
        log.info("the database has a newer schema, on which this release can run", schema=schema.version, known=HEAD)
    return schema.is_current or schema.is_newer


def _attempt(engine: Engine, prepare: Prepare | None) -> str:
    """Try to migrate. Returns "" if the schema is usable now, or else the reason why a migration is not possible yet."""
    try:
        with _locked(engine) as connection:
            if connection is None:
                return "another replica is migrating it"
            schema = schema_of(connection)
            if not _is_usable(schema):
                _migrate(connection, schema, prepare)
    except DBAPIError as error:
        if sqlstate(error) != LOCKED and not (is_race(error) and sqlstate(error)):
            raise
        return "its tables are in use"
    return ""


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection | None]:
    """Yield a transaction with the migration lock; None if another process holds the lock."""
    with engine.begin() as connection:
        if connection.dialect.name != "postgresql":
            yield connection
            return
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{TABLE_LOCK}'"))
        found = connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK}).scalar_one()
        yield connection if found else None


def pending(version: str | None) -> Sequence[tuple[str, str]]:
    """Return number and title of each migration above `version` (None: of all migrations), in order."""
    return [(script.revision, str(script.doc)) for script in _scripts() if version is None or script.revision > version]


def _migrate(connection: Connection, schema: Schema, prepare: Prepare | None) -> None:
    began = time.monotonic()
    if schema.version is not None:
        if prepare is not None:
            prepare(schema.version)
        _hold_writers(connection)
    raise_to_head(connection)
    if schema.version is not None:
        log.info("database migrated", before=schema.version, schema=HEAD, seconds=round(time.monotonic() - began, 3))


def _hold_writers(connection: Connection) -> None:
    """Block writers until the commit, so that a migration's copy of objects and its triggers leave no gap.

    Replicas of the previous release continue to serve. SQLite has one writer anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT value FROM revision FOR UPDATE"))


def raise_to(connection: Connection, version: str) -> None:
    """Migrate an older or empty schema to `version` in the caller's transaction."""
    from alembic import command  # noqa: PLC0415 - see the module

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def raise_to_head(connection: Connection) -> None:
    """Migrate to the schema of this release, and record which releases can run on it."""
    raise_to(connection, HEAD)
    SqlFacts(connection).set(USABLE_FROM, max(_usable_from(script) for script in _scripts()))


@contextmanager
def migration_lock(engine: Engine) -> Iterator[Connection]:
    """Yield a transaction with the migration lock. Raises UnavailableError when another process holds the lock."""
    with _locked(engine) as connection:
        if connection is None:
            raise UnavailableError("a replica of a hub is migrating the database: wait for its end, and stop the hub")
        yield connection


def _usable_from(script: Any) -> str:
    said: str | None = getattr(script.module, "usable_from", None)
    return said or script.down_revision or script.revision


def _config() -> Any:
    from alembic.config import Config  # noqa: PLC0415 - see the module

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config


def _scripts() -> Sequence[Any]:
    """All migration scripts in order."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see the module

    return sorted(ScriptDirectory.from_config(_config()).walk_revisions(), key=lambda script: script.revision)


def copy_before_migration(database: Path, version: str, now: datetime) -> Path:
    """Copy the committed state to a file next to the database, and remove all but the newest `KEPT` copies.

    Raises UnavailableError and then leaves no file behind.
    """
    copy = database.with_name(f"{database.name}.schema-{version}.{now:%Y%m%dT%H%M%SZ}")
    staged = database.with_name(f".{database.name}.schema.new")  # the next copy replaces that of a process that was killed
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
    with translated_errors(engine):
        upgrade(engine, prepare=prepare, patience=patience)


def schema_at(url: URL) -> Schema:
    """Return the schema. A missing database file is not created. Raises UnavailableError."""
    file = database_file(url)
    if file is not None and not file.exists():
        return Schema(None)
    engine = reading_engine(url, connections=1)
    with translated_errors(engine), engine.connect() as connection:
        return schema_of(connection)
