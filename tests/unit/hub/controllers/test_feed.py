"""Keys reach controllers: those that are there, then every change, and again after trouble."""

import asyncio

import pytest

from hub.controllers.batch import TOGETHER, Batched
from hub.controllers.feed import Feed, Route
from hub.domain.change import MANAGED_CLUSTERS, REQUESTS, Key
from hub.ports import Transaction
from machinery.errors import NotFoundError, UnavailableError
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
