"""What a replica does while it leads: controllers for each term, an Event for each leader, and nothing when another leads.

In the loop's time: on a machine that stands still for half a second a term would end by itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest

from hub.domain.change import EVENTS
from hub.election import RowLock
from hub.leading import Candidacy, Leading
from hub.metrics.leader import add_leader
from hub.ports import Store
from hub.roster import Controllers
from hub.settings import SettingsError, load
from machinery.conditions import HUB_ACCEPTED
from machinery.election import Candidate, Lock, Timings
from machinery.errors import NotLeaderError
from machinery.metrics import Registry
from machinery.product import GROUP_SUFFIX
from machinery.tasks import GuardedTasks
from machinery.timestamps import format_time
from tests.fakes.memory_lock import Way
from tests.fakes.memory_store import MemoryLifeline
from tests.fakes.timetable import ManualTimetable
from tests.fakes.virtual_time import LoopClock, in_virtual_time
from tests.unit.hub.controllers.conftest import Hub

START = Hub().clock.now()
FAST = Timings(*(timedelta(milliseconds=each) for each in (600, 500, 50, 10)))
OTHER = Candidate("hub-1", "other")


def in_the_loops_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def played() -> None:
        in_virtual_time(test())

    return played


@asynccontextmanager
async def running(hub: Hub, timetable: ManualTimetable, lock: Lock | None = None) -> AsyncIterator[Leading]:
    settings = load({}, None, {})

    def controllers(store: Store) -> Controllers:
        return Controllers(store, hub.issuer, settings, hub.lifetimes, clock=hub.clock, since=lambda _tx: START)

    leading = Leading(
        hub.store,
        lock or RowLock(MemoryLifeline(hub.store)),
        Candidacy("hub-0", FAST),
        controllers,
        clock=LoopClock(asyncio.get_running_loop()),
        timetable=timetable,
        group_suffix=GROUP_SUFFIX,
        on_end=lambda error: pytest.fail(str(error)),
    )
    async with GuardedTasks("election") as tasks:
        tasks.start("elector", leading.run())
        yield leading
        await leading.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the flag has no event of its own
            await asyncio.sleep(0.01)


def events(hub: Hub) -> list[str]:
    stored = [stored for (kind, _), stored in hub.store.state.objects.items() if kind == EVENTS]
    return [event.document["message"] for event in stored if event.document["reason"] == "LeaderElection"]


def values(registry: Registry) -> dict[str, float]:
    """What is told now, by series."""
    series = (line.rsplit(" ", 1) for line in registry.text().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in series}


def overtake(hub: Hub) -> None:
    hub.store.transact(lambda tx: tx.leaders.take(tx.leaders.record(), OTHER, FAST.lease))


@in_the_loops_time
async def test_a_leader_works_rests_when_another_leads_and_works_again() -> None:
    hub, timetable = Hub(), ManualTimetable()
    async with running(hub, timetable) as leading:
        await leading.begin()
        assert leading.snapshot()["leads"]
        hub.join("c1")
        hub.accept("c1")
        await until(lambda: hub.condition("c1", HUB_ACCEPTED) and events(hub))
        assert timetable.jobs

        overtake(hub)
        await until(lambda: leading.leadership.term is None and not timetable.jobs)
        assert not leading.waiting()
        hub.join("c2")
        hub.accept("c2")
        assert leading.snapshot()["leader"] in {"hub-0", "hub-1"}
        assert hub.condition("c2", HUB_ACCEPTED) is None

        await until(lambda: leading.leadership.term == 3)
        await until(lambda: hub.condition("c2", HUB_ACCEPTED))
        await until(lambda: len(events(hub)) == 3)
    late = format_time(START)
    assert events(hub) == [
        "hub-0 became leader in term 1: nobody held the lock before",
        f"hub-1 became leader in term 2, at {late}: the term ended before it was told why",
        "hub-0 became leader in term 3: hub-1 did not renew it for 0.6 s",
    ]


@in_the_loops_time
async def test_what_befell_the_election_is_counted() -> None:
    hub, registry = Hub(), Registry()
    way = Way(RowLock(MemoryLifeline(hub.store)))
    async with running(hub, ManualTimetable(), way) as leading:
        add_leader(registry, leading)
        assert values(registry)["muster_hub_leader"] == 0
        way.away = True
        await leading.begin()
        await until(lambda: leading.tally.failures)
        way.away = False
        await until(lambda: leading.leadership.term == 1)
        assert (values(registry)["muster_hub_leader"], values(registry)["muster_hub_leader_term"]) == (1, 1)
        await until(lambda: leading.tally.renewals > 1)
        assert values(registry)["muster_hub_leader_renewals_total"] >= 2

        held = leading.leadership.term
        leading.leadership.was_fenced(1)  # a write that the database refused
        await until(lambda: leading.leadership.term == 2)
        with pytest.raises(NotLeaderError):
            leading.leadership.require(held or 0)  # one of the term before
        way.swallows = True
        await until(lambda: leading.leadership.term is None)
        way.swallows = False
        await until(lambda: leading.leadership.term == 3)
        told = values(registry)
        assert told["muster_hub_leader_gained_total"] == 3
        assert told['muster_hub_leader_lost_total{cause="DEPOSED"}'] == 1
        assert told['muster_hub_leader_lost_total{cause="NOT_RENEWED"}'] == 1
        assert told['muster_hub_leader_writes_refused_total{where="unsent"}'] >= 1
        assert told['muster_hub_leader_writes_refused_total{where="fenced"}'] == 1
        assert told["muster_hub_leader_lock_failures_total"] >= 2
    assert values(registry)['muster_hub_leader_lost_total{cause="STOPPED"}'] == 1


@in_the_loops_time
async def test_a_follower_is_ready_without_controllers() -> None:
    hub, timetable = Hub(), ManualTimetable()
    overtake(hub)
    async with running(hub, timetable) as leading:
        await leading.begin()
        assert not leading.snapshot()["leads"]
        assert leading.snapshot()["leader"] == "hub-1"
        assert not timetable.jobs
        assert not leading.waiting()


@in_the_loops_time
async def test_a_replica_whose_lock_cannot_be_reached_serves_without_leading_and_leads_when_it_can() -> None:
    hub = Hub()
    way = Way(RowLock(MemoryLifeline(hub.store)))
    way.away = True
    async with running(hub, ManualTimetable(), way) as leading:
        async with asyncio.timeout(5):
            await leading.begin()
        assert not leading.snapshot()["leads"]
        way.away = False
        await until(lambda: leading.leadership.term)


@in_the_loops_time
async def test_a_stop_leaves_the_lock_free_and_nothing_on_the_timetable() -> None:
    hub, timetable = Hub(), ManualTimetable()
    async with running(hub, timetable) as leading:
        await leading.begin()
        await leading.stop()
        record = hub.store.state.leader
        assert record is not None
        assert (record.holder, record.term) == ("", 1)
        assert not timetable.jobs


def test_times_of_the_election_that_do_not_fit_are_told_before_anything_starts() -> None:
    with pytest.raises(SettingsError, match="must be longer than the renew deadline"):
        load({"leader_elect_lease_duration": "5s"}, None, {})
    with pytest.raises(SettingsError, match=r"1\.2 times the retry period"):
        load({"leader_elect_retry_period": "9s"}, None, {})
    assert load({}, None, {"HUB_LEADER_ELECT_POLL_PERIOD": "5ms"}).election_timings.poll == timedelta(milliseconds=5)
