"""Every change of availability is kept, whoever makes it."""

from datetime import timedelta

import pytest

from hub.domain import cluster as rules
from hub.domain.cluster import StatusReport
from hub.domain.heartbeat import Beat
from hub.domain.parting import Parting, silence
from hub.domain.transition import Damping, Transition
from hub.ports import Transaction
from hub.services import clusters, heartbeats
from machinery.clock import ManualClock
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

WINDOW = timedelta(seconds=1)
GRACE = timedelta(seconds=300)


def kept(store: MemoryStore) -> list[tuple[str, str, str, str]]:
    return [(each.before, each.status, each.reason, each.actor) for each in store.state.transitions]


def test_each_step_is_kept_with_time_reason_and_actor(newcomer: Newcomer, store: MemoryStore, clock: ManualClock) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v2"), "agent")
    store.transact(heartbeats.flush, [Beat(EDGE, timedelta(), available=True)])
    since = clock.now()
    clock.advance(GRACE + WINDOW)
    store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=WINDOW, since=since, actor="judge"))
    fallen = clock.now()
    clock.advance(WINDOW)
    store.transact(heartbeats.revive, Beat(EDGE, timedelta(), available=False), "beat")
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), "ann"))
    assert kept(store) == [
        ("", "True", "ManagedClusterAvailable", "agent"),
        ("True", "Unknown", "ManagedClusterLeaseUpdateStopped", "judge"),
        ("Unknown", "False", "ManagedClusterKubeAPIServerUnavailable", "beat"),
        ("False", "", "Deleted", "ann"),
    ]
    assert store.state.transitions[1].at == fallen


def test_what_an_operator_writes_is_kept_too(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())

    def patch(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        status = {"conditions": [rules.UNAVAILABLE.to_document()]}
        clusters.put(tx, {**stored.document, "status": status}, stored, "kubectl")

    store.transact(patch)
    assert kept(store) == [("", "False", rules.UNAVAILABLE.reason, "kubectl")]


@pytest.mark.parametrize(
    ("heard", "parting", "reason"),
    [
        (True, None, "ManagedClusterLeaseUpdateStopped"),
        (False, None, "ManagedClusterNeverJoined"),
        (True, Parting.MOVED, "ManagedClusterMoved"),
        (True, Parting.STANDBY, "ManagedClusterStandby"),
    ],
)
def test_silences_have_reasons_that_tell_them_apart(
    heard: bool,  # noqa: FBT001 - a table's column
    parting: Parting | None,
    reason: str,
) -> None:
    condition = silence(heard=heard, parting=parting)
    assert (condition.type, condition.status, condition.reason) == ("ManagedClusterConditionAvailable", "Unknown", reason)
    assert condition.message


@pytest.mark.parametrize(("threshold", "falls", "end"), [(3, 2, None), (3, 3, 1), (3, 5, 3), (0, 99, None), (1, 0, None)])
def test_a_cluster_flaps_from_the_threshold_on_and_until_its_falls_are_old(
    threshold: int, falls: int, end: int | None, clock: ManualClock
) -> None:
    damping, minute = Damping(threshold=threshold), timedelta(minutes=1)
    until = damping.flaps_until([clock.now() + number * minute for number in range(1, falls + 1)])
    assert until == (None if end is None else clock.now() + end * minute + damping.window)


def test_only_what_was_available_can_fall(clock: ManualClock) -> None:
    steps = [("True", "Unknown"), ("True", "False"), ("False", "Unknown"), ("", "Unknown"), ("Unknown", "True"), ("True", "")]
    falls = [Transition(EDGE, "u", clock.now(), before, status, "", "").is_fall for before, status in steps]
    assert falls == [True, True, False, False, False, False]
