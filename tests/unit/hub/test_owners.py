"""Who owns an agent: what it says of other hubs, in the order of its epochs."""

from datetime import timedelta

import pytest

from hub.domain import cluster as rules
from hub.domain import stale, taint
from hub.domain.cluster import StatusReport
from hub.domain.heartbeat import Beat
from hub.domain.parting import MOVED, STANDBY, Departure
from hub.domain.transition import Transition
from hub.services import clusters, heartbeats, owners
from hub.services.owners import Standing
from machinery import conditions
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, BadRequestError, ForbiddenError, NotFoundError, StaleEpochError
from machinery.identity import ClusterName, HubId
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

ME, OTHER, THIRD = HubId("hub-a"), HubId("hub-b"), HubId("hub-c")
NONE, GRACE, WINDOW = timedelta(), timedelta(seconds=300), timedelta(seconds=1)
UID = "uid-1"


@pytest.fixture
def accepted(newcomer: Newcomer, store: MemoryStore) -> MemoryStore:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    return store


@pytest.fixture
def living(accepted: MemoryStore) -> MemoryStore:
    """It has reported here, in epoch 5."""
    accepted.transact(owners.claim, EDGE, 5)
    accepted.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    accepted.transact(heartbeats.flush, [Beat(EDGE, NONE, available=True, epoch=5)])
    return accepted


def stand_by(store: MemoryStore, owner: str, epoch: int, *, uid: str = UID, cluster: ClusterName = EDGE) -> Standing:
    return store.transact(owners.stand_by, Departure(cluster, HubId(owner), epoch), uid, ME, "agent")


def available(store: MemoryStore) -> tuple[str, str, str]:
    condition = rules.availability(store.transact(clusters.find, EDGE).document)
    return (condition.status, condition.reason, condition.message) if condition else ("", "", "")


def kept(store: MemoryStore) -> tuple[int, str | None]:
    last = store.state.beats[EDGE]
    return last.epoch, last.owner


def expire(store: MemoryStore, clock: ManualClock) -> None:
    since = clock.now() - timedelta(days=30)
    store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="hub"))


def test_a_hub_that_never_had_the_cluster_keeps_it_on_standby(accepted: MemoryStore) -> None:
    assert stand_by(accepted, OTHER, 7) == Standing(accepted=True, epoch=7)
    assert available(accepted) == (
        "Unknown",
        "ManagedClusterStandby",
        "The registration agent reports to the hub hub-b, and holds this one in reserve.",
    )


def test_the_hub_that_was_left_says_where_the_cluster_moved(living: MemoryStore) -> None:
    stand_by(living, OTHER, 6)
    assert available(living) == ("Unknown", "ManagedClusterMoved", "The registration agent has moved to the hub hub-b.")


def test_an_agent_that_reports_to_no_hub_yet_has_moved_nowhere(living: MemoryStore) -> None:
    stand_by(living, "", 6)
    assert available(living)[1] == "ManagedClusterStandby"


def test_the_same_word_again_is_no_news_and_another_owner_is(living: MemoryStore) -> None:
    stand_by(living, OTHER, 6)
    before = living.state.revision
    stand_by(living, OTHER, 6)
    assert living.state.revision == before
    stand_by(living, THIRD, 7)
    assert available(living)[2] == "The registration agent has moved to the hub hub-c."


def test_a_lower_epoch_changes_nothing_and_is_told_the_one_that_is_known(living: MemoryStore) -> None:
    assert stand_by(living, OTHER, 4) == Standing(accepted=True, epoch=5)
    assert (available(living)[0], kept(living)) == ("True", (5, None))


def test_in_one_epoch_an_open_session_is_worth_more_than_a_word_of_another_hub(living: MemoryStore) -> None:
    living.transact(lambda tx: tx.heartbeats.set_session(EDGE, "s1"))
    stand_by(living, OTHER, 5)
    assert (available(living)[0], kept(living)) == ("True", (5, None))


def test_an_agent_that_names_this_very_hub_is_not_in_reserve(living: MemoryStore) -> None:
    assert stand_by(living, ME, 8).epoch == 8
    assert (available(living)[0], kept(living)) == ("True", (8, None))


def test_a_beat_here_restores_what_the_agent_says(living: MemoryStore) -> None:
    stand_by(living, OTHER, 6)
    living.transact(owners.claim, EDGE, 7)
    living.transact(heartbeats.revive, Beat(EDGE, NONE, available=False, epoch=7), "hub")
    assert (available(living)[1], kept(living)) == ("ManagedClusterKubeAPIServerUnavailable", (7, None))


def test_a_beat_of_the_session_that_was_left_restores_nothing(living: MemoryStore) -> None:
    stand_by(living, OTHER, 6)
    with pytest.raises(StaleEpochError) as refused:
        living.transact(heartbeats.revive, Beat(EDGE, NONE, available=True, epoch=5), "hub")
    assert (refused.value.epoch, available(living)[1]) == (6, "ManagedClusterMoved")


def test_on_standby_nobody_is_silent_however_long(accepted: MemoryStore, clock: ManualClock) -> None:
    stand_by(accepted, OTHER, 7)
    for _ in range(3):
        clock.advance(10 * GRACE)
        expire(accepted, clock)
        assert available(accepted)[1] == "ManagedClusterStandby"


def test_who_stood_by_before_it_was_accepted_is_on_standby_at_once_when_it_is(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock
) -> None:
    newcomer.join(newcomer.bootstrap())
    assert stand_by(store, OTHER, 7) == Standing(accepted=False, epoch=7)
    assert available(store) == ("", "", "")
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    expire(store, clock)
    assert available(store)[1] == "ManagedClusterStandby"


def test_who_was_silent_before_it_told_where_it_is_has_moved(living: MemoryStore, clock: ManualClock) -> None:
    clock.advance(2 * GRACE)
    expire(living, clock)
    assert available(living)[1] == "ManagedClusterLeaseUpdateStopped"
    tainted = taint.tainted(living.transact(clusters.find, EDGE).document)
    assert taint.UNREACHABLE in str(tainted["spec"]["taints"])
    stand_by(living, OTHER, 6)
    document = living.transact(clusters.find, EDGE).document
    assert (available(living)[1], taint.wanted(rules.availability(document))) == ("ManagedClusterMoved", None)
    assert stale.silent_since(document) is None
    assert "taints" not in taint.tainted({**tainted, "status": document["status"]})["spec"]


@pytest.mark.parametrize(("condition", "counts"), [(rules.SILENT, True), (MOVED, False), (STANDBY, False)])
def test_a_move_is_no_flap(living: MemoryStore, clock: ManualClock, condition: conditions.Condition, *, counts: bool) -> None:
    since = clock.now() - GRACE
    fell = Transition(EDGE, "u", clock.now(), "True", condition.status, condition.reason, "hub")
    living.transact(lambda tx: tx.transitions.add(fell))
    assert (fell.is_fall, bool(living.transact(lambda tx: tx.transitions.falls(since)))) == (counts, counts)


def test_a_farewell_is_the_sessions_own_and_outdates_it(living: MemoryStore) -> None:
    with pytest.raises(StaleEpochError):
        living.transact(owners.bid_farewell, Departure(EDGE, OTHER, 9), 4, "agent")
    assert kept(living) == (5, None)
    living.transact(owners.bid_farewell, Departure(EDGE, OTHER, 6), 5, "agent")
    assert (available(living)[1], kept(living)) == ("ManagedClusterMoved", (6, OTHER))
    with pytest.raises(StaleEpochError):
        living.transact(owners.check, EDGE, 5)


def test_a_session_opens_in_the_highest_epoch_alone_and_none_is_never_outdated(living: MemoryStore) -> None:
    for epoch in (0, 5):
        assert living.transact(owners.is_claimed, EDGE, epoch)
    assert not living.transact(owners.is_claimed, EDGE, 6)
    with pytest.raises(StaleEpochError) as refused:
        living.transact(owners.claim, EDGE, 4)
    assert refused.value.epoch == 5
    stand_by(living, OTHER, 6)
    assert not living.transact(owners.is_claimed, EDGE, 6)
    living.transact(owners.claim, EDGE, 0)
    assert kept(living) == (6, None)


def test_only_its_own_accepted_cluster_stands_by(accepted: MemoryStore, newcomer: Newcomer) -> None:
    with pytest.raises(AlreadyExistsError):
        stand_by(accepted, OTHER, 7, uid="another")
    with pytest.raises(NotFoundError):
        stand_by(accepted, OTHER, 7, cluster=ClusterName("gone"))
    newcomer.accept(accepted=False)
    with pytest.raises(ForbiddenError, match="hubctl accept edge"):
        stand_by(accepted, OTHER, 7)


@pytest.mark.parametrize(("owner", "epoch"), [(OTHER, 2**63), ("a b", 1), ("x" * 129, 1), ("<script>", 1)])
def test_what_no_database_keeps_and_what_is_no_hubs_id_is_refused(accepted: MemoryStore, owner: str, epoch: int) -> None:
    with pytest.raises(BadRequestError):
        stand_by(accepted, owner, epoch)
