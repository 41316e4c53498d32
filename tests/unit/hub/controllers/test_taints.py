"""What follows Unknown: taints and alarms at their time, the brake that holds them, and the removal of silent clusters."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.api.events import EventRecord
from hub.api.liveness import Brake, BrakeLimits
from hub.api.managedclusters import availability, availability as taint, cluster as rules
from hub.api.managedclusters.availability import STALE, Damping, StalenessPolicy, TaintDelays
from hub.api.meta.change import EVENTS
from hub.controllers.builder import PERIODIC
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.controllers.clusters import taints
from hub.controllers.clusters.deletion import Removal
from hub.controllers.clusters.staleness import Staleness
from hub.controllers.clusters.taints import BRAKE_CHECKS, TaintReconciler
from hub.grpc_door.session.acknowledgements import BeatRate
from hub.ports import Transaction
from hub.registry.liveness import brake, taints as aftermath
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, InvalidError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.conditions import Condition
from machinery.meta.objects import Query
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import ManualClock
from machinery.runtime.controller import Controller
from tests.checks import check_each, check_results, present
from tests.fakes.fleetwork import work
from tests.unit.hub.conftest import failing, transactions_of
from tests.unit.hub.controllers.conftest import Hub

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
DELAY, HOLD = TaintDelays().delay, TaintDelays().damping.hold
NOW = ManualClock().now()
LIMITS = BrakeLimits()
HELD = Brake(since=NOW, silent=30, fleet=100)
UNREACHABLE = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
UNAVAILABLE = {"key": "cluster.open-cluster-management.io/unavailable", "effect": "NoSelect"}
MINE = {"key": "example.com/mine", "effect": "NoSelect", "value": "x"}
DAY = timedelta(days=1)
POLICY = StalenessPolicy(mark=7 * DAY, remove=30 * DAY)
C1 = ClusterName("c1")


class World:
    """A fleet under one controller of taints, which gets every change as from the change log."""

    def __init__(self, hub: Hub, clusters: int = 1) -> None:
        self.hub = hub
        self.names = [ClusterName(f"c{number}") for number in range(1, clusters + 1)]
        for name in self.names:
            hub.join(name)
            self.set(rules.AVAILABLE, name)
        self.begin()

    def begin(self, delays: TaintDelays | None = None, limits: BrakeLimits | None = None) -> None:
        """Another leader: it knows nothing but the database."""
        reconciler = TaintReconciler(self.hub.store, delays or TaintDelays(), limits or BrakeLimits())
        self.wanted, self.controller = reconciler.wanted, Controller("taints", reconciler, clock=self.hub.clock)

    def set(self, condition: Condition, *names: ClusterName) -> None:
        for name in names or self.names:
            self.hub.store.transact(clusters.set_condition, name, condition, "test")

    async def step(self) -> timedelta | None:
        return await work(self.controller, PERIODIC, *[name for name in self.names if self.wanted(self.hub.cluster(name))])

    async def taints_after_step(self) -> list[str]:
        await self.step()
        return self.taints()

    def taints(self, name: ClusterName | None = None) -> list[str]:
        taints = self.hub.cluster(name or self.names[0])["spec"].get("taints", [])
        return [taint["key"].rpartition("/")[2] for taint in taints]

    @property
    def of_the_fleet(self) -> list[tuple[str, str]]:
        """Reasons and messages of the Events about the fleet, in the order in which they came."""
        found = self.hub.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items
        return [(each.document["reason"], each.document["message"]) for each in sorted(found, key=lambda one: one.revision)]

    @property
    def tainted(self) -> int:
        return sum(bool(self.taints(name)) for name in self.names)


async def test_a_silence_is_tainted_after_a_moment_and_once(hub: Hub) -> None:
    world = World(hub)
    await world.step()
    world.set(rules.SILENT)
    assert await world.step() == DELAY
    hub.clock.advance(DELAY - SECOND)
    assert (await world.step(), world.taints()) == (SECOND, [])
    hub.clock.advance(SECOND)
    assert await world.taints_after_step() == ["unreachable"]
    before = hub.revision
    world.begin()
    await world.step()
    assert hub.revision == before


async def test_a_silence_that_ends_before_is_not_tainted_and_what_an_agent_says_itself_is_at_once(hub: Hub) -> None:
    world = World(hub)
    world.set(rules.SILENT)
    await world.step()
    hub.clock.advance(DELAY - SECOND)
    world.set(rules.AVAILABLE)
    await world.step()
    hub.clock.advance(DELAY)
    assert await world.taints_after_step() == []
    world.set(rules.UNAVAILABLE)
    assert await world.taints_after_step() == ["unavailable"]
    world.set(rules.AVAILABLE)
    assert await world.taints_after_step() == []


async def test_cluster_may_have_any_name(hub: Hub) -> None:
    world = World(hub, clusters=0)
    world.names = [ClusterName("all")]
    hub.join("all")
    world.set(rules.UNAVAILABLE)
    assert await world.taints_after_step() == ["unavailable"]


async def test_a_newcomer_that_says_nothing_is_tainted(hub: Hub) -> None:
    world = World(hub, clusters=0)
    hub.join("c9")
    world.names = [ClusterName("c9")]
    assert await world.step() is not None
    assert world.taints() == []
    hub.clock.advance(DELAY)
    assert await world.taints_after_step() == ["unreachable"]


async def test_a_cluster_that_flaps_is_tainted_and_untainted_only_when_it_holds_still(hub: Hub) -> None:
    world = World(hub)
    for _ in range(3):
        world.set(rules.AVAILABLE)
        hub.clock.advance(SECOND)
        world.set(rules.SILENT)
        hub.clock.advance(SECOND)
    await world.step()
    hub.clock.advance(HOLD - 2 * SECOND)
    assert (await world.step(), world.taints()) == (SECOND, [])
    hub.clock.advance(SECOND)
    assert await world.taints_after_step() == ["unreachable"]
    world.set(rules.AVAILABLE)
    assert await world.taints_after_step() == ["unreachable"]
    hub.clock.advance(HOLD)
    assert await world.taints_after_step() == []


async def braked(hub: Hub) -> World:
    """The brake holds the taints of 15 of 40 clusters that fell silent together."""
    world = World(hub, clusters=40)
    world.set(rules.SILENT, *world.names[:15])
    await world.step()
    hub.clock.advance(DELAY)
    assert await world.step() == BRAKE_CHECKS
    return world


async def test_a_fleet_that_falls_silent_together_is_not_tainted_and_has_one_event(hub: Hub) -> None:
    world = await braked(hub)
    assert world.tainted == 0
    ((reason, message),) = world.of_the_fleet
    assert reason == "BrakeHolds"
    assert "15 of 40" in message
    hub.clock.advance(timedelta(hours=5))
    assert (await world.step(), world.tainted, len(world.of_the_fleet)) == (BRAKE_CHECKS, 0, 1)
    assert hub.store.transact(brake.now).holds
    found = [hub.condition(name, rules.SILENT.type) for name in world.names[:15]]
    assert [condition and condition.status for condition in found] == ["Unknown"] * 15, "Unknown itself is not held"
    world.set(rules.UNAVAILABLE, world.names[20])
    await world.step()
    assert world.taints(world.names[20]) == ["unavailable"], "nor is what agents say themselves"


async def test_event_of_the_fleet_is_there_though_its_commit_had_no_answer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub loses its database and its fleet together, where a network fails."""
    world = World(hub, clusters=40)
    world.set(rules.SILENT, *world.names[:15])
    await world.step()
    hub.clock.advance(DELAY)
    run = hub.store.run

    async def unanswered(*asked: Any, **more: Any) -> Any:
        await run(*asked, **more)
        raise UnavailableError("it is not known whether this was written")

    monkeypatch.setattr(hub.store, "run", unanswered)
    world.controller.enqueue(world.names[0])
    assert await world.controller.step() is not None, "it pauses"
    monkeypatch.setattr(hub.store, "run", run)
    world.begin()
    assert (await world.step(), [reason for reason, _ in world.of_the_fleet]) == (BRAKE_CHECKS, ["BrakeHolds"])


async def test_an_operator_releases_it_and_it_does_not_come_back_for_the_same_clusters(hub: Hub) -> None:
    world = await braked(hub)
    hub.store.transact(brake.release, "ann")
    await world.step()
    assert (world.tainted, hub.store.transact(brake.now).holds) == (15, False)
    hub.clock.advance(SECOND)
    world.set(rules.SILENT, *world.names[15:30])
    hub.clock.advance(DELAY)
    await world.step()
    assert (world.tainted, hub.store.transact(brake.now).holds) == (15, True)


async def test_released_clusters_are_read_in_portions(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sizes, read = await braked(hub), list[int](), hub.store.read

    async def noted(query: Any, names: Any, *more: Any) -> Any:
        sizes.append(len(names))
        return await read(query, names, *more)

    monkeypatch.setattr(taints, "READ", 10)
    monkeypatch.setattr(hub.store, "read", noted)
    hub.store.transact(brake.release, "ann")
    await work(world.controller, PERIODIC)
    assert (sizes, world.tainted) == ([10, 5], 15)


async def test_many_share_their_commits_and_one_that_fails_holds_up_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(hub, clusters=120)
    world.begin(limits=replace(BrakeLimits(), share=0.0))
    await world.step()
    world.set(rules.SILENT)
    hub.clock.advance(DELAY)
    written = transactions_of(hub.store, monkeypatch)
    await world.step()
    assert (world.tainted, len(written)) == (120, 2)
    world.set(rules.AVAILABLE)
    error = ConflictError("somebody else was faster")
    mend = failing(monkeypatch, clusters, "put", error, lambda new, *_: new["metadata"]["name"] == "c1")
    with capture_logs() as lines:
        await world.step()
    assert "1 of 120 failed, the last of them c1" in lines[0]["error"]
    assert [name for name in world.names if world.taints(name)] == ["c1"], "the first of them, and no other"
    mend()
    hub.clock.advance(SECOND)
    await world.step()
    assert world.tainted == 0


async def test_a_flap_that_grows_old_no_longer_delays(hub: Hub) -> None:
    damping = Damping(threshold=2, window=timedelta(seconds=100), hold=timedelta(seconds=80))
    world = World(hub)
    world.begin(TaintDelays(damping=damping))
    world.set(rules.UNAVAILABLE)
    world.set(rules.AVAILABLE)
    hub.clock.advance(90 * SECOND)
    world.set(rules.UNAVAILABLE)
    assert await world.step() == 10 * SECOND
    hub.clock.advance(10 * SECOND)
    assert await world.taints_after_step() == ["unavailable"]


def test_interval_of_beats_grows_with_the_number_of_sessions_to_half_a_lease() -> None:
    rows = (
        (0, 60, 10),
        (400, 60, 10),  # 40 a second
        (401, 60, 15),  # in steps, so that a new session seldom changes the interval of all
        (600, 60, 15),
        (1_000, 60, 25),
        (10_000, 60, 30),  # twice a lease
        (10_000, 200, 100),
        (10_000, 12, 10),  # never shorter with more sessions
        (10_000, 4, 4),  # never longer than the lease
        (1, 4, 4),
    )

    def interval(sessions: int, lease: int, rate: float = 40) -> float:
        return BeatRate(10 * SECOND, rate, lambda: sessions).of(lease * SECOND).total_seconds()

    check_results(interval, rows)
    assert interval(1_000_000, 60, rate=0) == 10
    rates = [sessions / interval(sessions, 60) for sessions in range(401, 1_200)]
    assert 26 <= min(rates) <= max(rates) <= 40


async def test_a_silence_that_a_clock_ahead_has_dated_is_tainted(hub: Hub) -> None:
    world = World(hub)
    hub.clock.set_forward(timedelta(days=1))
    world.set(rules.SILENT)
    hub.clock.set_forward(-timedelta(days=1))
    assert await world.taints_after_step() == ["unreachable"]


def test_brake_holds_from_ten_clusters_above_the_share_down_to_half_of_that() -> None:
    began = ((9, 10, False), (10, 10, True), (10, 49, True), (10, 50, False), (20, 100, False), (21, 100, True), (0, 0, False))
    rows = [(silent, fleet, Brake(since=NOW, silent=silent, fleet=fleet) if on else Brake()) for silent, fleet, on in began]
    check_results(lambda silent, fleet: Brake().next_state(LIMITS, silent, fleet, NOW), rows)
    later = ((30, 100, HELD), (11, 100, HELD), (10, 100, Brake()), (4, 10, Brake()))
    check_results(lambda silent, fleet: HELD.next_state(LIMITS, silent, fleet, NOW + MINUTE), later)
    none = replace(LIMITS, share=0.0)
    assert (Brake().next_state(none, 1_000, 1_000, NOW).holds, HELD.next_state(none, 1_000, 1_000, NOW).holds) == (False, False)
    assert Brake().counts_from(LIMITS, NOW) == NOW - LIMITS.window
    assert HELD.counts_from(LIMITS, NOW + 500 * MINUTE) == NOW - LIMITS.window
    assert Brake(released=NOW + MINUTE).counts_from(LIMITS, NOW) == NOW - LIMITS.window, "the clock was ahead"
    released = HELD.after_release(NOW + MINUTE)
    assert (released.holds, released.counts_from(LIMITS, NOW + 2 * MINUTE)) == (False, NOW + MINUTE)
    assert released.next_state(LIMITS, 50, 100, NOW + 5 * MINUTE).released == NOW + MINUTE


def cluster(available: Condition | None, *taints: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"metadata": {"name": "c1", "creationTimestamp": format_time(NOW)}, "spec": {"a": 1}}
    if taints:
        document["spec"]["taints"] = list(taints)
    if available:
        document["status"] = {"conditions": [replace(available, last_transition_time=NOW + 7 * SECOND).to_document()]}
    return document


def test_taints_follow_the_availability() -> None:
    rows: tuple[tuple[Condition | None, list[Any], list[Any]], ...] = (
        *((rules.AVAILABLE, [], []), (rules.AVAILABLE, [UNREACHABLE, MINE, UNAVAILABLE], [MINE])),
        *((rules.UNAVAILABLE, [UNREACHABLE], [UNAVAILABLE]), (rules.SILENT, [UNAVAILABLE], [UNREACHABLE])),
        *((None, [], [UNREACHABLE]), (None, [MINE], [MINE, UNREACHABLE])),
        (rules.SILENT, [{**UNREACHABLE, "timeAdded": "then"}], [{**UNREACHABLE, "timeAdded": "then"}]),
        (rules.SILENT, [{**UNREACHABLE, "value": "x"}], [UNREACHABLE]),
        (rules.SILENT, [{**UNREACHABLE, "effect": "PreferNoSelect"}], [UNREACHABLE]),
        (rules.NEVER_JOINED, [], [UNREACHABLE]),
    )

    def check(available: Condition | None, before: list[Any], after: list[Any]) -> None:
        found = taint.tainted(cluster(available, *before))
        assert found["spec"].get("taints", []) == after, found
        assert found["spec"]["a"] == 1
        assert taint.has_right_taints(cluster(available, *before)) is (before == after)
        assert taint.has_right_taints(found)

    check_each(check, rows)
    assert "taints" not in taint.tainted(cluster(rules.AVAILABLE, UNREACHABLE))["spec"], "no empty list is left"
    deleting = cluster(None)
    deleting["metadata"]["deletionTimestamp"] = format_time(NOW)
    assert taint.has_right_taints(deleting)


def test_taints_of_a_flapping_cluster_wait_for_the_hold_and_never_shorter_than_the_delay() -> None:
    rows = (
        *((rules.SILENT, False, 30 * SECOND), (None, False, 30 * SECOND)),
        *((rules.UNAVAILABLE, False, timedelta()), (rules.AVAILABLE, False, timedelta())),
        *((rules.SILENT, True, 300 * SECOND), (rules.UNAVAILABLE, True, 300 * SECOND), (rules.AVAILABLE, True, 300 * SECOND)),
    )
    check_results(lambda available, flaps: TaintDelays().wait(available, flaps=flaps), rows)
    assert TaintDelays(delay=9 * MINUTE, damping=Damping(hold=MINUTE)).wait(rules.SILENT, flaps=True) == 9 * MINUTE
    assert taint.availability_changed_at(cluster(rules.SILENT)) == NOW + 7 * SECOND, "the delay counts from the change"
    assert taint.availability_changed_at(cluster(None)) == NOW, "or from the creation"


def aging(
    hub: Hub, policy: StalenessPolicy = POLICY, heard_for: timedelta | None = DAY, settled: timedelta = timedelta()
) -> Controller[str]:
    def since(tx: Transaction) -> object:
        return None if heard_for is None else tx.now - heard_for

    steady = ClockGuard(hub.clock, settled)
    reconciler = Staleness(hub.store, policy, BrakeLimits(), since=since, clock_guard=steady)  # type: ignore[arg-type]
    return Controller("staleness", reconciler, clock=hub.clock)


def silent(hub: Hub, name: str = "c1", condition: Condition = rules.SILENT) -> None:
    hub.join(name)
    hub.store.transact(clusters.set_condition, ClusterName(name), condition, "test")


def is_there(hub: Hub, name: str = "c1") -> bool:
    return any(key.name == name and kind.startswith("managedclusters.") for kind, key in hub.store.state.objects)


def mark(hub: Hub, name: str = "c1") -> str | None:
    found = hub.condition(name, STALE)
    return found.status if found else None


async def test_a_silent_cluster_is_marked_and_later_removed_with_the_whole_notice(hub: Hub) -> None:
    silent(hub)
    subject = aging(hub)
    hub.clock.advance(7 * DAY - timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert mark(hub) is None
    hub.clock.advance(timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert mark(hub) == "True"
    await removed_after(hub, subject, 23 * DAY)
    silent(hub)
    hub.clock.advance(100 * DAY)
    await work(subject, PERIODIC)
    await removed_after(hub, subject, 23 * DAY)


async def removed_after(hub: Hub, subject: Controller[str], notice: timedelta) -> None:
    hub.clock.advance(notice - timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert is_there(hub)
    hub.clock.advance(timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert not is_there(hub)


async def test_marking_is_off_by_default_and_without_a_removal_a_mark_is_all(hub: Hub) -> None:
    silent(hub)
    hub.clock.advance(1_000 * DAY)
    await work(aging(hub, StalenessPolicy()), PERIODIC)
    assert mark(hub) is None
    for _ in range(3):
        await work(aging(hub, StalenessPolicy(mark=DAY)), PERIODIC)
        hub.clock.advance(1_000 * DAY)
    assert mark(hub) == "True"


async def test_a_mark_names_the_end_and_goes_when_the_cluster_is_heard_again_whatever_policy_and_clock(hub: Hub) -> None:
    silent(hub)
    for policy, settled in ((POLICY, timedelta()), (StalenessPolicy(), timedelta()), (POLICY, SETTLED)):
        hub.store.transact(clusters.set_condition, C1, rules.SILENT, "test")
        since = hub.clock.now()
        hub.clock.advance(8 * DAY)
        await work(aging(hub), PERIODIC)
        found, ends = present(hub.condition("c1", STALE)), since + 31 * DAY
        assert (found.status, found.reason, found.message) == (
            "True",
            "SilentForTooLong",
            f"Silent since {since:%FT%TZ}. The hub removes it at {ends:%FT%TZ} unless its agent sends a heartbeat before.",
        )
        hub.store.transact(clusters.set_condition, C1, rules.AVAILABLE, "test")
        await work(aging(hub, policy, settled=settled), PERIODIC)
        assert mark(hub) == "False"


async def test_only_silence_without_a_word_is_stale(hub: Hub) -> None:
    conditions = {
        "moved": availability.MOVED,
        "standby": availability.STANDBY,
        "never": rules.NEVER_JOINED,
        "ill": rules.UNAVAILABLE,
    }
    for name, condition in conditions.items():
        silent(hub, name, condition)
    hub.clock.advance(8 * DAY)
    await work(aging(hub), PERIODIC)
    assert ([name for name in conditions if mark(hub, name) is not None], mark(hub, "never")) == (["never"], "True")


async def test_after_the_hub_was_away_every_cluster_first_has_a_grace(hub: Hub) -> None:
    silent(hub)
    hub.clock.advance(100 * DAY)
    for heard_for in (None, timedelta(seconds=299)):
        await work(aging(hub, heard_for=heard_for), PERIODIC)
        assert mark(hub) is None
    await work(aging(hub, heard_for=timedelta(seconds=300)), PERIODIC)
    assert mark(hub) == "True"


async def test_the_brake_holds_marks_and_removals(hub: Hub) -> None:
    for number in range(1, 21):
        silent(hub, f"c{number}", rules.AVAILABLE)
    for number in range(1, 15):
        hub.store.transact(clusters.set_condition, ClusterName(f"c{number}"), rules.SILENT, "test")
    policy = StalenessPolicy(mark=MINUTE, remove=2 * MINUTE)
    hub.clock.advance(timedelta(minutes=5))
    for _ in range(3):
        await work(aging(hub, policy), PERIODIC)
    assert {mark(hub, f"c{number}") for number in range(1, 15)} == {None}


async def test_one_that_fails_holds_up_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("c1", "c2", "c3"):
        silent(hub, name)
    hub.clock.advance(7 * DAY)
    failing(monkeypatch, aftermath, "apply_staleness_policy", InvalidError("it breaks a rule"), lambda name, *_: name == "c1")
    with capture_logs() as lines:
        await work(aging(hub), PERIODIC)
    warned = [line["error"] for line in lines if line["event"] == "reconcile failed in part"]
    assert warned == ["1 of 3 failed, the last of them c1: it breaks a rule"]
    assert [mark(hub, name) for name in ("c1", "c2", "c3")] == [None, "True", "True"]


async def test_a_removal_waits_for_add_ons_as_a_deletion_by_hand_does_and_is_reported(hub: Hub) -> None:
    """Nobody answers for its add-ons any more: what they hold is an operator's to give up, and not a policy's."""
    silent(hub)
    held = {"metadata": {"name": "a", "namespace": "c1", "finalizers": ["example.com/pre-delete"]}}
    hub.store.transact(addons.put, held, None, "admin")
    for days in (7, 23):
        hub.clock.advance(days * DAY)
        await work(aging(hub), PERIODIC)
    events: list[EventRecord] = []
    removing = Removal(hub.store, timedelta(hours=1), events.append, ClockGuard(hub.clock, timedelta()))
    while await removing.reconcile("c1") == timedelta():
        pass
    hub.clock.advance(timedelta(hours=1))
    await removing.reconcile("c1")
    assert [(each.reason, each.cluster) for each in events] == [("DeletionOverdue", "c1")]
    assert "hubctl delete cluster c1 --force" in events[0].message
    revision = hub.revision
    await work(aging(hub), PERIODIC)
    await removing.reconcile("c1")
    assert (is_there(hub), hub.revision, len(events)) == (True, revision, 1)


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_database_clock_that_is_a_year_ahead_for_minutes_marks_and_removes_nobody(hub: Hub, *, is_marked: bool) -> None:
    silent(hub)
    subject, minute = aging(hub, settled=SETTLED), timedelta(minutes=1)
    hub.clock.advance(8 * DAY if is_marked else DAY)
    for _ in range(12):
        await work(subject, PERIODIC)
        hub.clock.advance(minute)
    assert mark(hub) == ("True" if is_marked else None)
    for jump in (365 * DAY, -365 * DAY):
        hub.clock.set_forward(jump)
        for _ in range(9):
            await work(subject, PERIODIC)
            hub.clock.advance(minute)
    assert (is_there(hub), mark(hub)) == (True, "True" if is_marked else None)
    hub.clock.advance(31 * DAY)
    for _ in range(2):
        await work(subject, PERIODIC)
    assert mark(hub) == "True" if not is_marked else not is_there(hub)
