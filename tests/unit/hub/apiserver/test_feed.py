"""The change feed at its seam: where the log that was read ends and the feed goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from hub.apiserver.feed import ChangeFeed
from hub.domain.change import MANAGED_CLUSTERS, Change, Kind
from hub.services import clusters
from machinery.apiserver.storage import Event, Selection
from machinery.errors import ExpiredError, UnavailableError
from tests.fakes.memory_store import MemoryStore

PATIENCE = timedelta(milliseconds=20)


def join(store: MemoryStore, name: str) -> None:
    store.transact(clusters.put, {"metadata": {"name": name}, "spec": {}}, None, "test")


class MeddlingStore(MemoryStore):
    """Runs `meddle` before each look into the log, and lets the feed see what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], None] = lambda: None
        self.second_follow = asyncio.Event()
        self.failures: list[Exception] = []

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        if query.__module__ == "hub.apiserver.feed" and query.__name__ == "_since":
            self.meddle()
            await asyncio.sleep(0.02)
        return await super().read(query, *args, **kwargs)

    async def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        if self.failures:
            raise self.failures.pop()
        self.second_follow.set()
        async for batch in super().follow(after, kinds):
            yield batch


@asynccontextmanager
async def following(store: MemoryStore, *, queue: int = 10) -> AsyncIterator[ChangeFeed]:
    feed = ChangeFeed(store, queue=queue)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def names(feed: ChangeFeed, after: int, count: int) -> list[str]:
    """The first `count` names, and whatever else comes before it is quiet again and again."""
    told: list[str] = []
    quiet = 0
    watching = feed.watch(MANAGED_CLUSTERS, Selection(), after=after, patience=PATIENCE)
    async with asyncio.timeout(5), aclosing(watching) as events:
        async for event in events:
            if isinstance(event, Event):
                told.append(event.stored.key.name)
            elif len(told) >= count:
                quiet += 1
            if quiet > 1:
                break
    return told


async def test_a_change_that_the_log_and_the_feed_both_tell_is_told_once() -> None:
    store = MeddlingStore()
    join(store, "a")
    join(store, "b")
    later = ["c"]
    store.meddle = lambda: join(store, later.pop()) if later else None
    async with following(store) as feed:
        assert await names(feed, 1, 2) == ["b", "c"]


async def test_a_watcher_that_falls_behind_while_it_reads_the_log_misses_nothing() -> None:
    store = MeddlingStore()
    join(store, "a")
    crowd = [f"c{number}" for number in range(12)]

    def meddle() -> None:
        while crowd:
            join(store, crowd.pop(0))

    store.meddle = meddle
    async with following(store, queue=3) as feed:
        assert await names(feed, 0, 13) == ["a", *(f"c{number}" for number in range(12))]


@pytest.mark.parametrize("error", [UnavailableError("the database is away"), ExpiredError("compacted")])
async def test_the_feed_outlives_a_database_that_fails_it(error: Exception) -> None:
    store = MeddlingStore()
    store.failures = [error]
    async with following(store) as feed, asyncio.timeout(5):
        watching = asyncio.create_task(names(feed, 0, 1))
        await store.second_follow.wait()
        join(store, "a")
        assert await watching == ["a"]


async def test_it_is_quiet_up_to_the_newest_revision_of_any_kind() -> None:
    store = MemoryStore()
    async with following(store) as feed, asyncio.timeout(5):
        events = feed.watch(Kind("others"), Selection(), after=0, patience=PATIENCE)
        async with aclosing(events):
            assert await anext(events) == 0
            join(store, "a")
            while await anext(events) != 1:
                pass
