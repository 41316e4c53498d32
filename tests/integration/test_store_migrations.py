"""The schema: made once, migrated by `hub migrate`, never taken over by an older release; and fields that are indexed anew."""

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from threading import Barrier, Thread

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner, Result
from sqlalchemy import Engine, text

from hub.__main__ import main
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from hub.store import SqlStore
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.engine.file_lock import database_lock
from hub.store.migrate import HEAD, SCRIPTS, USABLE_FROM, Schema, copies, schema_of, upgrade
from hub.store.schema import metadata
from machinery.errors import InvalidError, UnavailableError
from machinery.meta.objects import Query
from machinery.meta.selectors import parse_field_selector
from tests.contract.conftest import database
from tests.fakes.databases import SqlDatabase, migrated
from tests.integration.test_store_upgrades import LEFT, left_behind, opened as engine_at

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return writing_engine(parse_url(f"sqlite:///{tmp_path}/hub.db"))


def test_migrations_make_the_tables_that_the_code_knows_and_again_change_nothing(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]
    upgrade(engine)
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("SELECT value, compacted FROM revision")).all() == [(0, 0)]
        made = schema_of(connection)
        assert made.version == HEAD
        assert made.usable_from is not None
        assert made.usable_from <= HEAD
        connection.execute(text("UPDATE revision SET value = 7"))
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM revision")).scalar_one() == 7
    engine.dispose()


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
            upgrade(engine)
        except Exception as error:  # noqa: BLE001 - told to the test
            failures.append(error)
        engine.dispose()

    threads = [Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


async def test_newer_schema_is_left_alone_and_used_only_if_its_release_allows_it(tmp_path: Path) -> None:
    """As the next release leaves it: a table and a column more, and the oldest schema whose release can still run."""
    url = f"sqlite:///{migrated(tmp_path / 'hub.db')}"
    engine = writing_engine(parse_url(url))

    def leave(usable_from: str) -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
            connection.execute(
                text("UPDATE facts SET value = :from WHERE name = :name"), {"from": usable_from, "name": USABLE_FROM}
            )

    def left() -> Schema:
        with engine.connect() as connection:
            return schema_of(connection)

    leave("9998")
    store = SqlStore(url)
    with pytest.raises(InvalidError, match=f'schema "9999", which is newer than "{HEAD}"'):
        await store.open()
    await store.close()
    assert left() == Schema("9999", "9998")
    leave(HEAD)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE later (name TEXT)"))
        connection.execute(text("ALTER TABLE credentials ADD COLUMN later TEXT"))
    store = SqlStore(url)
    await store.open()
    assert await store.read(lambda tx: tx.facts.get(USABLE_FROM)) == HEAD
    await store.close()
    assert left() == Schema("9999", HEAD)
    engine.dispose()


UNUSED = ("rich", "pygments", "alembic", "sqlalchemy.dialects.postgresql", "psycopg")


def test_a_hub_on_sqlite_loads_nothing_that_only_others_need() -> None:
    code = f"import sys, hub.__main__, hub.serve; print([name for name in {UNUSED} if name in sys.modules]); import rich"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def migrate(folder: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["migrate", f"--data-dir={folder}", *flags])


def change(folder: Path, command: str, *values: str) -> None:
    with closing(sqlite3.connect(folder / "hub.db")) as connection, connection:
        connection.execute(command, values)


def test_a_database_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    answer = migrate(tmp_path, "--check")
    assert answer.exit_code == 1
    assert "the database was empty; to run, in this order:\n  0001  The first schema." in answer.output
    assert not (tmp_path / "hub.db").exists()


def test_what_is_to_be_migrated_is_listed_then_done_then_nothing_is_to_do(tmp_path: Path) -> None:
    left_behind(tmp_path / "hub.db", LEFT[1])
    answer = migrate(tmp_path, "--check")
    assert answer.exit_code == 1
    assert 'had schema "0005"; to run, in this order:\n  0006  ' in answer.output
    assert copies(tmp_path / "hub.db") == []
    answer = migrate(tmp_path)
    assert answer.exit_code == 0
    assert f'the database had schema "0005" and now has schema "{HEAD}"' in answer.output
    assert len(copies(tmp_path / "hub.db")) == 1
    for flags in (("--check",), ()):
        answer = migrate(tmp_path, *flags)
        assert answer.exit_code == 0
        assert f'has schema "{HEAD}", which is this release\'s: nothing is to do' in answer.output


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
        assert answer.exit_code == 2
        assert "is in use by another hub" in answer.output
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


def test_a_database_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub:secret@127.0.0.1:1/hub")
    for flags in (("--check",), ()):
        answer = migrate(tmp_path, *flags)
        assert answer.exit_code == 2
        assert "hub: the database does not answer" in answer.output
        assert "secret" not in answer.output


__all__ = ["database"]  # the fixture

CONDITION = {"reason": "R", "message": "", "lastTransitionTime": "2026-11-21T00:00:00Z"}


def make_clusters(tx: Transaction) -> None:
    for number in range(7):
        status = "Unknown" if number % 2 else "True"
        conditions = [{"type": "ManagedClusterConditionAvailable", "status": status, **CONDITION}]
        document = {"metadata": {"name": f"c{number}"}, "spec": {}, "status": {"conditions": conditions}}
        clusters.put(tx, document, None, "test")


def chosen(tx: Transaction, selector: str) -> Sequence[str]:
    query = Query(fields=parse_field_selector(selector))
    return [item.key.name for item in tx.objects.find(MANAGED_CLUSTERS, query).items]


def changed_by_hand(database: SqlDatabase, *commands: str) -> None:
    with engine_at(database.url) as engine, engine.begin() as connection:
        for command in commands:
            connection.execute(text(command))


AVAILABLE = "status.conditions.ManagedClusterConditionAvailable"


async def test_objects_of_an_earlier_release_are_found_by_field(database: SqlDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.store.objects.reindex.BATCH", 3)
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
    with engine_at(database.url) as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT * FROM inventory ORDER BY name"))]
