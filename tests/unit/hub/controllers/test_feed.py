"""Keys reach controllers: those that are there, then every change, and again after trouble."""

import asyncio
from datetime import timedelta

import pytest

from hub.controllers.batch import TOGETHER, Batched
from hub.controllers.compaction import Compaction
from hub.controllers.feed import Feed, Route
from hub.controllers.steadiness import Steadiness
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Key
from hub.domain.history import Keeping
from hub.ports import Transaction
from machinery.errors import ExpiredError, NotFoundError, UnavailableError
from tests.unit.hub.controllers.conftest import Hub


class Seen:
    """Collects keys, and wakes who waits for one."""

    def __init__(self) -> None:
        self.keys: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, key: Key) -> None:
        self.keys.put_nowait(key.name)

    async def next(self) -> str:
        async with asyncio.timeout(5):
            return await self.keys.get()


async def test_objects_there_come_first_and_changes_follow(hub: Hub) -> None:
    seen = Seen()
    hub.join("c1")
    feed = Feed(hub.store, [Route(MANAGED_CLUSTERS, seen)])
    running = asyncio.create_task(feed.run())
    assert await seen.next() == "c1"
    await feed.synced.wait()
    hub.join("c2")
    assert await seen.next() == "c2"
    running.cancel()


async def test_a_route_gets_its_kind_and_what_it_wants(hub: Hub) -> None:
    clusters, requests = Seen(), Seen()
    hub.join("c1")
    name = hub.submit("c1")
    routes = [
        Route(MANAGED_CLUSTERS, clusters, wanted=lambda _document: False),
        Route(REQUESTS, requests, wanted=lambda document: bool(document["spec"])),
    ]
    await Feed(hub.store, routes).resync()
    assert clusters.keys.empty()
    assert await requests.next() == name


async def test_a_store_that_is_away_for_a_while_ends_nothing(hub: Hub) -> None:
    seen = Seen()
    hub.store.failure = UnavailableError("the database is locked")
    feed = Feed(hub.store, [Route(MANAGED_CLUSTERS, seen)])
    running = asyncio.create_task(feed.run())
    await asyncio.sleep(0)
    hub.store.failure = None
    hub.join("c1")
    assert await seen.next() == "c1"
    running.cancel()


async def test_compaction_keeps_the_watch_window(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    old = hub.revision
    hub.clock.advance(timedelta(hours=2))
    hub.join("c2")
    hub.clock.advance(timedelta(minutes=59))
    hour = timedelta(hours=1)
    keeping = Keeping(hour, hour, 2**30, hour, hour, hour, 0)
    await Compaction(hub.store, keeping, Steadiness(hub.clock, timedelta())).reconcile("all")
    changes = await hub.store.read(lambda tx: tx.changes.since(old))
    assert changes[-1].key.name == "c2"
    with pytest.raises(ExpiredError):
        await hub.store.read(lambda tx: tx.changes.since(0))


class Picky(Batched):
    """Fails for one name."""

    def __init__(self, hub: Hub, bad: str) -> None:
        super().__init__(hub.store)
        self.bad = bad
        self.done: list[str] = []

    def step(self, tx: Transaction, name: str) -> None:
        del tx
        if name == "gone":
            raise NotFoundError("gone")
        if name == self.bad:
            raise UnavailableError("not now")
        self.done.append(name)


async def test_a_name_that_fails_holds_up_no_other_and_waits_again(hub: Hub) -> None:
    subject = Picky(hub, "bad")
    for name in ("a", "bad", "gone", "b"):
        subject.wants(name)
    with pytest.raises(UnavailableError, match="not now"):
        await subject.reconcile(TOGETHER)
    assert {"a", "b"} <= set(subject.done)
    subject.bad = ""
    assert await subject.reconcile(TOGETHER) is None
    assert subject.done[-1] == "bad"
