"""Stores for tests, and use cases: named objects are put, and what is there is read."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from machinery.meta.objects import Key, Query


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
