"""All controllers together on one store: a cluster that joins is accepted, approved, signed, judged; nothing else moves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from hub.domain import clusterset
from hub.domain.change import CLUSTER_SETS, NAMESPACES, Change, Kind
from hub.domain.request import RequestPhase
from hub.ports import Transaction
from hub.roster import Controllers
from hub.settings import load
from machinery.conditions import AVAILABLE, HUB_ACCEPTED, TRUE, UNKNOWN
from machinery.errors import ExpiredError, UnavailableError
from machinery.tasks import GuardedTasks
from tests.fakes.fleetwork import find
from tests.fakes.timetable import ManualTimetable
from tests.unit.hub.controllers.conftest import Hub

START = Hub().clock.now()


@asynccontextmanager
async def working(hub: Hub, *globs: str) -> AsyncIterator[ManualTimetable]:
    settings = load({"auto_approve": globs}, None, {})
    timetable = ManualTimetable()
    controllers = Controllers(hub.store, hub.issuer, settings, hub.lifetimes, clock=hub.clock, since=lambda _tx: START)
    controllers.wake(timetable)
    async with GuardedTasks("controllers") as tasks:
        await controllers.start(tasks)
        yield timetable
        await tasks.stop()


async def until(hub: Hub, condition: Callable[[], object]) -> None:
    """Looks after every change."""
    async with asyncio.timeout(5):
        async for _changes in hub.store.follow(0):
            if condition():
                return


async def test_a_cluster_of_the_rule_goes_all_the_way_by_itself() -> None:
    hub = Hub()
    async with working(hub, "edge-*"):
        hub.join("edge-1")
        name = hub.submit("edge-1")
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: (found := hub.condition("edge-1", HUB_ACCEPTED)) and found.status == TRUE)


async def test_what_was_there_before_the_start_is_taken_up() -> None:
    hub = Hub()
    hub.join("c1")
    name = hub.submit("c1")
    hub.approve(name)
    hub.accept("c1")
    async with working(hub):
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))


async def test_without_a_rule_a_cluster_waits_for_both_decisions() -> None:
    hub = Hub()
    async with working(hub):
        hub.join("c1")
        name = hub.submit("c1")
        hub.join("c2")
        hub.approve(hub.submit("c2"))
        await until(hub, lambda: hub.store.state.revision >= 5)
        assert hub.state(name).phase is RequestPhase.PENDING
        assert hub.condition("c1", HUB_ACCEPTED) is None


async def test_a_cluster_that_never_beats_reads_unknown_after_its_grace() -> None:
    hub = Hub()
    hub.join("c1")
    hub.accept("c1")
    async with working(hub):
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))
    hub.clock.advance(timedelta(seconds=301))
    async with working(hub):
        await until(hub, lambda: (found := hub.condition("c1", AVAILABLE)) and found.status == UNKNOWN)


async def test_what_is_over_goes_when_its_time_comes() -> None:
    hub = Hub()
    async with working(hub, "*") as timetable:
        hub.join("c1")
        name = hub.submit("c1")
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        hub.clock.advance(timedelta(hours=1))
        timetable.wake("request-cleanup")
        await until(hub, lambda: hub.count() == 0)


@pytest.mark.parametrize("trouble", [UnavailableError("the database does not answer"), ExpiredError("compacted")])
async def test_what_goes_while_nobody_follows_is_made_again(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    """The change log is not followed for a moment, and what is deleted in that moment is told to nobody."""
    hub, ready, cut = Hub(), asyncio.Event(), asyncio.Event()
    keys = [(NAMESPACES, "c1"), *((CLUSTER_SETS, name) for name in clusterset.STANDING)]
    follow = hub.store.follow

    def lose(tx: Transaction) -> None:
        for kind, name in keys:
            stored = find(tx, kind, name)
            assert stored is not None
            tx.objects.delete(kind, stored, "test")

    def is_whole() -> bool:
        return all(hub.store.transact(find, kind, name) for kind, name in keys)

    async def cut_once(after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        if not cut.is_set():
            await ready.wait()
            hub.store.transact(lose)
            cut.set()
            raise trouble
        async for changes in follow(after, kinds):
            yield changes

    hub.join("c1")
    hub.accept("c1")
    monkeypatch.setattr(hub.store, "follow", cut_once)
    async with working(hub), asyncio.timeout(5):
        while not is_whole():
            await hub.store.wait_for_change(hub.revision, timedelta(seconds=1))
        ready.set()
        await cut.wait()
        assert not is_whole()
        await until(hub, is_whole)
