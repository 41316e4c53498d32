"""The schema: made once, held together with the tables in the code, and never taken over by an older release."""

import asyncio
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from hub.store import SqlStore
from hub.store.credentials import SqlCredentials
from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import HEAD, SCRIPTS, USABLE_FROM, Schema, schema_of, upgrade
from hub.store.schema import metadata
from machinery.errors import InvalidError
from machinery.identity import CredentialId

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return writing_engine(parse_url(f"sqlite:///{tmp_path}/hub.db"))


def test_migrations_make_the_tables_that_the_code_knows(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(text("SELECT value, compacted FROM revision")).all() == [(0, 0)]
    engine.dispose()


def test_newest_migration_is_the_one_that_the_code_names() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_database_that_is_up_to_date_needs_no_alembic(engine: Engine) -> None:
    upgrade(engine)
    program = (
        "import sys; from hub.store.engine import *; from hub.store.migrate import upgrade;"
        "upgrade(writing_engine(parse_url(sys.argv[1]))); sys.exit('alembic' in sys.modules)"
    )
    again = subprocess.run([sys.executable, "-c", program, f"sqlite:///{engine.url.database}"], cwd=ROOT, check=False)
    assert again.returncode == 0
    engine.dispose()


def test_alembic_is_loaded_before_the_transaction_that_needs_it(engine: Engine) -> None:
    """A server ends sessions that are idle inside one, and little CPU makes of a second of loading many."""
    program = (
        "import sys; from sqlalchemy import event; from hub.store.engine import *; from hub.store.migrate import upgrade;"
        "engine = writing_engine(parse_url(sys.argv[1])); loaded = [];"
        "event.listen(engine, 'begin', lambda _: loaded.append('alembic.script' in sys.modules));"
        "upgrade(engine); sys.exit(loaded[1:] != [True])"
    )
    made = subprocess.run([sys.executable, "-c", program, f"sqlite:///{engine.url.database}"], cwd=ROOT, check=False)
    assert made.returncode == 0
    engine.dispose()


def test_credentials_of_the_first_schema_are_certificates(engine: Engine) -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO credentials (id, created_at, expires_at, created_by) VALUES ('0123456789abcdef', 1, 2, 'ann')")
        )
    upgrade(engine)
    with engine.connect() as connection:
        record = SqlCredentials(connection, writable=False).by_id(CredentialId("0123456789abcdef"))
    assert record is not None
    assert (record.created_by, record.token_hash) == ("ann", None)
    engine.dispose()


def test_upgrade_again_changes_nothing(engine: Engine) -> None:
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE revision SET value = 7"))
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM revision")).scalar_one() == 7
    engine.dispose()


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


async def test_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hub.db"
    engine = writing_engine(parse_url(url))
    await asyncio.to_thread(upgrade, engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("UPDATE facts SET value = '9998' WHERE name = :name"), {"name": USABLE_FROM})
    store = SqlStore(url)
    with pytest.raises(InvalidError, match=f'schema "9999", which is newer than "{HEAD}"'):
        await store.open()
    await store.close()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    engine.dispose()


async def test_a_newer_schema_whose_release_says_that_ours_can_run_on_it_is_used_and_left_alone(tmp_path: Path) -> None:
    """As the next release leaves it: a table and a column more, and the word that this one still can."""
    url = f"sqlite:///{tmp_path}/hub.db"
    engine = writing_engine(parse_url(url))
    await asyncio.to_thread(upgrade, engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("CREATE TABLE later (name TEXT)"))
        connection.execute(text("ALTER TABLE credentials ADD COLUMN later TEXT"))
        connection.execute(text("UPDATE facts SET value = :head WHERE name = :name"), {"head": HEAD, "name": USABLE_FROM})
    store = SqlStore(url)
    await store.open()
    assert await store.read(lambda tx: tx.facts.get(USABLE_FROM)) == HEAD
    await store.close()
    with engine.connect() as connection:
        assert schema_of(connection) == Schema("9999", HEAD)
    engine.dispose()


def test_a_migration_says_from_which_schema_on_releases_can_run(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        schema = schema_of(connection)
    assert schema.version == HEAD
    assert schema.usable_from is not None
    assert schema.usable_from <= HEAD
    engine.dispose()


UNUSED = ("rich", "pygments", "alembic", "sqlalchemy.dialects.postgresql", "psycopg")


def test_a_hub_on_sqlite_loads_nothing_that_only_others_need() -> None:
    code = f"import sys, hub.__main__, hub.app; print([name for name in {UNUSED} if name in sys.modules]); import rich"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
