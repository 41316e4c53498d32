"""Databases that a test can open, close and open again: one per implementation of the store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import make_url, text

from hub.ports import Store
from hub.store import SqlStore
from hub.store.engine import parse_url, writing_engine
from hub.store.migrate import upgrade
from hub.store.schema import metadata
from machinery.clock import Clock
from machinery.errors import UnavailableError
from machinery.sealing import Seal
from tests.fakes.memory_store import MemoryStore

POLL = timedelta(milliseconds=50)
SEAL = Seal([b"tests seal Secrets with this key"])


class MemoryDatabase:
    """Keeps the state of the stores that were opened on it."""

    def __init__(self) -> None:
        self._last: MemoryStore | None = None

    @asynccontextmanager
    async def opened(self, clock: Clock) -> AsyncIterator[Store]:
        store = MemoryStore(clock)
        if self._last is not None:
            store.state = self._last.state
        self._last = store
        yield store
        await store.close()


class SqlDatabase:
    """A database at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def opened(self, clock: Clock | None) -> AsyncIterator[SqlStore]:
        store = SqlStore(self.url, SEAL, clock=clock, poll=POLL)
        try:
            await store.open()
            yield store
        finally:
            await store.close()

    def clear(self) -> None:
        """Empties the tables, if there are any."""
        engine = writing_engine(parse_url(self.url))
        with engine.begin() as connection:
            if engine.dialect.has_table(connection, "objects"):
                names = ", ".join(f'"{table.name}"' for table in metadata.sorted_tables if table.name != "revision")
                connection.execute(text(f"TRUNCATE {names}"))
                connection.execute(text("UPDATE revision SET value = 0, compacted = 0"))
        engine.dispose()


def sqlite_database(directory: Path) -> SqlDatabase:
    return SqlDatabase(str(make_url("sqlite://").set(database=str(directory / "hub.db"))))


def migrated(path: Path) -> Path:
    """Puts an empty database there, with the schema of this release; one that is there already is left as it is.

    It is a copy of one that was migrated in this process: to migrate takes longer than most tests.
    """
    if not path.exists():
        path.write_bytes(_empty())
    return path


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hub.db"
        engine = writing_engine(parse_url(f"sqlite:///{path}"))
        upgrade(engine)
        engine.dispose()  # the last one to leave empties the write-ahead log
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        return path.read_bytes()


async def until_ready(store: Store) -> None:
    """Returns when it answers again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.check()
            except UnavailableError:
                await asyncio.sleep(POLL.total_seconds())


Database = MemoryDatabase | SqlDatabase
