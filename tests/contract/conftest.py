"""The databases that the contract of the store is tested on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hub.store import SqlStore
from machinery.runtime.clock import ManualClock
from tests.fakes.databases import SqlDatabase, migrated, sqlite_database


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDatabase:
    if request.param == "sqlite":
        migrated(tmp_path / "hub.db")
        return sqlite_database(tmp_path)
    return SqlDatabase(request.getfixturevalue("migrated_postgres_url"))


@pytest.fixture
async def store(database: SqlDatabase, clock: ManualClock) -> AsyncIterator[SqlStore]:
    async with database.opened(clock) as opened:
        yield opened
