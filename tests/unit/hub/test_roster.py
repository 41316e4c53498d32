"""All controllers together on one store: a cluster that joins is accepted, approved, signed, judged; nothing else moves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest

from hub.controllers import namespaces as namespaces_controller
from hub.domain import clusterset, removal
from hub.domain import document as doc
from hub.domain.change import CLUSTER_SETS, NAMESPACES, Change, Kind, StoredObject
from hub.domain.namespace import namespace
from hub.domain.request import RequestPhase
from hub.ports import Transaction
from hub.roster import Controllers
from hub.services import addons, clusters, namespaces
from hub.settings import load
from machinery.conditions import AVAILABLE, HUB_ACCEPTED, TRUE, UNKNOWN
from machinery.errors import ExpiredError, UnavailableError
from machinery.identity import AddOnName, ClusterName
from machinery.tasks import GuardedTasks
from tests.checks import present
from tests.fakes.fleetwork import find
from tests.fakes.virtual_time import ManualTimetable, in_virtual_time
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


async def until(hub: Hub, condition: Callable[[], object], within: timedelta = timedelta(seconds=5)) -> None:
    """Looks after every change."""
    async with asyncio.timeout(within.total_seconds()):
        async for _changes in hub.store.follow(0):
            if condition():
                return


async def test_cluster_of_a_rule_is_accepted_and_signed_and_its_request_removed_after_its_time() -> None:
    hub = Hub()
    async with working(hub, "edge-*") as timetable:
        hub.join("edge-1")
        name = hub.submit("edge-1")
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: (found := hub.condition("edge-1", HUB_ACCEPTED)) and found.status == TRUE)
        hub.clock.advance(timedelta(hours=1))
        timetable.wake("request-cleanup")
        await until(hub, lambda: hub.count() == 0)


async def test_decisions_from_before_the_start_are_acted_upon_and_a_silent_cluster_reads_unknown_after_its_grace() -> None:
    hub = Hub()
    hub.join("c1")
    name = hub.submit("c1")
    hub.approve(name)
    hub.accept("c1")
    async with working(hub):
        await until(hub, lambda: hub.state(name).phase is RequestPhase.ISSUED)
        await until(hub, lambda: hub.condition("c1", HUB_ACCEPTED))
    hub.clock.advance(timedelta(seconds=301))
    async with working(hub):
        await until(hub, lambda: (found := hub.condition("c1", AVAILABLE)) and found.status == UNKNOWN)


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


@pytest.mark.parametrize("trouble", [UnavailableError("the database does not answer"), ExpiredError("compacted")])
async def test_what_goes_while_nobody_follows_is_made_again(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    """The change log is not followed for a moment, and what is deleted in that moment is told to nobody."""
    hub, ready, cut = Hub(), asyncio.Event(), asyncio.Event()
    keys = [(NAMESPACES, "c1"), *((CLUSTER_SETS, name) for name in clusterset.STANDING)]
    follow = hub.store.follow

    def lose(tx: Transaction) -> None:
        for kind, name in keys:
            stored = present(find(tx, kind, name))
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


def addon(namespace: str, name: str, priority: int = 0) -> dict[str, Any]:
    """It does not go before its own controller lets it."""
    notes = {removal.PRIORITY: str(priority)}
    return {"metadata": {"name": name, "namespace": namespace, "annotations": notes, "finalizers": ["example.com/pre-delete"]}}


def test_what_is_let_go_of_late_is_noticed_soon() -> None:
    """After ten minutes a deleted cluster, or namespace, that nobody lets go of is looked at once a minute."""
    hub, late = Hub(), ClusterName("c1")

    def make(tx: Transaction) -> None:
        namespaces.put(tx, namespace("east"), None, "admin")
        for held in (addon("c1", "first"), addon("c1", "second", 1), addon("east", "other")):
            addons.put(tx, held, None, "admin")

    def delete(tx: Transaction) -> None:
        clusters.remove(tx, clusters.find(tx, late), "admin")
        namespaces.remove(tx, cast("StoredObject", namespaces.get(tx, "east")), "admin")

    def let_go(tx: Transaction, where: str, name: str) -> None:
        stored = addons.find(tx, ClusterName(where), AddOnName(name))
        addons.put(tx, doc.with_metadata(stored.document, finalizers=None), stored, "admin")

    def is_marked(name: str) -> bool:
        stored = hub.store.transact(addons.find, late, AddOnName(name))
        return doc.is_deleting(stored.document)

    async def play() -> None:
        hub.join("c1")
        hub.accept("c1")
        async with working(hub):
            hub.store.transact(make)
            hub.store.transact(delete)
            await asyncio.sleep(5)
            assert (is_marked("first"), is_marked("second")) == (True, False)
            hub.clock.advance(timedelta(minutes=10))
            await asyncio.sleep(630)  # the looks are a minute apart now, and the next ones half a minute away
            hub.store.transact(let_go, "c1", "first")
            hub.store.transact(let_go, "east", "other")
            within = 2 * namespaces_controller.LOOK_AGAIN
            await until(hub, lambda: is_marked("second") and not hub.store.transact(namespaces.get, "east"), within)

    in_virtual_time(play())
