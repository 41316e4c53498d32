"""The change feed at its seam: where the log that was read ends and the feed goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

from hub.apiserver.feed import BATCH, ChangeFeed
from hub.domain.change import MANAGED_CLUSTERS, Change, Kind
from hub.services import clusters
from machinery.apiserver.storage import Event, Selection
from machinery.selectors import LabelSelector, parse_field_selector
from tests.fakes.inline_store import InlineStore
from tests.fakes.virtual_time import in_virtual_time

PATIENCE = timedelta(milliseconds=20)


def join(store: InlineStore, name: str) -> None:
    store.transact(clusters.put, {"metadata": {"name": name}, "spec": {}}, None, "test")


class MeddlingStore(InlineStore):
    """Runs `meddle` before each look into the log, and lets the feed see what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], None] = lambda: None
        self.second_follow = asyncio.Event()

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        if query.__module__ == "hub.apiserver.feed" and query.__name__ == "_since":
            self.meddle()
            await asyncio.sleep(0.02)
        return await super().read(query, *args, **kwargs)

    async def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        self.second_follow.set()
        async for batch in super().follow(after, kinds):
            yield batch


@asynccontextmanager
async def following(store: InlineStore, *, queue: int = 10) -> AsyncIterator[ChangeFeed]:
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


class Counting(LabelSelector):
    """Notes each look at an object's labels."""

    looks: ClassVar[list[Mapping[str, str]]] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        self.looks.append(labels)
        return super().matches(labels)


def test_watchers_with_the_same_selection_are_one_audience_and_share_what_they_see() -> None:
    seen: list[Event] = []

    async def watch(feed: ChangeFeed, selection: Selection) -> None:
        watching = feed.watch(MANAGED_CLUSTERS, selection, after=0, patience=timedelta(seconds=5))
        async with aclosing(watching) as events:
            async for event in events:
                if isinstance(event, Event):
                    seen.append(event)
                    return

    async def play() -> None:
        store = InlineStore()
        async with following(store) as feed, asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(watch(feed, Selection(labels=Counting())))
            for _ in range(50):
                group.create_task(watch(feed, Selection()))
            await asyncio.sleep(0.05)
            Counting.looks.clear()
            join(store, "a")

    in_virtual_time(play())
    assert len(seen) == 100
    assert len({id(event) for event in seen}) == 1
    assert len(Counting.looks) == 1


async def test_who_watches_one_object_reads_nobody_elses_changes_from_the_log() -> None:
    store = MeddlingStore()
    for number in range(BATCH + 1):
        join(store, f"c{number}")
    looks = 0

    def meddle() -> None:
        nonlocal looks
        looks += 1

    store.meddle = meddle
    one = Selection(fields=parse_field_selector("metadata.name=c7"))
    async with asyncio.timeout(5), following(store) as feed:
        await store.second_follow.wait()
        async with aclosing(feed.watch(MANAGED_CLUSTERS, one, after=0, patience=PATIENCE)) as events:
            first, quiet = await anext(events), await anext(events)
    assert isinstance(first, Event)
    assert (first.stored.key.name, quiet, looks) == ("c7", BATCH + 1, 1)
