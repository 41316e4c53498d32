"""ManagedClusters: what a join and a report make of the document."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain import duplicate
from hub.domain.cluster import Claim, ClientConfig, Joining, StatusReport
from machinery import conditions
from machinery.conditions import Condition
from machinery.errors import InvalidError
from machinery.identity import ClusterName

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOINED = Condition(conditions.JOINED, "True", "ManagedClusterJoined", "Managed cluster joined")
FULL = StatusReport(
    conditions=(JOINED, rules.AVAILABLE),
    capacity={"cpu": "4"},
    allocatable={"cpu": "3"},
    kubernetes_version="v1.31.2",
    claims=(Claim("id.k8s.io", "6c1f2a"),),
    node_count=5,
)


def joining(**changed: Any) -> Joining:
    return Joining(**{"name": ClusterName("edge"), "cluster_uid": "uid-1", **changed})


def test_joining_cluster_is_not_accepted_and_keeps_only_the_agents_annotations() -> None:
    document = rules.joining_document(
        joining(
            client_configs=(ClientConfig("https://api:6443", b"ca"), ClientConfig("https://other")),
            annotations={
                "agent.open-cluster-management.io/x": "1",
                "open-cluster-management.io/automatically-accepted-on": "!",
            },
        ),
        timedelta(seconds=2),
    )
    assert document == {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {
            "name": "edge",
            "annotations": {
                "agent.open-cluster-management.io/x": "1",
                "hub.open-cluster-management.io/cluster-uid": "uid-1",
            },
        },
        "spec": {
            "hubAcceptsClient": False,
            "leaseDurationSeconds": 2,
            "managedClusterClientConfigs": [{"url": "https://api:6443", "caBundle": "Y2E="}, {"url": "https://other"}],
        },
    }


@pytest.mark.parametrize(("recorded", "uid", "same"), [("", "b", True), ("a", "a", True), ("a", "b", False), ("a", "", False)])
def test_cluster_is_told_apart_by_its_uid(recorded: str, uid: str, same: bool) -> None:  # noqa: FBT001 - a table's column
    cluster = {"metadata": {"annotations": {rules.CLUSTER_UID: recorded} if recorded else {}}}
    assert rules.is_same_cluster(cluster, uid) is same


@pytest.mark.parametrize(("spec", "seconds"), [({"leaseDurationSeconds": 5}, 5), ({"leaseDurationSeconds": 0}, 60), ({}, 60)])
def test_lease_duration_of_zero_is_the_default(spec: dict[str, Any], seconds: int) -> None:
    assert rules.lease_duration({"spec": spec}) == timedelta(seconds=seconds)


def test_complete_report_replaces_what_the_agent_owns() -> None:
    before = {"spec": {"hubAcceptsClient": True}, "status": {"clusterClaims": [{"name": "old", "value": "x"}], "kept": 1}}
    after = rules.with_report(before, FULL, NOW)
    assert after["spec"] == before["spec"]
    assert after["status"] == {
        "kept": 1,
        "capacity": {"cpu": "4", "nodes": "5"},
        "allocatable": {"cpu": "3"},
        "version": {"kubernetes": "v1.31.2"},
        "clusterClaims": [{"name": "id.k8s.io", "value": "6c1f2a"}],
        "conditions": [
            {**JOINED.to_document(), "lastTransitionTime": "2026-01-02T03:04:05Z"},
            {**rules.AVAILABLE.to_document(), "lastTransitionTime": "2026-01-02T03:04:05Z"},
        ],
    }


def test_incomplete_report_leaves_resources_and_claims() -> None:
    before = rules.with_report({}, FULL, NOW)
    down = StatusReport(conditions=(rules.UNAVAILABLE,), complete=False)
    after = rules.with_report(before, down, NOW + timedelta(minutes=1))
    assert {**after["status"], "conditions": None} == {**before["status"], "conditions": None}
    available = conditions.find(doc.conditions(after), conditions.AVAILABLE)
    assert available is not None
    assert (available.status, available.last_transition_time) == ("False", NOW + timedelta(minutes=1))


def test_same_report_again_changes_nothing() -> None:
    once = rules.with_report({"metadata": {}}, FULL, NOW)
    assert not doc.differs(rules.with_report(once, FULL, NOW + timedelta(hours=1)), once)


@pytest.mark.parametrize("kind", sorted(rules.HUB_CONDITIONS))
def test_agent_cannot_set_the_hubs_conditions(kind: str) -> None:
    report = StatusReport(conditions=(Condition(kind, "True", "Mine", ""),), complete=False)
    assert doc.conditions(rules.with_report({}, report, NOW)) == []


def test_condition_that_a_newer_agent_tells_is_kept() -> None:
    report = StatusReport(conditions=(Condition("SomethingNew", "True", "R", "m"),), complete=False)
    assert [entry["type"] for entry in doc.conditions(rules.with_report({}, report, NOW))] == ["SomethingNew"]


@pytest.mark.parametrize(
    "report",
    [
        StatusReport(conditions=(Condition("Available", "Perhaps", "R", "m"),)),
        StatusReport(conditions=(Condition("", "True", "R", "m"),)),
        StatusReport(conditions=(Condition("X", "True", "R", "m" * 40000),)),
        StatusReport(conditions=tuple(Condition(f"C{number}", "True", "R", "m") for number in range(33))),
        StatusReport(claims=(Claim("", "x"),)),
        StatusReport(claims=(Claim("x" * 254, "x"),)),
        StatusReport(claims=(Claim("x", ""),)),
        StatusReport(claims=(Claim("x", "v" * 1025),)),
        StatusReport(claims=tuple(Claim(f"c{number}", "v") for number in range(257))),
    ],
)
def test_report_beyond_the_bounds_is_refused(report: StatusReport) -> None:
    with pytest.raises(InvalidError):
        rules.with_report({}, report, NOW)


@pytest.mark.parametrize(("told", "expected"), [(True, rules.AVAILABLE), (False, rules.UNAVAILABLE), (None, None)])
def test_verdict_is_the_agents_own(told: bool | None, expected: Condition | None) -> None:  # noqa: FBT001 - a table's column
    assert rules.verdict(told) == expected


def test_duplicate_says_who_came_and_what_to_do() -> None:
    condition = duplicate.wanted(joining(cluster_uid="uid-2"))
    assert (condition.type, condition.status) == ("ManagedClusterDuplicated", "True")
    assert "uid-2" in condition.message
