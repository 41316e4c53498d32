"""One PostgreSQL for all of them, empty before each."""

from collections.abc import AsyncIterator, Iterator

import pytest

from hub.election import RowLock
from hub.store import SqlStore
from hub.store.lifeline import SqlLifeline
from machinery.election import KUBERNETES
from tests.fakes.databases import SqlDatabase


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - only where the package is installed

    with postgres_server() as server:
        yield server


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    """A hub's database, with its tables."""
    SqlDatabase(url).clear()
    store = SqlStore(url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def row(url: str, store: SqlStore) -> AsyncIterator[RowLock]:
    """The lock in that database, over a connection of its own."""
    del store  # it makes the tables
    line = SqlLifeline(url, lease=KUBERNETES.lease)
    yield RowLock(line)
    await line.close()
