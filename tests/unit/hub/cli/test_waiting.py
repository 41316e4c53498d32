"""What `hubctl wait` waits for."""

from typing import Any

import pytest

from hub.cli.failures import CommandError
from hub.cli.waiting import ConditionIs, read_wanted, time_left


def cluster(status: str = "True", *, observed: int | None = None) -> dict[str, Any]:
    condition = {"type": "ManagedClusterConditionAvailable", "status": status}
    accepted = {"type": "HubAcceptedManagedCluster", "status": "True"}
    seen = {} if observed is None else {"observedGeneration": observed}
    return {
        "metadata": {"name": "edge1", "generation": 2},
        "spec": {"taints": [{"key": "a"}, {"key": "b"}], "lease": 60},
        "status": {"conditions": [{**condition, **seen}, accepted], "phase": "x=y"},
    }


@pytest.mark.parametrize(
    "wanted",
    [
        "condition=Available",
        "condition=available=true",
        "condition=ManagedClusterConditionAvailable=True",
        "condition=Accepted",
        "condition=HubAcceptedManagedCluster",
        "create",
        "jsonpath={.spec.lease}=60",
        "jsonpath={.spec.lease}",
        "jsonpath=.spec.lease=60",
        "jsonpath={.status.phase}=x=y",
        "jsonpath={.spec.taints[?(@.key==\"b\")].key}='b'",
        'jsonpath={.status.conditions[?(@.type=="HubAcceptedManagedCluster")].status}=True',
    ],
)
def test_is_met(wanted: str) -> None:
    assert read_wanted(wanted).met(cluster())


@pytest.mark.parametrize(
    "wanted",
    ["condition=Available=False", "condition=Joined", "delete", "jsonpath={.spec.lease}=61", "jsonpath={.spec.nope}"],
)
def test_is_not_met(wanted: str) -> None:
    assert not read_wanted(wanted).met(cluster())


def test_a_condition_of_an_older_spec_does_not_count() -> None:
    available = ConditionIs("Available")
    assert not available.met(cluster(observed=1))
    assert available.met(cluster(observed=2))


def test_what_is_gone_meets_a_deletion_and_can_meet_no_condition() -> None:
    assert read_wanted("delete").met(None)
    assert not read_wanted("create").met(None)
    with pytest.raises(CommandError) as refused:
        read_wanted("condition=Available").met(None)
    assert refused.value.code == 3


@pytest.mark.parametrize("wanted", ["condition", "condition=", "jsonpath", "jsonpath=", "available", "delete=x"])
def test_what_is_no_wish_is_wrong_usage(wanted: str) -> None:
    with pytest.raises(CommandError, match="write condition=TYPE") as refused:
        read_wanted(wanted)
    assert refused.value.code == 2


def test_several_values_are_no_value_to_wait_for() -> None:
    with pytest.raises(CommandError, match="finds 2 values"):
        read_wanted("jsonpath={.spec.taints[*].key}=a").met(cluster())


def test_a_time_is_a_duration_or_nought() -> None:
    assert time_left("0")() <= 0
    assert 50 < time_left("1m")() <= 60
    with pytest.raises(CommandError, match="--timeout"):
        time_left("soon")
