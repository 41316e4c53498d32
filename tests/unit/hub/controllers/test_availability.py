"""Silence becomes Unknown exactly when a grace ends, and never for time in which nobody could be heard."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.api.liveness import Beat, Expiry, grace
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.availability import Damping
from hub.api.managedclusters.cluster import StatusReport
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers.clusters.availability import AvailabilityReconciler
from hub.extensions.settings import load
from hub.heartbeat import HeartbeatCoverage
from hub.ports import Transaction
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.conditions import AVAILABLE, TRUE, UNKNOWN
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import Controller
from machinery.runtime.work_queue import WorkQueue
from tests.checks import check_results, present
from tests.fakes.fleetwork import work
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, Newcomer, change_cluster, fresh_newcomer, fresh_store
from tests.fakes.virtual_time import LoopClock, in_virtual_time
from tests.unit.hub.conftest import failing, transactions_of
from tests.unit.hub.controllers.conftest import AGENT, Hub

C1 = ClusterName("c1")
NONE, MICROSECOND, SECOND, MINUTE = timedelta(), timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
WINDOW, GRACE = SECOND, timedelta(seconds=300)
SETTINGS = load({}, None, {})
LEASE, MOMENT, LONG = SECOND, SECOND, 10 * MINUTE


def judge(hub: Hub, *, hears: bool = True) -> Controller[str]:
    started = hub.clock.now()
    reconciler = AvailabilityReconciler(hub.store, window=WINDOW, since=lambda _tx: started if hears else None)
    return Controller("availability", reconciler, clock=hub.clock)


async def look(subject: Controller[str], cluster: ClusterName = C1) -> timedelta | None:
    return await work(subject, cluster)


def accepted(hub: Hub, *names: str) -> None:
    for name in names or ("c1",):
        hub.join(name)
        hub.accept(name)
        hub.store.transact(clusters.set_condition, ClusterName(name), rules.ACCEPTED, "test")


def beat(hub: Hub, name: str = "c1") -> None:
    hub.store.transact(lambda tx: tx.heartbeats.store([Beat(ClusterName(name), timedelta(), available=True)]))


def status(hub: Hub, name: str = "c1") -> str | None:
    condition = hub.condition(name, AVAILABLE)
    return condition.status if condition else None


async def test_unknown_is_written_exactly_when_the_grace_ends_and_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    hub.accept("c1", accepted=False)
    hub.store.transact(clusters.set_condition, C1, rules.DENIED, "test")  # a denied cluster is judged as before
    beat(hub)
    subject, written = judge(hub), transactions_of(hub.store, monkeypatch)
    assert await look(subject) == GRACE + WINDOW
    hub.clock.advance(GRACE)
    assert await work(subject) == WINDOW, "without any news"
    assert (status(hub) == UNKNOWN, written) == (False, [])
    hub.clock.advance(WINDOW)
    assert await work(subject) == GRACE
    condition = present(hub.condition("c1", AVAILABLE))
    assert condition.last_transition_time == hub.clock.now()
    assert (condition.status, condition.reason, condition.message) == (
        UNKNOWN,
        "ManagedClusterLeaseUpdateStopped",
        "Registration agent stopped updating its lease.",
    )
    before = hub.revision
    hub.clock.advance(GRACE)
    assert await look(subject) == GRACE
    assert (len(written), hub.revision) == (1, before), "a silence that goes on is written once"


@pytest.mark.parametrize("renews", [True, False])
async def test_an_agent_that_answers_every_change_with_its_verdict_ends_in_the_right_state_at_once(
    hub: Hub, *, renews: bool
) -> None:
    """As OCM's agent, with either driver: it reports Available at each change, also while its Lease is expired."""
    accepted(hub)
    beat(hub)
    subject, user, seen = judge(hub), f"system:open-cluster-management:c1:{AGENT}", 0

    async def answer() -> None:
        nonlocal seen
        if hub.revision != seen:
            seen, stored = hub.revision, hub.store.transact(clusters.find, C1)
            reported = doc.with_status_condition(stored.document, rules.AVAILABLE, hub.clock.now())
            hub.store.transact(clusters.put, reported, stored, user)
        await work(subject, C1)

    for _ in range(400):
        hub.clock.advance(SECOND)
        await answer()
    assert status(hub) == UNKNOWN
    if renews:
        hub.store.transact(heartbeats.revive, Beat(C1, timedelta(), None), user)
        for _ in range(250):
            hub.clock.advance(SECOND)
            await answer()
    taken = [(each.before, each.status) for each in hub.store.state.transitions]
    assert taken == [("", TRUE), (TRUE, UNKNOWN), *([(UNKNOWN, TRUE)] if renews else [])]


async def test_beat_moves_the_end_of_the_grace_even_after_the_first_look(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(hub)
    beat(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE)
    beat(hub)
    hub.clock.advance(WINDOW)
    assert await look(subject) == GRACE
    assert status(hub) != UNKNOWN
    hub.clock.advance(GRACE)
    run = hub.store.run

    async def beaten(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        beat(hub)
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(hub.store, "run", beaten)
    assert await look(subject) == GRACE + WINDOW
    assert status(hub) != UNKNOWN


async def test_clusters_that_were_never_accepted_are_gone_or_cannot_be_heard_are_not_judged(hub: Hub) -> None:
    hub.join("c1")
    subject = judge(hub)
    hub.clock.advance(timedelta(days=1))
    assert (await look(subject), status(hub), await look(subject, ClusterName("gone"))) == (None, None, None)
    accepted(hub, "c2")
    beat(hub, "c2")
    hub.clock.advance(timedelta(days=1))
    assert await look(judge(hub, hears=False), ClusterName("c2")) == SECOND, "beats cannot be stored"
    assert status(hub, "c2") != UNKNOWN


async def test_many_that_fall_silent_together_share_their_commits(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(1, 251)]
    accepted(hub, *names)
    subject, written = judge(hub), transactions_of(hub.store, monkeypatch)
    await work(subject, *names)
    hub.clock.advance(GRACE + WINDOW)
    await work(subject)
    found = [hub.condition(name, AVAILABLE) for name in names]
    assert {condition.status for condition in found if condition} == {UNKNOWN}
    assert None not in found
    assert len(written) == 3


def fail(monkeypatch: pytest.MonkeyPatch, use_case: str, *names: str, error: Exception | None = None) -> Callable[[], None]:
    """Has this use case fail for these clusters until what is returned is called."""
    error = error or ConflictError("somebody else was faster")
    return failing(monkeypatch, heartbeats, use_case, error, lambda cluster: cluster in names)


@pytest.mark.parametrize("use_case", ["expire", "silence"])
async def test_one_that_fails_for_ever_holds_up_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch, use_case: str) -> None:
    accepted(hub, "c1", "c2", "c3")
    subject = judge(hub)
    hub.clock.advance(7 * SECOND)
    accepted(hub, "c4")
    mend = fail(monkeypatch, use_case, "c1")
    hub.clock.advance(GRACE + WINDOW - 7 * SECOND)
    with capture_logs() as lines:
        await work(subject, "c1", "c2", "c3", "c4")
    assert [line["error"] for line in lines] == ["1 of 4 failed, the last of them c1: somebody else was faster"]
    assert [status(hub, name) for name in ("c1", "c2", "c3", "c4")] == [None, UNKNOWN, UNKNOWN, None]
    for _ in range(14):  # c1 is tried all the time, less and less often
        hub.clock.advance(SECOND / 2)
        await work(subject)
    assert [status(hub, name) for name in ("c1", "c4")] == [None, UNKNOWN], "at its time, to the second"
    mend()
    hub.clock.advance(30 * SECOND)
    await work(subject)
    assert status(hub, "c1") == UNKNOWN


async def test_who_was_never_heard_of_has_a_reason_of_its_own(hub: Hub) -> None:
    accepted(hub)
    subject = judge(hub)
    hub.clock.advance(GRACE + WINDOW)
    await look(subject)
    condition = present(hub.condition("c1", AVAILABLE))
    assert (condition.status, condition.reason) == (UNKNOWN, "ManagedClusterNeverJoined")


def waiting() -> tuple[ManualClock, WorkQueue[str]]:
    clock = ManualClock()
    queue = WorkQueue[str](clock)
    for name, seconds in (("a", 10), ("b", 12), ("c", 20)):
        queue.add_after(name, seconds * SECOND)
    return clock, queue


def test_what_is_due_soon_comes_with_what_is_due_now_and_only_then() -> None:
    clock, queue = waiting()
    clock.advance(9 * SECOND)
    queue.add("c")
    assert queue.take(10, ahead=5 * SECOND) == ("c",)
    queue.done("c")
    assert queue.pause() == SECOND
    queue.add_after("c", 11 * SECOND)
    clock.advance(SECOND)
    assert (queue.take(10, ahead=5 * SECOND), queue.pause()) == (("a", "b"), 10 * SECOND)
    clock, queue = waiting()
    queue.add("a")
    queue.done(queue.take(10))
    queue.add_after("a", 30 * SECOND)
    clock.advance(10 * SECOND)
    assert (queue.take(10, ahead=5 * SECOND), queue.pause()) == ((), 2 * SECOND)


def test_times_that_were_replaced_are_forgotten_also_where_they_are_far_away() -> None:
    """A cluster with a lease of a day reports every minute, and is looked at each time."""
    clock, queue = waiting()
    for _ in range(10_000):
        queue.add("a")
        queue.add("b")
        names = queue.take(10)
        queue.done(names)
        for name in names:
            queue.add_after(name, timedelta(days=5))
    assert len(queue._order) < 200
    clock.advance(20 * SECOND)
    assert queue.take(10) == ("c",)
    clock.advance(timedelta(days=5))
    assert set(queue.take(10)) == {"a", "b"}


def test_a_key_that_is_handled_is_not_taken_again_before_that_is_done_and_an_earlier_time_wins() -> None:
    clock = ManualClock()
    queue = WorkQueue[str](clock)
    queue.add("a")
    assert queue.take(10) == ("a",)
    queue.add("a")
    queue.add_after("a", SECOND)
    clock.advance(SECOND)
    assert queue.take(10) == ()
    queue.done(["a"])
    assert queue.take(10) == ("a",)
    queue.done(["a"])
    queue.add_after("a", SECOND)
    queue.add_after("a", 2 * SECOND)
    assert queue.pause() == SECOND


@pytest.fixture
def available(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> InlineStore:
    """A cluster that is accepted, has reported and has just beaten."""
    clock.advance(timedelta(days=1))
    newcomer.accepted()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    store_beat(store, available=True)
    return store


def store_beat(store: InlineStore, *, available: bool | None) -> None:
    store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, NONE, available)]))


def expire(store: InlineStore, since: datetime = ManualClock().now()) -> Expiry:  # noqa: B008 - the same each time
    return store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="hub"))


def set_lease(store: InlineStore, seconds: int) -> None:
    change_cluster(store, lambda old: doc.with_spec(old, leaseDurationSeconds=seconds))


def test_an_acceptance_by_a_clock_that_was_ahead_delays_no_silence(available: InlineStore, clock: ManualClock) -> None:
    clock.set_forward(timedelta(hours=9))
    for condition in (rules.DENIED, rules.ACCEPTED):
        available.transact(clusters.set_condition, EDGE, condition, "hub")
    clock.set_forward(-timedelta(hours=9))
    store_beat(available, available=True)
    clock.advance(grace(timedelta(minutes=1)) + WINDOW)
    assert expire(available).expired


def test_shorter_lease_has_its_whole_grace_from_then_on(available: InlineStore, clock: ManualClock) -> None:
    """The agent beat every few minutes, and learns only now that it must beat faster."""
    set_lease(available, 3600)
    store_beat(available, available=True)
    clock.advance(timedelta(minutes=50))
    set_lease(available, 2)
    assert expire(available) == Expiry(expired=False, look_again=timedelta(seconds=11))
    clock.advance(timedelta(seconds=11) - MICROSECOND)
    assert expire(available) == Expiry(expired=False, look_again=MICROSECOND)
    clock.advance(MICROSECOND)
    assert expire(available) == Expiry(expired=True, look_again=timedelta(seconds=10))


def test_longer_lease_or_other_changes_give_no_new_grace(available: InlineStore, clock: ManualClock) -> None:
    clock.advance(GRACE)
    set_lease(available, 61)
    available.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v9"), "a")
    assert expire(available) == Expiry(expired=False, look_again=timedelta(seconds=5) + WINDOW)
    clock.advance(timedelta(seconds=5) + WINDOW)
    assert expire(available).expired


def test_beat_without_a_verdict_restores_the_last_one_and_never_true_by_itself() -> None:
    def restored(last: bool | None) -> str:  # noqa: FBT001 - a table's column
        clock = ManualClock()
        newcomer = fresh_newcomer(clock)
        store, start = newcomer.store, clock.now()
        newcomer.accepted()
        store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
        store_beat(store, available=last)
        clock.advance(GRACE + WINDOW)
        expire(store, start)
        store.transact(heartbeats.revive, Beat(EDGE, NONE, None), "hub")
        return present(rules.availability(store.transact(clusters.find, EDGE).document)).status

    check_results(restored, [(True, "True"), (False, "False"), (None, "Unknown")])


def test_beat_of_a_cluster_that_is_not_silent_or_unknown_changes_no_object(available: InlineStore, clock: ManualClock) -> None:
    clock.advance(timedelta(seconds=10))
    revision = available.state.revision
    assert available.transact(heartbeats.revive, Beat(EDGE, NONE, available=False), "hub")
    assert available.transact(heartbeats.revive, Beat(ClusterName("nobody"), NONE, available=True), "hub")
    assert (available.state.revision, available.state.beats[EDGE].at) == (revision, clock.now())


def test_each_step_is_kept_with_time_reason_and_actor(available: InlineStore, clock: ManualClock) -> None:
    store, since = available, clock.now()
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v2"), "agent")
    clock.advance(GRACE + WINDOW)
    store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="judge"))
    fallen = clock.now()
    clock.advance(WINDOW)
    store.transact(heartbeats.revive, Beat(EDGE, timedelta(), available=False), "beat")
    there = [rules.AVAILABLE.to_document()]
    change_cluster(store, lambda old: doc.with_status(old, conditions=there), actor="kubectl")
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), "ann"))
    assert [(each.before, each.status, each.reason, each.actor) for each in store.state.transitions] == [
        ("", "True", "ManagedClusterAvailable", "agent"),
        ("True", "Unknown", "ManagedClusterLeaseUpdateStopped", "judge"),
        ("Unknown", "False", "ManagedClusterKubeAPIServerUnavailable", "beat"),
        *(("False", "True", "ManagedClusterAvailable", "kubectl"), ("True", "", "Deleted", "ann")),
    ]
    assert store.state.transitions[1].at == fallen


def test_cluster_flaps_from_the_threshold_of_falls_until_they_are_old(clock: ManualClock) -> None:
    def minutes(threshold: int, falls: int) -> float | None:
        damping, minute = Damping(threshold=threshold), timedelta(minutes=1)
        until = damping.flaps_until([clock.now() + number * minute for number in range(1, falls + 1)])
        return None if until is None else (until - damping.window - clock.now()) / minute

    check_results(minutes, [(3, 2, None), (3, 3, 1), (3, 5, 3), (0, 99, None), (1, 0, None)])


class World:
    """A database whose clock may go its own way, and replicas on it; each is up or not."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = ManualClock()
        self.store = fresh_store(self.database)
        self.started = self.now
        self.storing = True
        self.up: dict[str, HeartbeatCoverage] = {}

    @property
    def now(self) -> datetime:
        return self.database.now()

    def start(self, replica: str = "a") -> HeartbeatCoverage:
        self.up[replica] = HeartbeatCoverage(self.store, self.clock, replica, lambda: self.storing)
        return self.up[replica]

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(SECOND)
            self.database.advance(SECOND)
            for hearing in self.up.values():
                await hearing.mark()

    def stand_still(self, seconds: int) -> None:
        for clock in (self.clock, self.database):
            clock.advance(timedelta(seconds=seconds))

    async def since(self, hearing: HeartbeatCoverage) -> datetime | None:
        return await self.store.read(hearing.since)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("jump", [MINUTE, 3 * SECOND, -3 * SECOND, -MINUTE], ids=str)
async def test_jump_of_the_databases_clock_begins_anew_with_the_next_mark(world: World, jump: timedelta) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.database.advance(jump)
    if jump > timedelta():
        assert await world.since(hearing) is None, "until then no cluster is judged"
    await hearing.mark()
    jumped = world.now
    assert await world.since(hearing) == jumped
    await world.pass_time(30)
    assert await world.since(hearing) == jumped


async def test_after_a_jump_backwards_no_beat_is_of_the_future(world: World) -> None:
    """Or the beats of the next hour would not count, and a silence would be detected an hour late."""
    hearing = world.start()
    await world.pass_time(30)
    await world.store.run(lambda tx: tx.heartbeats.store([Beat(C1, timedelta(), available=True)]))
    world.database.advance(-timedelta(hours=1))
    await hearing.mark()
    assert world.store.state.beats[C1].at == world.now
    await world.pass_time(5)
    await world.store.run(lambda tx: tx.heartbeats.store([Beat(C1, timedelta(), available=True)]))
    assert world.store.state.beats[C1].at == world.now


async def test_a_transaction_that_waits_for_its_turn_is_no_jump(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = world.start()
    await world.pass_time(30)
    run = world.store.run

    async def late(*args: Any, **kwargs: Any) -> Any:
        world.clock.advance(3 * SECOND)
        outcome = await run(*args, **kwargs)
        world.database.advance(3 * SECOND)
        return outcome

    monkeypatch.setattr(world.store, "run", late)
    await hearing.mark()
    monkeypatch.undo()
    await world.pass_time(1)
    assert await world.since(hearing) == world.started + SECOND


async def test_pause_of_the_process_or_of_the_database_or_a_restart_begins_anew(world: World) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.stand_still(60)
    assert await world.since(hearing) is None
    await hearing.mark()
    assert await world.since(hearing) == world.now
    await world.pass_time(30)
    world.store.failure = UnavailableError("the database is locked")
    await world.pass_time(30)
    world.store.failure = None
    assert await world.since(hearing) is None
    await hearing.mark()
    assert await world.since(hearing) == world.now
    await world.pass_time(30)
    world.storing = False
    await world.pass_time(6)
    assert await world.since(hearing) is None, "beats cannot be stored"
    world.storing = True
    await world.pass_time(30)
    world.stand_still(2)
    again = world.start()
    await again.mark()
    assert await world.since(again) == world.now, "a restart gives a whole grace, however short it was"


async def test_replicas_that_are_replaced_one_by_one_give_nobody_a_new_grace(world: World) -> None:
    for replica in "abc":
        world.start(replica)
    await world.pass_time(30)
    for replica in "abc":
        world.stand_still(2)
        world.start(replica)
        await world.pass_time(3)
    assert {await world.since(hearing) for hearing in world.up.values()} == {world.started + SECOND}
    world.up.clear()
    world.stand_still(100_000)
    await world.start("b").mark()
    assert list(world.store.state.marks) == ["b"], "those that are gone are forgotten"


async def test_other_replicas_hear_for_one_that_stands_still_and_all_begin_anew_after_all_stood_still(world: World) -> None:
    current, other = world.start("a"), world.start("b")
    await world.pass_time(10)
    del world.up["a"]
    await world.pass_time(60)
    assert await world.since(current) == world.started + SECOND
    await current.mark()
    assert await world.since(current) == await world.since(other) == world.started + SECOND
    world.up["a"] = current
    await world.pass_time(10)
    world.stand_still(20)
    await other.mark()
    anew = world.now
    await world.pass_time(3)
    assert await world.since(current) == await world.since(other) == anew


def joined(tx: Transaction, name: ClusterName) -> None:
    spec = {"hubAcceptsClient": True, "leaseDurationSeconds": round(LEASE.total_seconds())}
    clusters.put(tx, {"metadata": {"name": name}, "spec": spec}, None, "admin")
    clusters.set_condition(tx, name, rules.ACCEPTED, "test")
    tx.heartbeats.store([Beat(name, timedelta(), available=True)])


def is_unknown(tx: Transaction, name: ClusterName) -> bool:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    available = rules.availability(stored.document) if stored else None
    return available is not None and available.status == UNKNOWN


class Outage:
    """A database that goes away for LONG, and is back right after one more attempt. `heard`: since when it answers."""

    def __init__(self, store: InlineStore, clock: LoopClock) -> None:
        self._store, self._right = store, store.read
        self._clock = clock
        self.heard = clock.now()
        self.back = asyncio.Event()

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = self._clock.now()
        monkeypatch.setattr(self._store, "read", self._read)

    async def _read(self, *args: Any, **kwargs: Any) -> Any:
        if self.back.is_set():
            return await self._right(*args, **kwargs)
        if self._clock.now() - self.heard >= LONG:
            asyncio.get_running_loop().call_later(0.01, self._end)
        raise UnavailableError("the database does not answer")

    def _end(self) -> None:
        self.heard = self._clock.now()
        self.back.set()


@pytest.mark.parametrize("fleet", [1, 5])
def test_silence_is_noticed_on_time_after_a_long_outage(fleet: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def late() -> timedelta:
        clock = LoopClock(asyncio.get_running_loop())
        store = InlineStore(clock)
        outage = Outage(store, clock)
        reconciler = AvailabilityReconciler(store, window=SETTINGS.flush_window, since=lambda _tx: outage.heard)
        subject = Controller("availability", reconciler)
        names = [ClusterName(f"c{number}") for number in range(fleet)]
        for name in names:
            store.transact(joined, name)
            subject.enqueue(name)
        running = asyncio.create_task(subject.run())
        await asyncio.sleep(1)
        outage.begin(monkeypatch)
        await outage.back.wait()
        while not all([await store.read(is_unknown, name) for name in names]):
            await store.wait_for_change(store.state.revision, LONG)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return clock.now() - outage.heard

    due = grace(LEASE) + SETTINGS.flush_window
    assert due <= in_virtual_time(late()) <= due + MOMENT
