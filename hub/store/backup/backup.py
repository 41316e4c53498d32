"""Writes all tables, as of one instant. The read-only transaction blocks no writer.

SQLite keeps the snapshot in its write-ahead log, PostgreSQL in a REPEATABLE READ transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, LargeBinary, MetaData, Table, inspect, select, text

from hub.ports import BACKUP_MADE
from hub.store import schema
from hub.store.backup.archive import ArchiveWriter
from hub.store.engine.engine import database_time, is_sqlite, present_url, reading_engine, translated_errors, writing_engine
from hub.store.migrate import schema_of
from hub.store.query.inventory import inventory
from hub.store.tables.leaders import SqlFacts
from machinery.errors import InvalidError
from machinery.meta.timestamps import format_micro_time

PORTION = 500
"""Rows in memory at the same time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the database when a backup reads its tables. `facts`: rows of the table `facts`, by name."""

    made: str
    schema: str
    revision: int
    facts: dict[str, str]


def write_tables(url: str, writer: ArchiveWriter) -> Snapshot:
    """Write every table of the database to `writer`. Raises InvalidError (no database, or a newer schema), UnavailableError."""
    place = present_url(url)
    if is_sqlite(place):
        engine = reading_engine(place, connections=1)
    else:  # without a time-out of statements
        engine = writing_engine(place, patient=True).execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )
    with translated_errors(engine), engine.connect() as connection, connection.begin():
        snapshot = _snapshot(connection)
        for table in tables_of(connection):
            columns = [str(column.name) for column in table.columns]
            binary = [str(column.name) for column in table.columns if isinstance(column.type, LargeBinary)]
            rows = connection.execution_options(yield_per=PORTION).execute(select(table))
            writer.table(table.name, columns, binary, rows)
        return snapshot


def note_backup(url: str, made: str) -> None:
    """Record the time of the newest backup in the database. Raises UnavailableError."""
    engine = writing_engine(present_url(url), patient=True)
    with translated_errors(engine), engine.begin() as connection:
        SqlFacts(connection).set(BACKUP_MADE, made)


def set_patient(connection: Connection) -> None:
    """Let the statements of a transaction on PostgreSQL, and the pauses between them, take any time."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))


def tables_of(connection: Connection) -> Sequence[Table]:
    """Return the existing tables, each after the tables that it references. Excludes the inventory, which triggers fill."""
    there = set(inspect(connection).get_table_names()) - {inventory.name}
    found = MetaData()
    found.reflect(connection, only=[name for name in schema.metadata.tables if name in there])
    return found.sorted_tables


def _snapshot(connection: Connection) -> Snapshot:
    if connection.dialect.name == "postgresql":
        set_patient(connection)
    made = database_time(connection)  # the transaction sees all commits before its first statement
    found = schema_of(connection)
    found.check()
    if found.version is None:
        raise InvalidError("there is nothing to back up: this database has no tables of a hub")
    if found.is_newer:
        raise InvalidError(f'the database has schema "{found.version}" of a newer release: back it up with that one')
    facts = {row.name: row.value for row in connection.execute(select(schema.facts))}
    revision: int = connection.execute(select(schema.revision.c.value)).scalar_one()
    return Snapshot(format_micro_time(made), found.version, revision, facts)
