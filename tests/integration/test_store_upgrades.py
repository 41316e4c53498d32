"""Databases that earlier releases left: each is upgraded with everything in it, and the release before can go on using it."""

import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Engine, MetaData, event, insert, inspect, select, text
from structlog.testing import capture_logs

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.engine.timeouts import SessionLimits
from hub.store.migrate import (
    ADVISORY_LOCK,
    HEAD,
    KEPT,
    SCRIPTS,
    copies,
    copy_before_migration,
    migrate_database,
    schema_of,
    upgrade,
)
from machinery.errors import UnavailableError
from machinery.identity import ClusterName, CredentialId
from machinery.meta.objects import Key
from tests.fakes.databases import SqlDatabase, sqlite_database
from tests.fixtures.postgres import Databases

FIXTURES = Path(__file__).parents[1] / "fixtures" / "databases"
LEFT = sorted(FIXTURES.glob("v*.sql"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = SessionLimits(timedelta(seconds=1))
PATIENT = SessionLimits(timedelta(minutes=1))
"""A server ends sessions that stand still in a transaction, and those of a machine that is busy seem to."""
LOCK = text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")


def left_behind(path: Path, dump: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump.read_text())


def migrate_to(connection: Connection, version: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def everything(tx: Transaction) -> dict[str, object]:
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge"))
    credential = tx.credentials.by_id(CredentialId("0123456789abcdef"))
    beat = tx.heartbeats.of(ClusterName("edge"))
    assert cluster is not None
    assert credential is not None
    assert beat is not None
    return {
        "cluster": (cluster.document["metadata"]["labels"], cluster.revision),
        "log": [(change.revision, change.actor) for change in tx.changes.since(0)],
        "certificates": [record.agent for record in tx.certificates.of_cluster(ClusterName("edge"))],
        "credential": (credential.cluster, credential.created_by, tx.credentials.spent(credential.id)),
        "token": credential.token_hash,
        "beat": (beat.available, beat.agent_version),
        "hub": tx.facts.get("hub-id"),
    }


EVERYTHING = {
    "cluster": ({"region": "eu"}, 1),
    "log": [(1, "ann")],
    "certificates": ["a1"],
    "credential": ("edge", "ann", 1),
    "beat": (True, "0.1.0"),
    "hub": "7f1f5f8e-3f3a-4a53-9d52-0f5b1f0c7a11",
}
TOKENS = {"v0001": None, "v0005": "abc"}
"""The hash of the credential's token; those of the first schema are certificates."""


async def test_a_database_of_every_earlier_schema_is_upgraded_with_all_that_is_in_it(tmp_path: Path) -> None:
    for dump in LEFT:
        folder = tmp_path / dump.stem
        folder.mkdir()
        database = sqlite_database(folder)
        left_behind(folder / "hub.db", dump)
        with capture_logs() as logged:
            async with database.opened(None) as store:
                assert await store.read(everything) == EVERYTHING | {"token": TOKENS[dump.stem]}, dump
        (copy,) = copies(folder / "hub.db")
        assert [line["copy"] for line in logged if line["event"] == "database copied before its migration"] == [str(copy)]
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        with closing(sqlite3.connect(copy)) as connection:
            version = connection.execute("SELECT version_num FROM alembic_version").fetchall()
            assert version == [(dump.stem.removeprefix("v"),)]
            assert connection.execute("SELECT name FROM objects").fetchall() == [("edge",)]
        async with database.opened(None):
            assert copies(folder / "hub.db") == [copy], "there is nothing to copy for"


@pytest.mark.postgres
async def test_so_is_one_on_postgresql(tmp_path: Path, postgres_databases: Databases) -> None:
    for dump in LEFT:
        left_behind(tmp_path / f"{dump.stem}.db", dump)
        with postgres_databases.empty() as url:
            with (
                opened(f"sqlite:///{tmp_path}/{dump.stem}.db") as old,
                opened(url) as new,
                old.connect() as source,
                new.begin() as target,
            ):
                migrate_to(target, dump.stem.removeprefix("v"))
                copy_rows(source, target)
            async with SqlDatabase(url).opened(None) as store:
                assert await store.read(everything) == EVERYTHING | {"token": TOKENS[dump.stem]}, dump


def copy_rows(source: Connection, target: Connection) -> None:
    old, new = MetaData(), MetaData()
    old.reflect(source)
    new.reflect(target)
    for table in new.sorted_tables:
        if table.name in {"alembic_version", "revision"}:
            continue
        rows = [dict(row._mapping) for row in source.execute(select(old.tables[table.name]))]
        if rows:
            target.execute(insert(table), rows)
    target.execute(text("UPDATE revision SET value = 1"))


@contextmanager
def opened(url: str, limits: SessionLimits = PATIENT) -> Iterator[Engine]:
    engine = writing_engine(parse_url(url), limits, patient=True)
    try:
        yield engine
    finally:
        engine.dispose()


def test_a_migration_only_adds_so_that_the_release_before_can_run_on_it(tmp_path: Path) -> None:
    """No table, column or index goes, and whatever is new in a table that was there can be left out of an INSERT.

    Unless the migration itself says that no release before it can run on the database.
    """
    alone = {script.revision for script in migrations() if getattr(script.module, "usable_from", None) == script.revision}
    with opened(f"sqlite:///{tmp_path}/hub.db") as engine, engine.begin() as connection:
        before: dict[str, dict[str, str]] = {}
        for number in range(1, int(HEAD) + 1):
            migrate_to(connection, f"{number:04}")
            after = tables(connection)
            if f"{number:04}" in alone:
                before = after
                continue
            assert before.keys() <= after.keys(), number
            for name, columns in before.items():
                assert columns.items() <= after[name].items(), (number, name)
                new = {column: after[name][column] for column in after[name].keys() - columns.keys()}
                needed = [column for column, kind in new.items() if "NOT NULL" in kind and "DEFAULT" not in kind]
                assert not needed, (number, name)
            before = after


def migrations() -> Iterator[Any]:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    return ScriptDirectory.from_config(config).walk_revisions()


def tables(connection: Connection) -> dict[str, dict[str, str]]:
    """By table and column, what it is."""
    found = MetaData()
    found.reflect(connection)
    return {table.name: {column.name: described(column) for column in table.columns} for table in found.sorted_tables}


def described(column: Column[object]) -> str:
    nullable = "" if column.nullable else " NOT NULL"
    return f"{column.type}{nullable}{' DEFAULT' if column.server_default is not None else ''}"


def test_database_is_migrated_only_after_a_copy_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "hub.db"
    left_behind(database, LEFT[0])

    def full(*_arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("hub.store.migrate._copy", full)
        with pytest.raises(UnavailableError, match="is not migrated: database or disk is full; make room"):
            migrate_database(parse_url(f"sqlite:///{database}"))
    with opened(f"sqlite:///{database}") as engine, engine.connect() as connection:
        assert schema_of(connection).version == "0001"
    assert not list(tmp_path.glob("*.schema-*"))
    assert not list(tmp_path.glob(".*.new")), "nothing of the copy stays"
    made = [copy_before_migration(database, "0001", NOW + timedelta(days=day)) for day in range(KEPT + 2)]
    assert copies(database) == made[-KEPT:]


@contextmanager
def upgrading(url: str, limits: SessionLimits = PATIENT) -> Iterator[tuple[Event, list[Exception]]]:
    """An upgrade on a thread: whether it has ended, and what it raised."""
    ended, raised = Event(), list[Exception]()

    def attempt() -> None:
        try:
            migrate_database(parse_url(url), limits, patience=timedelta(seconds=30))
        except Exception as error:  # noqa: BLE001 - told to the test
            raised.append(error)
        ended.set()

    thread = Thread(target=attempt)
    thread.start()
    try:
        yield ended, raised
    finally:
        thread.join()


def until_said(logged: Sequence[Mapping[str, object]], because: str) -> None:
    """Returns when an upgrade has logged that it waits, and why."""
    while because not in [line.get("because") for line in logged]:
        time.sleep(0.01)


@pytest.mark.postgres
def test_one_replica_migrates_and_the_others_wait_and_say_so(postgres_url: str) -> None:
    with opened(postgres_url) as other, capture_logs() as told:
        with other.begin() as connection:
            migrate_to(connection, "0003")
        with other.begin() as connection:
            connection.execute(LOCK)
            with upgrading(postgres_url) as (ended, raised):
                until_said(told, "another replica is migrating it")
                assert not ended.is_set()
                assert schema_of(connection).version == "0003"
                connection.rollback()
        assert raised == []
        with other.connect() as connection:
            assert schema_of(connection).version == HEAD
    waits = [line for line in told if line["event"] == "waiting to migrate the database"]
    assert [line["because"] for line in waits] == ["another replica is migrating it"]
    assert [line["schema"] for line in told if line["event"] == "database migrated"] == [HEAD]


@pytest.mark.postgres
def test_a_replica_that_stands_still_while_it_migrates_is_not_waited_for(postgres_url: str) -> None:
    """The server ends its session, and with it the lock."""
    with opened(postgres_url, SHORT) as stopped:
        connection = stopped.connect()
        connection.execute(LOCK)
        with upgrading(postgres_url) as (ended, raised):
            ended.wait()
        assert raised == []
        connection.invalidate()
        connection.close()


@pytest.mark.postgres
def test_a_table_in_use_is_waited_for_without_holding_up_who_uses_it(postgres_url: str) -> None:
    with opened(postgres_url) as other, capture_logs() as told:
        with other.begin() as connection:
            migrate_to(connection, "0002")
        with other.begin() as connection:
            connection.execute(text("SELECT * FROM credentials"))
            with upgrading(postgres_url) as (ended, raised):
                until_said(told, "its tables are in use")
                assert not ended.is_set()
                assert connection.execute(text("SELECT count(*) FROM credentials")).scalar_one() == 0
                connection.rollback()
        assert raised == []
        with other.connect() as connection:
            assert schema_of(connection).version == HEAD
            assert inspect(connection).has_table("credentials")


@pytest.mark.postgres
def test_who_waits_too_long_is_told_for_whom(postgres_url: str) -> None:
    with opened(postgres_url) as other, other.begin() as connection, opened(postgres_url) as engine:
        connection.execute(LOCK)
        with pytest.raises(UnavailableError, match=r"within 0\.5 s: another replica is migrating it"):
            upgrade(engine, patience=timedelta(seconds=0.5))


CREATED = text(
    "INSERT INTO objects (kind, namespace, name, uid, revision, created_at, document) "
    "VALUES ('managedclusters.cluster', '', 'late', 'late', 1, 1, '')"
)
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@pytest.mark.postgres
def test_what_a_replica_of_the_release_before_writes_during_a_migration_is_not_lost(postgres_url: str) -> None:
    """Between the copy of what is there and the triggers that follow it."""
    with opened(postgres_url) as migrating, opened(postgres_url) as other, opened(postgres_url) as third:
        with other.begin() as connection:
            migrate_to(connection, "0014")

        def write() -> None:
            with other.begin() as connection:
                connection.execute(text("SELECT value FROM revision FOR UPDATE"))
                connection.execute(CREATED)

        writing = Thread(target=write)

        @event.listens_for(migrating, "after_cursor_execute")
        def once_copied(*arguments: object) -> None:
            if "INSERT INTO inventory" in str(arguments[2]) and not writing.ident:
                writing.start()
                with third.connect() as looking:
                    while writing.is_alive() and not looking.execute(WAITING).scalar_one():
                        looking.rollback()

        upgrade(migrating)
        writing.join()
        with other.connect() as connection:
            assert connection.execute(text("SELECT name FROM inventory")).scalars().all() == ["late"]
