"""Rules of what the agent reports."""

from dataclasses import dataclass

import pytest

from machinery.conditions import FALSE, TRUE
from spoke.domain.quantity import add
from spoke.domain.report import ClusterClaim, NodeResources
from spoke.domain.status import Availability, ClaimRules, allocatable_of, capacity_of, exposed_claims, truncated_claims


@dataclass(frozen=True, slots=True)
class Sum:
    first: str
    second: str
    total: str


@pytest.mark.parametrize(
    "row",
    [
        Sum("4", "4", "8"),
        Sum("500m", "500m", "1"),
        Sum("1", "250m", "1250m"),
        Sum("8Gi", "8Gi", "16Gi"),
        Sum("16384Mi", "1Ki", "16777217Ki"),
        Sum("1Ki", "1", "1025"),
        Sum("2k", "1", "2001"),
        Sum("0", "8Gi", "8Gi"),
        Sum("1e3", "1", "1001"),
        Sum("1.5Gi", "512Mi", "2Gi"),
        Sum("100n", "1", "1000000100n"),
        Sum("1023Ei", "1", "1179438699212804456449"),
    ],
)
def test_quantities_add_up_exactly(row: Sum) -> None:
    assert add(row.first, row.second) == row.total


@pytest.mark.parametrize("text", ["", "x", "1Gb", "1 Gi", "--1", "1e9999", "Ki"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        add(text, "1")


def node(name: str, cpu: str, memory: str, *, schedulable: bool = True) -> NodeResources:
    return NodeResources(name, {"cpu": cpu, "memory": memory}, {"cpu": cpu}, schedulable)


def test_capacity_counts_all_nodes_and_allocatable_only_schedulable_ones() -> None:
    nodes = [node("a", "4", "8Gi"), node("b", "3500m", "8Gi", schedulable=False)]
    assert capacity_of(nodes) == {"cpu": "7500m", "memory": "16Gi"}
    assert allocatable_of(nodes) == {"cpu": "4"}


def failed(state: Availability, at: float) -> Availability:
    return state.observed(ok=False, status_code=500, detail="boom", at=at)


def well(state: Availability, at: float) -> Availability:
    return state.observed(ok=True, status_code=200, detail="ok", at=at)


def test_a_short_failure_does_not_change_the_verdict_however_often_it_is_seen() -> None:
    state = well(Availability(), 0)
    for tenth in range(199):
        state = failed(state, 100 + tenth / 10)
    assert state.verdict is True
    assert not state.settled
    assert state.condition is not None
    assert state.condition.status == TRUE


def test_twenty_seconds_of_failure_make_the_cluster_unavailable() -> None:
    state = failed(failed(well(Availability(), 0), 100), 120)
    assert state.verdict is False
    assert state.settled
    assert state.condition is not None
    assert state.condition.status == FALSE
    assert state.condition.message == "The kube-apiserver is not ok, status code: 500, boom"


def test_a_success_starts_the_failure_time_anew() -> None:
    state = failed(well(failed(well(Availability(), 0), 100), 110), 125)
    assert state.verdict is True
    assert failed(state, 144).verdict is True
    assert failed(state, 145).verdict is False


def test_a_cluster_that_never_answered_has_no_verdict_before_the_threshold() -> None:
    assert failed(failed(Availability(), 0), 19.9).verdict is None


def test_claims_are_reserved_first_sorted_and_custom_ones_are_cut() -> None:
    names = ["z", "b", "a", "product.open-cluster-management.io", "id.k8s.io", "id-test.k8s.io", "x.mine.io"]
    rules = ClaimRules(max_custom=2, reserved_suffixes=("mine.io",))
    claims = [ClusterClaim(name, name) for name in names]
    assert [claim.name for claim in exposed_claims(claims, rules)] == [
        "id.k8s.io",
        "product.open-cluster-management.io",
        "x.mine.io",
        "a",
        "b",
    ]
    assert truncated_claims(claims, rules) == 2
