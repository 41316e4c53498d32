"""The databases that the store's contract is held against."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hub.ports import Store
from machinery.clock import ManualClock
from tests.fakes.databases import Database, MemoryDatabase, SqlDatabase, migrated, sqlite_database

STORES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - only where the package is installed

    with postgres_server() as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    match request.param:
        case "memory":
            return MemoryDatabase()
        case "sqlite":
            migrated(tmp_path / "hub.db")
            return sqlite_database(tmp_path)
        case _:
            postgres = SqlDatabase(request.getfixturevalue("postgres_url"))
            postgres.clear()
            return postgres


@pytest.fixture
async def store(database: Database, clock: ManualClock) -> AsyncIterator[Store]:
    async with database.opened(clock) as opened:
        yield opened
