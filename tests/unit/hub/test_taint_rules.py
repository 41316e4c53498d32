"""Which taints a cluster's availability asks for, and when."""

from datetime import timedelta
from typing import Any

import pytest

from hub.domain import cluster as rules
from hub.domain import taint
from hub.domain.taint import Patience
from hub.domain.transition import Damping
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.timestamps import format_time

NOW = ManualClock().now()
UNREACHABLE = {"key": "cluster.open-cluster-management.io/unreachable", "effect": "NoSelect"}
UNAVAILABLE = {"key": "cluster.open-cluster-management.io/unavailable", "effect": "NoSelect"}
MINE = {"key": "example.com/mine", "effect": "NoSelect", "value": "x"}


def cluster(available: Condition | None, *taints: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"metadata": {"name": "c1", "creationTimestamp": format_time(NOW)}, "spec": {"a": 1}}
    if taints:
        document["spec"]["taints"] = list(taints)
    if available:
        told = Condition(available.type, available.status, available.reason, available.message, NOW + timedelta(seconds=7))
        document["status"] = {"conditions": [told.to_document()]}
    return document


@pytest.mark.parametrize(
    ("available", "before", "after"),
    [
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
    ],
)
def test_the_taints_say_what_the_availability_says(available: Condition | None, before: list[Any], after: list[Any]) -> None:
    found = taint.tainted(cluster(available, *before))
    assert found["spec"].get("taints", []) == after
    assert found["spec"]["a"] == 1
    assert taint.is_right(cluster(available, *before)) is (before == after)
    assert taint.is_right(found)


def test_the_last_taint_leaves_no_empty_list() -> None:
    assert "taints" not in taint.tainted(cluster(rules.AVAILABLE, UNREACHABLE))["spec"]


def test_a_cluster_that_is_being_deleted_is_left_alone() -> None:
    going = cluster(None)
    going["metadata"]["deletionTimestamp"] = format_time(NOW)
    assert taint.is_right(going)


@pytest.mark.parametrize(
    ("available", "flaps", "seconds"),
    [
        (rules.SILENT, False, 30),
        (None, False, 30),
        (rules.UNAVAILABLE, False, 0),
        (rules.AVAILABLE, False, 0),
        (rules.SILENT, True, 300),
        (rules.UNAVAILABLE, True, 300),
        (rules.AVAILABLE, True, 300),
    ],
)
def test_taints_of_a_cluster_that_flaps_wait_until_it_holds_still(
    available: Condition | None,
    flaps: bool,  # noqa: FBT001 - a table's column
    seconds: int,
) -> None:
    assert Patience().wait(available, flaps=flaps) == timedelta(seconds=seconds)


def test_a_hold_is_never_shorter_than_the_delay() -> None:
    patience = Patience(delay=timedelta(minutes=9), damping=Damping(hold=timedelta(minutes=1)))
    assert patience.wait(rules.SILENT, flaps=True) == timedelta(minutes=9)


def test_time_counts_from_the_change_or_else_from_the_creation() -> None:
    assert taint.changed_at(cluster(rules.SILENT)) == NOW + timedelta(seconds=7)
    assert taint.changed_at(cluster(None)) == NOW
