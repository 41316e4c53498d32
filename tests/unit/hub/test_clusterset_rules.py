"""Which clusters are in a set, what is wanted of them, and how the sets of every hub are kept."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from hub.domain import clusterset as rules
from hub.domain import document as doc
from tests.fakes.fleetwork import cluster, cluster_set

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EU = {"matchLabels": {"region": "eu"}}


@dataclass(frozen=True)
class Case:
    """A set, and those of the clusters a (in `one`, eu), b (in `two`, us) and c (in none, eu) that are in it."""

    name: str
    selector: Any
    members: str


CLUSTERS = {
    "a": {rules.LABEL: "one", "region": "eu"},
    "b": {rules.LABEL: "two", "region": "us"},
    "c": {"region": "eu"},
}
CASES = (
    Case("one", {"selectorType": "ExclusiveClusterSetLabel"}, "a"),
    Case("one", {}, "a"),
    Case("none", {"selectorType": "ExclusiveClusterSetLabel"}, ""),
    Case("one", {"selectorType": "LabelSelector", "labelSelector": EU}, "ac"),
    Case("one", {"selectorType": "LabelSelector", "labelSelector": {}}, "abc"),
    Case("one", {"selectorType": "LabelSelector"}, ""),
    Case("one", {"selectorType": "LabelSelector", "labelSelector": None}, ""),
    Case("one", {"selectorType": "Another", "labelSelector": {}}, ""),
    Case("one", {"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"not a label": "x"}}}, ""),
    Case(
        "one",
        {
            "selectorType": "LabelSelector",
            "labelSelector": {"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["us"]}]},
        },
        "ac",
    ),
    Case(
        "one",
        {
            "selectorType": "LabelSelector",
            "labelSelector": {"matchExpressions": [{"key": rules.LABEL, "operator": "DoesNotExist"}]},
        },
        "c",
    ),
)


@pytest.mark.parametrize("case", CASES)
def test_a_set_has_the_clusters_that_its_selector_says(case: Case) -> None:
    found = rules.cluster_set({"metadata": {"name": case.name}, "spec": {"clusterSelector": case.selector}})
    assert found is not None
    assert "".join(name for name, labels in CLUSTERS.items() if found.has(labels)) == case.members
    assert (found.query() is None) == (found.selector is None)


def test_a_set_that_is_being_deleted_has_nobody() -> None:
    assert rules.cluster_set(doc.deleting(cluster_set("one"), NOW)) is None


def test_namespaces_come_from_all_sets_of_a_cluster_by_set_and_name() -> None:
    documents = [
        cluster_set("two", EU, namespaces=("web", "db")),
        cluster_set("one", namespaces=("web",)),
        cluster_set("three", namespaces=("other",)),
    ]
    sets = [found for each in documents if (found := rules.cluster_set(each)) is not None]
    wanted = rules.managed_namespaces(cluster("a", into="one", region="eu"), sets)
    assert [(entry["clusterSet"], entry["name"]) for entry in wanted] == [("one", "web"), ("two", "db"), ("two", "web")]


def test_what_the_agent_said_of_a_namespace_survives_a_new_one_beside_it() -> None:
    said = {"clusterSet": "one", "name": "web", "conditions": [{"type": "NamespaceAvailable", "status": "True"}]}
    known = {**cluster("a", into="one"), "status": {"managedNamespaces": [said]}}
    one = rules.cluster_set(cluster_set("one", namespaces=("db", "web")))
    assert one is not None
    assert rules.managed_namespaces(known, [one]) == [{"clusterSet": "one", "name": "db"}, said]


@pytest.mark.parametrize("name", rules.STANDING)
def test_a_standing_set_is_made_as_it_has_to_be(name: str) -> None:
    made = rules.standing(name, None)
    assert made is not None
    assert rules.standing(name, made) is None


def test_only_the_selector_of_a_standing_set_is_restored() -> None:
    edited = dict(cluster_set(rules.DEFAULT, {}, namespaces=("web",)))
    restored = rules.standing(rules.DEFAULT, edited)
    assert restored is not None
    assert restored["spec"] == {
        "clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"},
        "managedNamespaces": [{"name": "web"}],
    }
    kept = doc.with_annotations(edited, {rules.AUTOUPDATE: "false"})
    assert rules.standing(rules.DEFAULT, kept) is None
