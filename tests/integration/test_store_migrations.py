"""The schema: made once, held together with the tables in the code, and never taken over by an older release."""

import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from hub.store import SqlStore
from hub.store.engine.engine import parse_url, writing_engine
from hub.store.migrate import HEAD, SCRIPTS, USABLE_FROM, Schema, schema_of, upgrade
from hub.store.schema import metadata
from machinery.errors import InvalidError
from tests.fakes.databases import migrated

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
