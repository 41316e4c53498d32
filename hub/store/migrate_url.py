"""Migrates or inspects the schema of a database at a URL."""

from datetime import timedelta
from functools import partial

from sqlalchemy import URL

from hub.store.backup.schema_copy import copy_before_migration
from hub.store.engine.engine import database_file, migrating_engine, reading_engine
from hub.store.engine.errors import translated
from hub.store.engine.timeouts import DEFAULT, DatabaseTimeouts
from hub.store.migrate import PATIENCE, Schema, schema_of, upgrade
from machinery.runtime.clock import SystemClock


def migrate_database(url: URL, bounds: DatabaseTimeouts = DEFAULT, *, patience: timedelta = PATIENCE) -> None:
    """Migrate the schema; an SQLite database is copied first. Raises InvalidError, UnavailableError."""
    engine = migrating_engine(url, bounds)
    file = database_file(url)
    prepare = None if file is None else partial(copy_before_migration, file, now=SystemClock().now())
    try:
        upgrade(engine, prepare=prepare, patience=patience)
    except Exception as error:
        raise translated(error) from error
    finally:
        engine.dispose()


def look_at_schema(url: URL, bounds: DatabaseTimeouts = DEFAULT) -> Schema:
    """The schema, read without creating a missing database file. Raises UnavailableError."""
    file = database_file(url)
    if file is not None and not file.exists():
        return Schema(None)
    engine = reading_engine(url, bounds, connections=1)
    try:
        with engine.connect() as connection:
            return schema_of(connection)
    except Exception as error:
        raise translated(error) from error
    finally:
        engine.dispose()
