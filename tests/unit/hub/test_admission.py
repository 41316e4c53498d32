"""What a ManagedCluster must be like, and what is filled in: OCM's webhooks."""

from datetime import UTC, datetime
from time import process_time
from typing import Any

import pytest

from hub.domain.admission import admitted
from machinery.errors import InvalidError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP, EARLIER = "2026-01-02T03:04:05Z", "2025-12-31T00:00:00Z"
TYPE = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
UNLIKE_ANY_RULE: dict[str, Any] = {
    "hubAcceptsClient": True,
    "leaseDurationSeconds": -1,
    "managedClusterClientConfigs": [{"url": "http://b"}],
    "taints": [{"key": "a", "effect": "NoSelect"}, {"key": "a", "effect": "NoSelect", "timeAdded": "2020-01-01T00:00:00Z"}],
}


def cluster(name: str = "edge", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def taint(value: str = "", **more: str) -> dict[str, str]:
    return {"key": "example.com/k", "value": value, "effect": "NoSelect", **more}


def test_defaults_are_filled_in() -> None:
    document = admitted({"metadata": {"name": "edge"}}, None, NOW)
    assert document["spec"] == {"hubAcceptsClient": False, "leaseDurationSeconds": 60}
    assert (document["apiVersion"], document["kind"]) == ("cluster.open-cluster-management.io/v1", "ManagedCluster")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (cluster("Bad_Name!"), "metadata.name"),
        (cluster("a.b"), "metadata.name"),
        (cluster("a" * 64), "metadata.name"),
        (cluster(""), "metadata.name"),
        (cluster("kube-system"), "metadata.name"),
        (cluster("open-cluster-management-hub"), "metadata.name"),
        (
            cluster(managedClusterClientConfigs=[{"url": "https://a"}, {"url": "http://b"}]),
            "spec.managedClusterClientConfigs[1].url",
        ),
        (cluster(leaseDurationSeconds=-1), "spec.leaseDurationSeconds"),
        (cluster(leaseDurationSeconds="60"), "spec.leaseDurationSeconds"),
        (cluster(leaseDurationSeconds=2**31), "spec.leaseDurationSeconds"),
    ],
)
def test_broken_rule_names_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as refused:
        admitted(changed, None, NOW)
    assert [cause.field for cause in refused.value.causes] == [field]
    assert refused.value.subject is not None
    assert refused.value.subject.kind == "ManagedCluster"


def test_a_cluster_that_has_the_name_of_a_standing_namespace_already_can_still_be_changed() -> None:
    before = cluster("default")
    assert admitted(cluster("default", hubAcceptsClient=False), before, NOW)["spec"]["hubAcceptsClient"] is False


def test_generated_uuid_name_and_longest_name_are_fine() -> None:
    for name in ("3f2504e0-4f89-41d3-9a0c-0305e82c3301", "a" * 63):
        assert admitted(cluster(name), None, NOW)["metadata"]["name"] == name


def test_taints_of_a_new_cluster_are_stamped_now_whatever_they_claim() -> None:
    document = admitted(cluster(taints=[taint(), {**taint(), "key": "other", "timeAdded": EARLIER}]), None, NOW)
    assert [entry["timeAdded"] for entry in document["spec"]["taints"]] == [STAMP, STAMP]


@pytest.mark.parametrize(
    ("new", "time"),
    [
        (taint("x", timeAdded=EARLIER), EARLIER),
        (taint("x"), EARLIER),
        (taint("y"), STAMP),
        ({**taint("x"), "effect": "PreferNoSelect"}, STAMP),
        ({**taint("x"), "key": "new"}, STAMP),
    ],
)
def test_taint_is_stamped_when_it_changes(new: dict[str, str], time: str) -> None:
    old = cluster(taints=[taint("x", timeAdded=EARLIER)])
    document = admitted(cluster(taints=[new]), old, NOW)
    assert document["spec"]["taints"][0]["timeAdded"] == time


@pytest.mark.parametrize("new", [taint("y", timeAdded=EARLIER), taint("x", timeAdded="2020-01-01T00:00:00Z")])
def test_nobody_else_sets_the_time_of_a_taint(new: dict[str, str]) -> None:
    old = cluster(taints=[taint("x", timeAdded=EARLIER)])
    with pytest.raises(InvalidError, match="timeAdded"):
        admitted(cluster(taints=[new]), old, NOW)


def test_taints_of_one_key_and_several_effects_keep_the_time_of_each() -> None:
    both = [taint(timeAdded=EARLIER), taint(effect="PreferNoSelect", timeAdded=STAMP)]
    later = admitted(cluster(taints=[*both, taint(effect="NoSelectIfNew")], hubAcceptsClient=True), cluster(taints=both), NOW)
    assert [entry["timeAdded"] for entry in later["spec"]["taints"]] == [EARLIER, STAMP, STAMP]
    assert later["spec"]["taints"][:2] == both


def test_one_taint_among_very_many_is_stamped_before_anybody_has_waited() -> None:
    """The whole hub's writes wait meanwhile, and an object may hold some twenty thousand."""
    many = [{**taint(timeAdded=EARLIER), "key": f"k{number}"} for number in range(20_000)]
    began = process_time()
    later = admitted(cluster(taints=[*many, taint(effect="NoSelectIfNew")]), cluster(taints=many), NOW)
    assert process_time() - began < 5 * 0.2
    assert [entry["timeAdded"] for entry in later["spec"]["taints"][-2:]] == [EARLIER, STAMP]


def test_what_is_stored_and_does_not_change_is_never_refused() -> None:
    """A rule that a later release brings must not stop reports about clusters that broke it before it was one."""
    stored = cluster(**UNLIKE_ANY_RULE)
    reported = {**stored, "status": {"conditions": []}}
    assert admitted(reported, stored, NOW) == {**reported, **TYPE}
    denied = {**UNLIKE_ANY_RULE, "hubAcceptsClient": False}
    assert admitted(cluster(**denied), stored, NOW)["spec"] == denied


@pytest.mark.parametrize("field", ["leaseDurationSeconds", "managedClusterClientConfigs"])
def test_what_changes_is_held_to_the_rules(field: str) -> None:
    worse = {"leaseDurationSeconds": -2, "managedClusterClientConfigs": [{"url": "http://c"}]}[field]
    with pytest.raises(InvalidError) as refused:
        admitted(cluster(**{**UNLIKE_ANY_RULE, field: worse}), cluster(**UNLIKE_ANY_RULE), NOW)
    assert [cause.field.split("[")[0] for cause in refused.value.causes] == [f"spec.{field}"]
