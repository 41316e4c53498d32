"""Databases that a test can open, close and open again, stores of several replicas, and use cases that put and list objects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import make_url

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Store, Transaction
from hub.store import SqlStore
from hub.store.engine.engine import database_file, parse_url, writing_engine
from hub.store.migrate import upgrade
from machinery.errors import UnavailableError
from machinery.meta.objects import Key, Query
from machinery.pki.encryption import Seal
from machinery.runtime.clock import Clock

POLL = timedelta(milliseconds=50)
SEAL = Seal([b"tests seal Secrets with this key"])


class SqlDatabase:
    """A database at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def opened(self, clock: Clock | None) -> AsyncIterator[SqlStore]:
        if (file := database_file(parse_url(self.url))) is not None:
            migrated(file)
        store = SqlStore(self.url, SEAL, clock=clock, poll=POLL)
        try:
            await store.open()
            yield store
        finally:
            await store.close()


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


@asynccontextmanager
async def replicas(url: str, count: int = 2, **options: Any) -> AsyncIterator[list[SqlStore]]:
    """Open stores on one database; `options` as of SqlStore."""
    async with AsyncExitStack() as stack:
        stores = [SqlStore(url, **options) for _ in range(count)]
        for store in stores:
            stack.push_async_callback(store.close)
            await store.open()
        yield stores


async def followed(store: SqlStore, after: int, until: int) -> list[int]:
    """The revisions of the changes that the store reports, up to `until`."""
    seen: list[int] = []
    async for changes in store.follow(after):
        seen += [change.revision for change in changes]
        if seen and seen[-1] >= until:
            break
    return seen


def put(tx: Transaction, name: str, size: int = 0) -> None:
    document = {"metadata": {"name": name, "uid": name}, "spec": {"filler": "x" * size}}
    tx.objects.put(MANAGED_CLUSTERS, document, tx.objects.get(MANAGED_CLUSTERS, Key("", name)), "tester")


def names(tx: Transaction) -> list[str]:
    return [item.key.name for item in tx.objects.find(MANAGED_CLUSTERS, Query()).items]


def newest(tx: Transaction) -> int:
    return tx.changes.newest()
