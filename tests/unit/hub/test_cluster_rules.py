"""Rules of ManagedClusters and ManagedClusterSets: joins, reports, labels at join, members of sets."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from hub.domain import cluster as rules
from hub.domain import clusterset, duplicate, joinlabels
from hub.domain import document as doc
from hub.domain.cluster import Claim, ClientConfig, Joining, StatusReport, adopted, joining_document
from hub.domain.lease import DEFAULT_LEASE_DURATION
from hub.settings import Settings
from machinery import conditions
from machinery.conditions import Condition
from machinery.errors import InvalidError
from machinery.identity import ClusterName
from tests.checks import check_refusals, check_results, present
from tests.fakes.fleetwork import cluster, cluster_set

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAMP = {"lastTransitionTime": "2026-01-02T03:04:05Z"}
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


# Joins.


def test_joining_cluster_is_not_accepted_and_keeps_only_the_agents_annotations() -> None:
    document = joining_document(
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
            "annotations": {"agent.open-cluster-management.io/x": "1", "hub.open-cluster-management.io/cluster-uid": "uid-1"},
        },
        "spec": {
            "hubAcceptsClient": False,
            "leaseDurationSeconds": 2,
            "managedClusterClientConfigs": [{"url": "https://api:6443", "caBundle": "Y2E="}, {"url": "https://other"}],
        },
    }


def test_cluster_is_recognized_by_its_uid_and_a_duplicate_is_reported() -> None:
    def is_same(recorded: str, uid: str) -> bool:
        annotations = {rules.CLUSTER_UID: recorded} if recorded else {}
        return rules.is_same_cluster({"metadata": {"annotations": annotations}}, uid)

    check_results(is_same, [("", "b", True), ("a", "a", True), ("a", "b", False), ("a", "", False)])
    condition = duplicate.wanted(joining(cluster_uid="uid-2"))
    assert (condition.type, condition.status) == ("ManagedClusterDuplicated", "True")
    assert "uid-2" in condition.message


def test_lease_duration_of_zero_is_the_default() -> None:
    specs: list[dict[str, Any]] = [{"leaseDurationSeconds": 5}, {"leaseDurationSeconds": 0}, {}]
    assert [rules.lease_duration({"spec": spec}).total_seconds() for spec in specs] == [5, 60, 60]


SET = "cluster.open-cluster-management.io/clusterset"


def test_agent_sets_the_listed_labels_and_none_that_decide() -> None:
    asked = {"region": "eu", "regional": "x", "example.com/tier": "1", "example.com.evil/x": "1", SET: "prod", "a b": "c"}
    rows: tuple[tuple[tuple[str, ...], set[str]], ...] = (
        ((), set()),
        (("region",), {"region"}),
        (("example.com/*",), {"example.com/tier"}),
        (("example.com/tier", "env"), {"example.com/tier"}),
        (("*", "example.com", SET, "open-cluster-management.io/*", "cluster.open-cluster-management.io/*"), set()),
    )
    check_results(lambda patterns: set(joinlabels.kept(asked, patterns)), rows)
    assert joinlabels.kept({"env": "a b", "example.com/": "x"}, ("env", "example.com/*")) == {}, "no label of Kubernetes"


def test_pattern_of_labels_that_can_match_none_is_refused_at_start() -> None:
    def load(*patterns: str) -> Settings:
        return Settings.model_validate({"join_labels": patterns})

    patterns = (SET, "kubernetes.io/*", "node.kubernetes.io/x", "k8s.io/a", "*", "a/*/b", "-x", "a b")
    check_refusals(ValidationError, load, [(pattern, "reserved|neither") for pattern in patterns])
    assert Settings.model_validate({"join_labels": "region,example.com/*"}).join_labels == ("region", "example.com/*")


def test_labels_are_set_at_the_first_join_and_an_operators_stay() -> None:
    first = joining(labels={"region": "eu", "env": "test"})
    assert joining_document(first, DEFAULT_LEASE_DURATION)["metadata"]["labels"] == {"region": "eu", "env": "test"}
    entered = {"metadata": {"name": "edge", "labels": {"env": "prod"}}}
    joined = adopted(entered, first)
    assert joined["metadata"]["labels"] == {"region": "eu", "env": "prod"}
    later = adopted({**joined, "metadata": {**joined["metadata"], "labels": {}}}, first)
    assert later["metadata"]["labels"] == {}


# Reports.


def test_complete_report_replaces_the_agents_fields_and_an_incomplete_one_its_conditions() -> None:
    before = {"spec": {"hubAcceptsClient": True}, "status": {"clusterClaims": [{"name": "old", "value": "x"}], "kept": 1}}
    after = rules.with_report(before, FULL, NOW)
    assert after["spec"] == before["spec"]
    assert after["status"] == {
        "kept": 1,
        "capacity": {"cpu": "4", "nodes": "5"},
        "allocatable": {"cpu": "3"},
        "version": {"kubernetes": "v1.31.2"},
        "clusterClaims": [{"name": "id.k8s.io", "value": "6c1f2a"}],
        "conditions": [{**JOINED.to_document(), **STAMP}, {**rules.AVAILABLE.to_document(), **STAMP}],
    }
    assert not doc.differs(rules.with_report(after, FULL, NOW + timedelta(hours=1)), after), "the same report again"
    down = StatusReport(conditions=(rules.UNAVAILABLE,), complete=False)
    last = rules.with_report(after, down, NOW + timedelta(minutes=1))
    assert {**last["status"], "conditions": None} == {**after["status"], "conditions": None}
    available = present(conditions.find(doc.conditions(last), conditions.AVAILABLE))
    assert (available.status, available.last_transition_time) == ("False", NOW + timedelta(minutes=1))


def test_agent_cannot_set_the_hubs_conditions_and_its_unknown_ones_are_kept() -> None:
    kinds = [*sorted(rules.HUB_CONDITIONS), "SomethingNew"]
    report = StatusReport(conditions=tuple(Condition(kind, "True", "Mine", "") for kind in kinds), complete=False)
    assert [entry["type"] for entry in doc.conditions(rules.with_report({}, report, NOW))] == ["SomethingNew"]


def test_report_beyond_the_bounds_is_refused() -> None:
    reports = (
        StatusReport(conditions=(Condition("Available", "Perhaps", "R", "m"),)),
        StatusReport(conditions=(Condition("", "True", "R", "m"),)),
        StatusReport(conditions=(Condition("X", "True", "R", "m" * 40000),)),
        StatusReport(conditions=tuple(Condition(f"C{number}", "True", "R", "m") for number in range(33))),
        StatusReport(claims=(Claim("", "x"),)),
        StatusReport(claims=(Claim("x" * 254, "x"),)),
        StatusReport(claims=(Claim("x", ""),)),
        StatusReport(claims=(Claim("x", "v" * 1025),)),
        StatusReport(claims=tuple(Claim(f"c{number}", "v") for number in range(257))),
    )
    check_refusals(InvalidError, lambda report: rules.with_report({}, report, NOW), [(report, "") for report in reports])


def test_availability_is_the_agents_verdict() -> None:
    check_results(rules.verdict, [(True, rules.AVAILABLE), (False, rules.UNAVAILABLE), (None, None)])


# Sets.

EU = {"matchLabels": {"region": "eu"}}
CLUSTERS = {
    "a": {clusterset.LABEL: "one", "region": "eu"},
    "b": {clusterset.LABEL: "two", "region": "us"},
    "c": {"region": "eu"},
}


def test_set_has_the_clusters_that_its_selector_matches() -> None:
    def members(name: str, selector: dict[str, Any]) -> str:
        found = present(clusterset.cluster_set({"metadata": {"name": name}, "spec": {"clusterSelector": selector}}))
        assert (found.query() is None) == (found.selector is None)
        return "".join(name for name, labels in CLUSTERS.items() if found.has(labels))

    def selected(selector: Any) -> dict[str, Any]:
        return {"selectorType": "LabelSelector", "labelSelector": selector}

    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("one", {"selectorType": "ExclusiveClusterSetLabel"}, "a"),
        ("one", {}, "a"),
        ("none", {"selectorType": "ExclusiveClusterSetLabel"}, ""),
        ("one", selected(EU), "ac"),
        ("one", selected({}), "abc"),
        ("one", {"selectorType": "LabelSelector"}, ""),
        ("one", selected(None), ""),
        ("one", {"selectorType": "Another", "labelSelector": {}}, ""),
        ("one", selected({"matchLabels": {"not a label": "x"}}), ""),
        ("one", selected({"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["us"]}]}), "ac"),
        ("one", selected({"matchExpressions": [{"key": clusterset.LABEL, "operator": "DoesNotExist"}]}), "c"),
    )
    check_results(members, rows)
    assert clusterset.cluster_set(doc.deleting(cluster_set("one"), NOW)) is None, "a set that is being deleted has no members"


def test_namespaces_of_a_cluster_come_from_all_its_sets_and_keep_their_conditions() -> None:
    documents = [
        cluster_set("two", EU, namespaces=("web", "db")),
        cluster_set("one", namespaces=("web",)),
        cluster_set("three", namespaces=("other",)),
    ]
    sets = [found for each in documents if (found := clusterset.cluster_set(each)) is not None]
    wanted = clusterset.managed_namespaces(cluster("a", into="one", region="eu"), sets)
    assert [(entry["clusterSet"], entry["name"]) for entry in wanted] == [("one", "web"), ("two", "db"), ("two", "web")]
    reported = {"clusterSet": "one", "name": "web", "conditions": [{"type": "NamespaceAvailable", "status": "True"}]}
    known = {**cluster("a", into="one"), "status": {"managedNamespaces": [reported]}}
    one = present(clusterset.cluster_set(cluster_set("one", namespaces=("db", "web"))))
    assert clusterset.managed_namespaces(known, [one]) == [{"clusterSet": "one", "name": "db"}, reported]


def test_standing_sets_are_made_and_only_their_selector_is_restored() -> None:
    for name in clusterset.STANDING:
        made = clusterset.standing(name, None)
        assert made is not None, name
        assert clusterset.standing(name, made) is None, name
    edited = dict(cluster_set(clusterset.DEFAULT, {}, namespaces=("web",)))
    restored = present(clusterset.standing(clusterset.DEFAULT, edited))
    assert restored["spec"] == {
        "clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"},
        "managedNamespaces": [{"name": "web"}],
    }
    kept = doc.with_annotations(edited, {clusterset.AUTOUPDATE: "false"})
    assert clusterset.standing(clusterset.DEFAULT, kept) is None
