"""The schema: made once, migrated by `hub migrate` and at a start, and refused where this release cannot run on it."""

import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, Event, Thread
from unittest.mock import Mock

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner, Result
from sqlalchemy import Column, Connection, Engine, MetaData, event, text
from structlog.testing import capture_logs

from hub.__main__ import main
from hub.api.hubreplicas import Replica
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from hub.store import SqlStore, migrate as migration
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.engine.file_lock import database_lock
from hub.store.engine.timeouts import SessionLimits
from hub.store.migrate import HEAD
from hub.store.schema import metadata
from machinery.errors import InvalidError, UnavailableError
from machinery.meta.objects import Query
from machinery.meta.selectors import parse_field_selector
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of, present
from tests.contract.conftest import database
from tests.fakes.databases import SqlDatabase, migrated, sqlite_database
from tests.fakes.next_release import CONTRACTED, EXPANDED, next_release

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return writing_engine(parse_url(f"sqlite:///{tmp_path}/hub.db"))


def test_migrations_make_the_tables_that_the_code_knows_and_again_change_nothing(engine: Engine) -> None:
    assert ScriptDirectory(str(migration.SCRIPTS)).get_heads() == [HEAD]
    migration.upgrade(engine)
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("SELECT value, compacted FROM revision")).all() == [(0, 0)]
        made = migration.schema_of(connection)
        assert (made.version, present(made.usable_from) <= HEAD) == (HEAD, True)
        connection.execute(text("UPDATE revision SET value = 7"))
    migration.upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM revision")).scalar_one() == 7
    engine.dispose()


def test_the_first_migration_creates_the_schema_of_0_1(engine: Engine) -> None:
    """Databases of 0.1 have it, so that nobody may edit this migration."""
    with engine.begin() as connection:
        migration.raise_to(connection, "0001")
        created = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")).scalars().all()
    engine.dispose()
    recorded = (ROOT / "tests/fixtures/versions/0.1/sqlite.sql").read_text()
    with closing(sqlite3.connect(":memory:")) as old:
        old.executescript(recorded)
        assert sorted(created) == sorted(row[0] for row in old.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_alembic_is_loaded_before_the_transaction_that_needs_it_and_not_where_nothing_is_to_do(engine: Engine) -> None:
    """A server ends sessions that are idle inside a transaction, and little CPU makes of a second of loading many."""
    program = (
        "import sys; from sqlalchemy import event;"
        "from hub.store.engine.engine import *; from hub.store.migrate import upgrade;"
        "engine = writing_engine(parse_url(sys.argv[1])); loaded = [];"
        "event.listen(engine, 'begin', lambda _: loaded.append('alembic.script' in sys.modules));"
        "upgrade(engine); print(loaded, 'alembic' in sys.modules)"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{engine.url.database}"]
    first, again = (subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert (first.strip(), again.strip()) == ("[False, True] True", "[False] False")


def test_two_that_upgrade_at_once_do_it_once(tmp_path: Path) -> None:
    both = Barrier(2)
    failures: list[Exception] = []

    def attempt() -> None:
        engine = writing_engine(parse_url(f"sqlite:///{tmp_path}/hub.db"))
        both.wait()
        try:
            migration.upgrade(engine)
        except Exception as error:  # noqa: BLE001 - returned to the test
            failures.append(error)
        engine.dispose()

    threads = [Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


async def test_newer_schema_is_left_alone_and_used_only_if_its_release_allows_it(tmp_path: Path) -> None:
    url = f"sqlite:///{migrated(tmp_path / 'hub.db')}"
    with next_release(tmp_path):
        migration.migrate_database(parse_url(url))
    store = SqlStore(url)
    await check_refusal_of(InvalidError, store.open(), match=f'schema "{CONTRACTED}", which is newer than "{HEAD}"')
    await store.close()
    change(tmp_path, "UPDATE facts SET value = ? WHERE name = ?", HEAD, migration.USABLE_FROM)
    async with sqlite_database(tmp_path).opened(None) as store:
        await store.run(make_clusters)
    with opened(url) as engine, engine.connect() as connection:
        assert migration.schema_of(connection) == migration.Schema(CONTRACTED, HEAD)
        assert connection.execute(text("SELECT count(*) FROM object_names")).scalar_one() == 7


UNUSED = ("rich", "pygments", "alembic", "sqlalchemy.dialects.postgresql", "psycopg")


def test_a_new_hub_on_sqlite_loads_nothing_that_only_others_need(tmp_path: Path) -> None:
    code = (
        "import sys; from hub.__main__ import Path, first_migration, load\n"
        "with first_migration(load({'data_dir': Path(sys.argv[1])}, None)):\n import hub.serve\n"
        f"print([name for name in {UNUSED} if name in sys.modules]); import rich\n"
        "print(sys.modules['aiohttp.connector']._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509_ca'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "new")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n") == ["[]", "0", ""]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new", tmp_path / "new" / "hub.db")] == [0o700, 0o600]
    with opened(f"sqlite:///{tmp_path}/new/hub.db") as engine, engine.connect() as connection:
        assert migration.schema_of(connection).version == HEAD


def migrate(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["migrate", f"--data-dir={folder}", *flags])


def change(folder: Path, command: str, *values: str) -> None:
    with closing(sqlite3.connect(folder / "hub.db")) as connection, connection:
        connection.execute(command, values)


def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    answer = migrate(tmp_path, "--check")
    assert answer.exit_code == 1
    assert "the database was empty; pending migrations, in this order:\n  0001  The first schema." in answer.output
    assert not (tmp_path / "hub.db").exists()


def test_what_is_to_be_migrated_is_listed_then_done_then_nothing_is_to_do(tmp_path: Path) -> None:
    migrated(tmp_path / "hub.db")
    with next_release(tmp_path):
        answer = migrate(tmp_path, "--check")
        assert answer.exit_code == 1
        assert f'had schema "{HEAD}"; pending migrations, in this order:\n  {EXPANDED}  ' in answer.output
        assert migration.copies(tmp_path / "hub.db") == []
        answer = migrate(tmp_path)
        assert (answer.exit_code, f'had schema "{HEAD}" and now has schema "{CONTRACTED}"' in answer.output) == (
            0,
            True,
        )
        assert len(migration.copies(tmp_path / "hub.db")) == 1
        for flags in (("--check",), ()):
            answer = migrate(tmp_path, *flags)
            current = f'"{CONTRACTED}", which is the one of this release: there is nothing to do'
            assert (answer.exit_code, current in answer.output) == (0, True)


def test_a_schema_that_is_too_new_is_refused(tmp_path: Path) -> None:
    migrated(tmp_path / "hub.db")
    change(tmp_path, "UPDATE alembic_version SET version_num = '9999'")
    for usable_from, code, words in (("9998", 2, "this release cannot run on it"), (HEAD, 0, "which can run on it")):
        change(tmp_path, "UPDATE facts SET value = ? WHERE name = 'schema-usable-from'", usable_from)
        for flags in (("--check",), ()):
            answer = migrate(tmp_path, *flags)
            assert (answer.exit_code, words in answer.output) == (code, True), answer.output


def test_a_database_that_a_hub_uses_is_not_migrated_under_it(tmp_path: Path) -> None:
    migrated(tmp_path / "hub.db")
    with database_lock(f"sqlite:///{tmp_path}/hub.db"):
        answer = migrate(tmp_path)
        assert (answer.exit_code, "is in use by another hub" in answer.output) == (2, True)
        assert migrate(tmp_path, "--check").exit_code == 0


def test_the_same_file_by_another_name_has_one_user(tmp_path: Path) -> None:
    (tmp_path / "hub.db").touch()
    (tmp_path / "link.db").symlink_to("hub.db")
    (tmp_path / "folder").symlink_to(tmp_path)
    with database_lock(f"sqlite:///{tmp_path}/hub.db"):
        for name in ("hub.db", "link.db", "folder/hub.db", "folder/link.db"):
            again = database_lock(f"sqlite:///{tmp_path}/{name}")
            with pytest.raises(UnavailableError, match="give all replicas one PostgreSQL database"), again:
                pytest.fail("there are two")
    with database_lock(f"sqlite:///{tmp_path}/link.db"), database_lock(f"sqlite:///{tmp_path}/other.db"):
        pass


def test_a_database_that_does_not_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub:secret@127.0.0.1:1/hub")
    for flags in (("--check",), ()):
        answer = migrate(tmp_path, *flags)
        assert (answer.exit_code, "hub: the database does not answer" in answer.output) == (2, True)
        assert "secret" not in answer.output


__all__ = ["database"]  # the fixture

CONDITION = {"reason": "R", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z"}


def make_clusters(tx: Transaction) -> None:
    for number in range(7):
        conditions = [{"type": "ManagedClusterConditionAvailable", "status": "Unknown" if number % 2 else "True", **CONDITION}]
        clusters.put(tx, {"metadata": {"name": f"c{number}"}, "spec": {}, "status": {"conditions": conditions}}, None, "test")


def chosen(tx: Transaction, selector: str) -> Sequence[str]:
    return [item.key.name for item in tx.objects.find(MANAGED_CLUSTERS, Query(fields=parse_field_selector(selector))).items]


def changed_by_hand(database: SqlDatabase, *commands: str) -> None:
    with opened(database.url) as engine, engine.begin() as connection:
        for command in commands:
            connection.execute(text(command))


AVAILABLE = "status.conditions.ManagedClusterConditionAvailable"


async def test_objects_of_an_earlier_release_are_found_by_field(database: SqlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.store.objects.rows.REINDEXED", 3)
    async with database.opened(None) as store:
        await store.run(make_clusters)
    stale = "UPDATE fields SET value = 'False' WHERE name LIKE 'status.conditions.%'"
    changed_by_hand(database, stale, "DELETE FROM fields WHERE name = 'spec.hubAcceptsClient'", "DELETE FROM facts")

    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=Unknown") == ["c1", "c3", "c5"]
        assert len(await store.read(chosen, "spec.hubAcceptsClient=false")) == 7

    changed_by_hand(database, "DELETE FROM fields")
    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=Unknown") == [], "what this release has done is not done again"

    changed_by_hand(database, "UPDATE facts SET value = '1 0.0.9' WHERE name = 'indexed-fields'")
    async with database.opened(None) as store:
        assert await store.read(chosen, f"{AVAILABLE}=True") == ["c0", "c2", "c4", "c6"]
        old = Replica("r1", "home", "i1", "0.0.9", "g:1", "h:1", NOW, SystemClock().now() + timedelta(hours=1))
        await store.run(lambda tx: tx.replicas.put(old))

    again = ("DELETE FROM fields", "UPDATE facts SET value = '1 0.0.9' WHERE name = 'indexed-fields'")
    found = []
    for statements in (again, again[:1], ("UPDATE replicas SET seen_at = 0", again[0]), again[:1]):
        changed_by_hand(database, *statements)
        async with database.opened(None) as store:
            found.append(len(await store.read(chosen, f"{AVAILABLE}=True")))
    assert found == [4, 4, 4, 0], "it is done again while a replica of another release lives, and once more"


async def test_a_cluster_that_was_written_during_a_migration_has_its_narrow_row_again(database: SqlDatabase) -> None:
    """Between the copy of what was there and the triggers that follow it, an earlier release's commits were lost."""
    async with database.opened(None) as store:
        await store.run(make_clusters)
        before = narrow(database)
    changed_by_hand(
        database,
        "DELETE FROM inventory WHERE name = 'c0'",
        "UPDATE inventory SET available = 'False', version = 'v9', cluster_set = NULL WHERE name = 'c1'",
        "INSERT INTO inventory (uid, namespace, name, created_at) VALUES ('x', '', 'deleted', 1)",
        "UPDATE facts SET value = '2 0.1.0' WHERE name = 'indexed-fields'",
    )
    async with database.opened(None):
        assert narrow(database) == before
    assert len(before) == 7


def narrow(database: SqlDatabase) -> Sequence[object]:
    with opened(database.url) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT * FROM inventory ORDER BY name"))]


NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHORT = SessionLimits(timedelta(seconds=1))
PATIENT = SessionLimits(timedelta(minutes=1))
"""A server ends sessions that stand still in a transaction, and those of a machine that is busy seem to."""
LOCK = text(f"SELECT pg_advisory_xact_lock({migration.ADVISORY_LOCK})")


async def test_next_release_copies_the_database_and_migrates_it_with_all_that_is_in_it(tmp_path: Path) -> None:
    database, file = sqlite_database(tmp_path), tmp_path / "hub.db"
    async with database.opened(None) as store:
        await store.run(make_clusters)
    with next_release(tmp_path), capture_logs() as logged:
        async with database.opened(None) as store:
            assert len(await store.read(chosen, "spec.hubAcceptsClient=false")) == 7
        (copy,) = migration.copies(file)
        async with database.opened(None):
            assert migration.copies(file) == [copy], "there is nothing to copy for"
    assert [line["copy"] for line in logged if line["event"] == "database copied before its migration"] == [str(copy)]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    for path, version in ((copy, HEAD), (file, CONTRACTED)):
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(version,)]
            assert connection.execute("SELECT count(*) FROM objects").fetchall() == [(7,)]


class Killed(BaseException):
    """What ends a process."""


async def test_a_migration_that_is_killed_leaves_what_was_there_and_is_done_at_the_next_start(
    database: SqlDatabase, tmp_path: Path
) -> None:
    async with database.opened(None) as store:
        await store.run(make_clusters)
    with next_release(tmp_path), opened(database.url) as engine:

        def die(*arguments: object) -> None:
            if "DROP COLUMN" in str(arguments[2]):
                raise Killed

        event.listen(engine, "after_cursor_execute", die)
        with pytest.raises(Killed):
            migration.upgrade(engine)
        event.remove(engine, "after_cursor_execute", die)
        with engine.connect() as connection:
            assert migration.schema_of(connection) == migration.Schema(HEAD, HEAD)
            assert (tables(connection).keys() & {"object_names"}, "to_come" in tables(connection)["heartbeats"]) == (
                set(),
                False,
            )
        migration.upgrade(engine)
        with engine.connect() as connection:
            assert migration.schema_of(connection) == migration.Schema(CONTRACTED, CONTRACTED)
            assert connection.execute(text("SELECT count(*) FROM object_names")).scalar_one() == 7


@contextmanager
def opened(url: str, limits: SessionLimits = PATIENT) -> Iterator[Engine]:
    engine = writing_engine(parse_url(url), limits, patient=True)
    try:
        yield engine
    finally:
        engine.dispose()


def test_a_migration_only_adds_so_that_the_release_before_can_run_on_it(tmp_path: Path) -> None:
    """No table or column goes, and whatever is new in a table that was there can be left out of an INSERT.

    Unless the migration itself says that no release before it can run on the database.
    """
    with next_release(tmp_path) as scripts, opened(f"sqlite:///{tmp_path}/hub.db") as engine, engine.begin() as connection:
        before: dict[str, dict[str, str]] = {}
        for script in reversed([*ScriptDirectory(str(scripts)).walk_revisions()]):
            migration.raise_to(connection, script.revision)
            after = tables(connection)
            for name, columns in before.items() if getattr(script.module, "usable_from", "") != script.revision else ():
                assert columns.items() <= after.get(name, {}).items(), (script.revision, name)
                new = {column: after[name][column] for column in after[name].keys() - columns.keys()}
                needed = [column for column, kind in new.items() if "NOT NULL" in kind and "DEFAULT" not in kind]
                assert not needed, (script.revision, name)
            before = after
    assert before.keys() > metadata.tables.keys()


def tables(connection: Connection) -> dict[str, dict[str, str]]:
    """By table and column, what it is."""
    found = MetaData()
    found.reflect(connection)
    return {table.name: {column.name: described(column) for column in table.columns} for table in found.sorted_tables}


def described(column: Column[object]) -> str:
    nullable = "" if column.nullable else " NOT NULL"
    return f"{column.type}{nullable}{' DEFAULT' if column.server_default is not None else ''}"


def test_database_is_migrated_only_after_a_copy_and_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = migrated(tmp_path / "hub.db")

    def full(*_arguments: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with next_release(tmp_path), monkeypatch.context() as patched:
        patched.setattr("hub.store.migrate._copy", full)
        with pytest.raises(UnavailableError, match="is not migrated: database or disk is full; make room"):
            migration.migrate_database(parse_url(f"sqlite:///{database}"))
    with opened(f"sqlite:///{database}") as engine, engine.connect() as connection:
        assert migration.schema_of(connection).version == HEAD
    assert not list(tmp_path.glob("*.schema-*"))
    assert not list(tmp_path.glob(".*.new")), "nothing of the copy stays"
    made = [migration.copy_before_migration(database, HEAD, NOW + timedelta(days=day)) for day in range(migration.KEPT + 2)]
    assert migration.copies(database) == made[-migration.KEPT :]
    with monkeypatch.context() as patched:
        patched.setattr(
            "hub.store.migrate._copy", Mock(side_effect=KeyboardInterrupt)
        )  # as a killed process, it removes nothing
        for hour in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                migration.copy_before_migration(database, HEAD, NOW + timedelta(days=migration.KEPT + 2, hours=hour))
    assert len(list(tmp_path.glob(".*.new"))) == 1, "unfinished copies do not add up"


@contextmanager
def upgrading(url: str, limits: SessionLimits = PATIENT) -> Iterator[tuple[Event, list[Exception]]]:
    """An upgrade on a thread: whether it has ended, and what it raised."""
    ended, raised = Event(), list[Exception]()

    def attempt() -> None:
        try:
            migration.migrate_database(parse_url(url), limits, patience=timedelta(seconds=30))
        except Exception as error:  # noqa: BLE001 - returned to the test
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
def test_one_replica_migrates_and_the_others_wait_and_say_so(migrated_postgres_url: str, tmp_path: Path) -> None:
    with next_release(tmp_path), opened(migrated_postgres_url) as other, capture_logs() as logged:
        with other.begin() as connection:
            connection.execute(LOCK)
            with upgrading(migrated_postgres_url) as (ended, raised):
                until_said(logged, "another replica is migrating it")
                assert not ended.is_set()
                assert migration.schema_of(connection).version == HEAD
                connection.rollback()
        assert raised == []
        with other.connect() as connection:
            assert migration.schema_of(connection).version == CONTRACTED
    waits = [line for line in logged if line["event"] == "waiting to migrate the database"]
    assert [line["because"] for line in waits] == ["another replica is migrating it"]
    assert [line["schema"] for line in logged if line["event"] == "database migrated"] == [CONTRACTED]


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
def test_a_table_in_use_is_waited_for_without_holding_up_who_uses_it(migrated_postgres_url: str, tmp_path: Path) -> None:
    with next_release(tmp_path), opened(migrated_postgres_url) as other, capture_logs() as logged:
        with other.begin() as connection:
            connection.execute(text("SELECT * FROM heartbeats"))
            with upgrading(migrated_postgres_url) as (ended, raised):
                until_said(logged, "its tables are in use")
                assert not ended.is_set()
                assert connection.execute(text("SELECT count(*) FROM heartbeats")).scalar_one() == 0
                connection.rollback()
        assert raised == []
        with other.connect() as connection:
            assert migration.schema_of(connection).version == CONTRACTED


@pytest.mark.postgres
def test_who_waits_too_long_sees_for_whom(postgres_url: str) -> None:
    with opened(postgres_url) as other, other.begin() as connection, opened(postgres_url) as engine:
        connection.execute(LOCK)
        with pytest.raises(UnavailableError, match=r"within 0\.5 s: another replica is migrating it"):
            migration.upgrade(engine, patience=timedelta(seconds=0.5))


CREATED = text(
    "INSERT INTO objects (kind, namespace, name, uid, revision, created_at, document) "
    "VALUES ('managedclusters.cluster', '', 'late', 'late', 1, 1, '')"
)
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@pytest.mark.postgres
def test_what_a_replica_of_the_release_before_writes_during_a_migration_is_not_lost(
    migrated_postgres_url: str, tmp_path: Path
) -> None:
    """Between the copy of what is there and the triggers that follow it."""
    url = migrated_postgres_url
    with next_release(tmp_path), opened(url) as migrating, opened(url) as other, opened(url) as third:

        def write() -> None:
            with other.begin() as connection:
                connection.execute(text("SELECT value FROM revision FOR UPDATE"))
                connection.execute(CREATED)

        writing = Thread(target=write)

        @event.listens_for(migrating, "after_cursor_execute")
        def once_copied(*arguments: object) -> None:
            if "INSERT INTO object_names" in str(arguments[2]) and not writing.ident:
                writing.start()
                with third.connect() as looking:
                    while writing.is_alive() and not looking.execute(WAITING).scalar_one():
                        looking.rollback()

        migration.upgrade(migrating)
        writing.join()
        with other.connect() as connection:
            assert connection.execute(text("SELECT name FROM object_names")).scalars().all() == ["late"]
