"""Rules of availability: the grace of a lease, the interval of beats, the brake, and taints."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hub.domain import cluster as rules
from hub.domain import taint
from hub.domain.brake import Brake, Limits
from hub.domain.taint import Patience
from hub.domain.transition import Damping
from hub.rpc.tempo import Tempo
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.timestamps import format_time
from tests.checks import check_each, check_results

NOW = ManualClock().now()
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


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
        return Tempo(10 * SECOND, rate, lambda: sessions).of(lease * SECOND).total_seconds()

    check_results(interval, rows)
    assert interval(1_000_000, 60, rate=0) == 10
    rates = [sessions / interval(sessions, 60) for sessions in range(401, 1_200)]
    assert 26 <= min(rates) <= max(rates) <= 40


LIMITS = Limits()
HELD = Brake(since=NOW, silent=30, fleet=100)


def test_brake_holds_from_ten_clusters_above_the_share_down_to_half_of_that() -> None:
    began = ((9, 10, False), (10, 10, True), (10, 49, True), (10, 50, False), (20, 100, False), (21, 100, True), (0, 0, False))
    rows = [(silent, fleet, Brake(since=NOW, silent=silent, fleet=fleet) if on else Brake()) for silent, fleet, on in began]
    check_results(lambda silent, fleet: Brake().judged(LIMITS, silent, fleet, NOW), rows)
    later = ((30, 100, HELD), (11, 100, HELD), (10, 100, Brake()), (4, 10, Brake()))
    check_results(lambda silent, fleet: HELD.judged(LIMITS, silent, fleet, NOW + MINUTE), later)
    none = replace(LIMITS, share=0.0)
    assert not Brake().judged(none, 1_000, 1_000, NOW).holds
    assert not HELD.judged(none, 1_000, 1_000, NOW).holds
    assert Brake().counts_from(LIMITS, NOW) == NOW - LIMITS.window
    assert HELD.counts_from(LIMITS, NOW + 500 * MINUTE) == NOW - LIMITS.window
    released = HELD.let_go(NOW + MINUTE)
    assert not released.holds
    assert released.counts_from(LIMITS, NOW + 2 * MINUTE) == NOW + MINUTE
    assert released.judged(LIMITS, 50, 100, NOW + 5 * MINUTE).released == NOW + MINUTE


UNREACHABLE = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
UNAVAILABLE = {"key": "cluster.open-cluster-management.io/unavailable", "effect": "NoSelect"}
MINE = {"key": "example.com/mine", "effect": "NoSelect", "value": "x"}


def cluster(available: Condition | None, *taints: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"metadata": {"name": "c1", "creationTimestamp": format_time(NOW)}, "spec": {"a": 1}}
    if taints:
        document["spec"]["taints"] = list(taints)
    if available:
        changed = replace(available, last_transition_time=NOW + 7 * SECOND)
        document["status"] = {"conditions": [changed.to_document()]}
    return document


def test_taints_follow_the_availability() -> None:
    rows: tuple[tuple[Condition | None, list[Any], list[Any]], ...] = (
        (rules.AVAILABLE, [], []),
        (rules.AVAILABLE, [UNREACHABLE, MINE, UNAVAILABLE], [MINE]),
        (rules.UNAVAILABLE, [UNREACHABLE], [UNAVAILABLE]),
        (rules.SILENT, [UNAVAILABLE], [UNREACHABLE]),
        (None, [], [UNREACHABLE]),
        (None, [MINE], [MINE, UNREACHABLE]),
        (rules.SILENT, [{**UNREACHABLE, "timeAdded": "then"}], [{**UNREACHABLE, "timeAdded": "then"}]),
        (rules.SILENT, [{**UNREACHABLE, "value": "x"}], [UNREACHABLE]),
        (rules.SILENT, [{**UNREACHABLE, "effect": "PreferNoSelect"}], [UNREACHABLE]),
        (rules.NEVER_JOINED, [], [UNREACHABLE]),
    )

    def check(available: Condition | None, before: list[Any], after: list[Any]) -> None:
        found = taint.tainted(cluster(available, *before))
        assert found["spec"].get("taints", []) == after, found
        assert found["spec"]["a"] == 1
        assert taint.is_right(cluster(available, *before)) is (before == after)
        assert taint.is_right(found)

    check_each(check, rows)
    assert "taints" not in taint.tainted(cluster(rules.AVAILABLE, UNREACHABLE))["spec"], "no empty list is left"
    deleting = cluster(None)
    deleting["metadata"]["deletionTimestamp"] = format_time(NOW)
    assert taint.is_right(deleting)


def test_taints_of_a_flapping_cluster_wait_for_the_hold_and_never_shorter_than_the_delay() -> None:
    rows = (
        (rules.SILENT, False, 30 * SECOND),
        (None, False, 30 * SECOND),
        (rules.UNAVAILABLE, False, timedelta()),
        (rules.AVAILABLE, False, timedelta()),
        (rules.SILENT, True, 300 * SECOND),
        (rules.UNAVAILABLE, True, 300 * SECOND),
        (rules.AVAILABLE, True, 300 * SECOND),
    )
    check_results(lambda available, flaps: Patience().wait(available, flaps=flaps), rows)
    patience = Patience(delay=9 * MINUTE, damping=Damping(hold=MINUTE))
    assert patience.wait(rules.SILENT, flaps=True) == 9 * MINUTE
    assert taint.changed_at(cluster(rules.SILENT)) == NOW + 7 * SECOND, "the delay counts from the change"
    assert taint.changed_at(cluster(None)) == NOW, "or from the creation"
