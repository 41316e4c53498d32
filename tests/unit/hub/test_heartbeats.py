"""Silence and its end: the two moments when a heartbeat is news."""

from datetime import datetime, timedelta

import pytest

from hub.domain import cluster as rules
from hub.domain.cluster import StatusReport
from hub.domain.heartbeat import Beat
from hub.domain.lease import Expiry
from hub.ports import Transaction
from hub.services import clusters, heartbeats
from machinery import conditions
from machinery.clock import ManualClock
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

WINDOW = timedelta(seconds=1)
GRACE = timedelta(seconds=300)
NONE = timedelta()


@pytest.fixture
def started(clock: ManualClock) -> datetime:
    """A hub that has been up for a day."""
    start = clock.now()
    clock.advance(timedelta(days=1))
    return start


@pytest.fixture
def available(newcomer: Newcomer, store: MemoryStore, started: datetime) -> MemoryStore:
    """A cluster that is accepted, has reported and has just beaten."""
    assert started
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    beat(store, available=True)
    return store


def beat(store: MemoryStore, *, available: bool | None, age: timedelta = NONE, cluster: ClusterName = EDGE) -> None:
    store.transact(heartbeats.flush, [Beat(cluster, age, available)])


def expire(store: MemoryStore, since: datetime) -> Expiry:
    return store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="hub"))


def verdict(store: MemoryStore) -> tuple[str, str]:
    condition = rules.availability(store.transact(clusters.find, EDGE).document)
    assert condition is not None
    return condition.status, condition.reason


def test_silence_becomes_unknown_exactly_when_grace_and_window_are_over(
    available: MemoryStore, clock: ManualClock, started: datetime
) -> None:
    assert expire(available, started) == Expiry(expired=False, look_again=GRACE + WINDOW)
    clock.advance(GRACE + WINDOW - timedelta(microseconds=1))
    assert expire(available, started) == Expiry(expired=False, look_again=timedelta(microseconds=1))
    assert verdict(available)[0] == "True"
    clock.advance(timedelta(microseconds=1))
    assert expire(available, started) == Expiry(expired=True, look_again=GRACE)
    assert verdict(available) == ("Unknown", "ManagedClusterLeaseUpdateStopped")


def test_unknown_is_written_once(available: MemoryStore, clock: ManualClock, started: datetime) -> None:
    clock.advance(GRACE + WINDOW)
    expire(available, started)
    revision = available.state.revision
    clock.advance(GRACE)
    assert expire(available, started).expired
    assert available.state.revision == revision


def test_newer_beat_is_seen_in_the_same_transaction(available: MemoryStore, clock: ManualClock, started: datetime) -> None:
    clock.advance(GRACE + WINDOW)
    beat(available, available=True, age=timedelta(seconds=10))
    assert expire(available, started) == Expiry(expired=False, look_again=GRACE + WINDOW - timedelta(seconds=10))


def test_time_in_which_no_beat_could_be_stored_counts_towards_nobodys_grace(available: MemoryStore, clock: ManualClock) -> None:
    clock.advance(timedelta(days=3))
    restarted = clock.now()
    assert expire(available, restarted) == Expiry(expired=False, look_again=GRACE + WINDOW)
    clock.advance(GRACE + WINDOW)
    assert expire(available, restarted).expired


def set_lease(store: MemoryStore, seconds: int) -> None:
    def change(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        spec = {**stored.document["spec"], "leaseDurationSeconds": seconds}
        clusters.put(tx, {**stored.document, "spec": spec}, stored, "ann")

    store.transact(change)


def test_lease_duration_of_the_cluster_counts(available: MemoryStore, clock: ManualClock, started: datetime) -> None:
    set_lease(available, 2)
    assert expire(available, started).look_again == timedelta(seconds=11)
    clock.advance(timedelta(seconds=11))
    assert expire(available, started) == Expiry(expired=True, look_again=timedelta(seconds=10))


def test_a_lease_that_is_cut_has_its_whole_grace_from_then_on(
    available: MemoryStore, clock: ManualClock, started: datetime
) -> None:
    """The agent beat every few minutes, and hears only now that it is to be faster."""
    set_lease(available, 3600)
    beat(available, available=True)
    clock.advance(timedelta(minutes=50))
    set_lease(available, 2)
    assert expire(available, started) == Expiry(expired=False, look_again=timedelta(seconds=11))
    clock.advance(timedelta(seconds=11) - timedelta(microseconds=1))
    assert expire(available, started) == Expiry(expired=False, look_again=timedelta(microseconds=1))
    clock.advance(timedelta(microseconds=1))
    assert expire(available, started).expired


def test_a_lease_that_grows_and_other_changes_give_no_new_grace(
    available: MemoryStore, clock: ManualClock, started: datetime
) -> None:
    clock.advance(GRACE)
    set_lease(available, 61)
    available.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v9"), "a")
    assert expire(available, started) == Expiry(expired=False, look_again=timedelta(seconds=5) + WINDOW)
    clock.advance(timedelta(seconds=5) + WINDOW)
    assert expire(available, started).expired


def test_cluster_that_never_beat_has_a_grace_from_its_acceptance(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock, started: datetime
) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    clock.advance(GRACE * 2)
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    assert expire(store, started) == Expiry(expired=False, look_again=GRACE + WINDOW)
    clock.advance(GRACE + WINDOW)
    assert expire(store, started).expired
    assert verdict(store)[0] == "Unknown"


def test_cluster_that_was_never_accepted_is_not_judged(newcomer: Newcomer, store: MemoryStore, started: datetime) -> None:
    assert expire(store, started) == Expiry(expired=False, look_again=None)
    newcomer.join(newcomer.bootstrap())
    assert expire(store, started) == Expiry(expired=False, look_again=None)


def test_denied_cluster_is_judged_as_before(
    available: MemoryStore, newcomer: Newcomer, clock: ManualClock, started: datetime
) -> None:
    newcomer.accept(accepted=False)
    available.transact(clusters.set_condition, EDGE, rules.DENIED, "hub")
    clock.advance(GRACE + WINDOW)
    assert expire(available, started).expired


@pytest.mark.parametrize(
    ("told", "expected"),
    [(True, ("True", "ManagedClusterAvailable")), (False, ("False", "ManagedClusterKubeAPIServerUnavailable"))],
)
def test_first_beat_after_a_silence_restores_the_agents_own_verdict(
    available: MemoryStore,
    clock: ManualClock,
    started: datetime,
    told: bool,  # noqa: FBT001 - a table's column
    expected: tuple[str, str],
) -> None:
    clock.advance(GRACE + WINDOW)
    expire(available, started)
    assert available.transact(heartbeats.revive, Beat(EDGE, NONE, told), "hub")
    assert verdict(available) == expected
    assert expire(available, started).look_again == GRACE + WINDOW


@pytest.mark.parametrize(("told", "status"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_beat_without_a_verdict_restores_the_last_one_and_never_true_by_itself(
    newcomer: Newcomer, clock: ManualClock, started: datetime, *, told: bool | None, status: str
) -> None:
    store = newcomer.store
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    beat(store, available=told)
    clock.advance(GRACE + WINDOW)
    expire(store, started)
    store.transact(heartbeats.revive, Beat(EDGE, NONE, None), "hub")
    assert verdict(store)[0] == status


def test_beat_of_a_cluster_that_is_not_silent_is_no_news(available: MemoryStore, clock: ManualClock) -> None:
    clock.advance(timedelta(seconds=10))
    revision = available.state.revision
    assert available.transact(heartbeats.revive, Beat(EDGE, NONE, available=False), "hub")
    assert available.state.revision == revision
    assert available.state.beats[EDGE].at == clock.now()


def test_beat_of_an_unknown_cluster_is_no_news(store: MemoryStore) -> None:
    assert store.transact(heartbeats.revive, Beat(ClusterName("nobody"), NONE, available=True), "hub")


def test_transition_time_is_when_the_status_changed(available: MemoryStore, clock: ManualClock, started: datetime) -> None:
    clock.advance(GRACE + WINDOW)
    expire(available, started)
    document = available.transact(clusters.find, EDGE).document
    found = conditions.find(document["status"]["conditions"], conditions.AVAILABLE)
    assert found is not None
    assert found.last_transition_time == clock.now()
