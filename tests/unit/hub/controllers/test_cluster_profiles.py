"""Accepted clusters are profiles in every namespace that has one of their sets bound, and the profiles say what they say."""

from typing import Any

import pytest

from hub.domain import clusterprofile as rules
from hub.domain import document as doc
from hub.domain.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Query
from hub.ports import Transaction
from hub.services import namespaces
from tests.fakes.fleetwork import Fleetwork, binding, cluster, cluster_set, find, open_namespace, put, remove
from tests.unit.hub.controllers.conftest import Hub

EU = {"matchLabels": {"region": "eu"}}
LABELS = {
    "x-k8s.io/cluster-manager": "open-cluster-management",
    "multicluster.x-k8s.io/clusterset": "one",
    "open-cluster-management.io/cluster-name": "a",
}
IN_EU = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu", "uk"]}]}


def _profiles(tx: Transaction) -> list[str]:
    return [str(stored.key) for stored in tx.objects.find(CLUSTER_PROFILES, Query()).items]


def profiles(hub: Hub) -> list[str]:
    return hub.store.transact(_profiles)


def profile(hub: Hub, name: str, place: str) -> dict[str, Any]:
    stored = hub.store.transact(find, CLUSTER_PROFILES, name, place)
    assert stored is not None
    return dict(stored.document)


@pytest.fixture
async def work(hub: Hub) -> Fleetwork:
    """Clusters a (in `one`, eu), b (in `two`, eu), c (in `two`, us); sets one, two and europe; namespaces p and q."""
    for name in ("p", "q"):
        hub.store.transact(open_namespace, name)
    for name, labels in (("one", None), ("two", None), ("europe", EU)):
        hub.store.transact(put, CLUSTER_SETS, cluster_set(name, labels))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu"))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("b", into="two", region="eu"))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c", into="two", region="us"))
    driven = Fleetwork(hub.store, cluster_profiles=True)
    await driven.start()
    return driven


async def bind(hub: Hub, work: Fleetwork, *places: str) -> None:
    for each in places:
        place, _, name = each.partition("/")
        hub.store.transact(put, CLUSTER_SET_BINDINGS, binding(name, place))
    await work.settle()


async def test_a_bound_set_shows_its_clusters_once_however_many_sets_have_them(hub: Hub, work: Fleetwork) -> None:
    assert profiles(hub) == []
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", "p"))
    await Fleetwork(hub.store).start()
    assert profiles(hub) == [], "the gate is closed"
    await bind(hub, work, "p/one", "p/europe", "q/two")
    assert profiles(hub) == ["p/a", "p/b", "q/b", "q/c"]
    made = profile(hub, "a", "p")
    assert made["spec"] == {"displayName": "a", "clusterManager": {"name": "open-cluster-management"}}
    assert doc.labels(made) == LABELS
    before = hub.revision
    await Fleetwork(hub.store, cluster_profiles=True).start()
    await work.start()
    assert hub.revision == before, "another look writes nothing"
    hub.store.transact(remove, CLUSTER_SET_BINDINGS, "europe", "p")
    await work.settle()
    assert profiles(hub) == ["p/a", "q/b", "q/c"], "a binding that goes takes away what no other shows"


async def test_selectors_by_label_by_expression_and_of_the_global_set_choose_as_everywhere(hub: Hub, work: Fleetwork) -> None:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("in-eu", IN_EU))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("global", {}))
    await bind(hub, work, "p/in-eu", "q/global")
    assert profiles(hub) == ["p/a", "p/b", "q/a", "q/b", "q/c"]
    hub.store.transact(put, CLUSTER_SETS, cluster_set("in-eu", {"matchLabels": {"region": "us"}}))
    await work.settle()
    assert profiles(hub) == ["p/c", "q/a", "q/b", "q/c"]
    await bind(hub, work, "p/missing")
    hub.store.transact(remove, CLUSTER_SETS, "in-eu")
    await work.settle()
    assert profiles(hub) == ["q/a", "q/b", "q/c"], "a set that is missing or goes shows nothing"


async def test_a_cluster_that_comes_moves_or_goes_is_followed(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one", "q/two", "q/europe")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("d", into="one"))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c", into="one", region="eu"))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", region="eu"))
    hub.store.transact(remove, MANAGED_CLUSTERS, "b")
    await work.settle()
    assert profiles(hub) == ["p/c", "p/d", "q/a", "q/c"]
    assert [doc.labels(profile(hub, name, "q"))[rules.SET] for name in "ac"] == ["", "one"], "the set may be none"


async def test_clusters_that_wait_are_denied_or_are_being_deleted_are_not_shown(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one", "p/two")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("waiting", into="one", accepted=False))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", accepted=False))
    held = doc.with_metadata(cluster("b", into="two"), finalizers=["example.com/hold"])
    hub.store.transact(put, MANAGED_CLUSTERS, held)
    hub.store.transact(remove, MANAGED_CLUSTERS, "b")
    await work.settle()
    assert profiles(hub) == ["p/c"]


async def test_a_profile_says_what_its_cluster_says(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one")
    moment = "2026-01-01T00:00:00Z"
    told = {"status": "True", "reason": "ManagedClusterAvailable", "message": "well", "lastTransitionTime": moment}
    status = {
        "version": {"kubernetes": "v1.36.1"},
        "clusterClaims": [{"name": "z", "value": "1"}, {"name": "a", "value": "2"}],
        "conditions": [
            {**told, "type": "ManagedClusterConditionAvailable"},
            {**told, "type": "ManagedClusterJoined"},
            {**told, "type": "HubAcceptedManagedCluster"},
        ],
    }
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a", into="one"), "status": status})
    await work.settle()
    shown = profile(hub, "a", "p")["status"]
    assert shown["version"] == {"kubernetes": "v1.36.1"}
    assert shown["properties"] == status["clusterClaims"], "in the cluster's own order"
    assert {entry["type"]: entry["status"] for entry in shown["conditions"]} == {
        "ControlPlaneHealthy": "True",
        "Joined": "True",
    }


async def test_a_profile_that_somebody_deletes_or_edits_comes_back(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one", "q/one")
    hub.store.transact(remove, CLUSTER_PROFILES, "a", "p")
    edited = doc.with_metadata(profile(hub, "a", "q"), labels={"own": "label", rules.SET: "another"})
    hub.store.transact(put, CLUSTER_PROFILES, edited)
    await work.settle()
    assert profiles(hub) == ["p/a", "q/a"]
    assert doc.labels(profile(hub, "a", "q")) == {"own": "label", **LABELS}


async def test_a_profile_of_another_manager_is_never_touched(hub: Hub, work: Fleetwork) -> None:
    labels = {"open-cluster-management.io/cluster-name": "a"}
    theirs = {"metadata": {"name": "a", "namespace": "p", "labels": labels}, "spec": {"clusterManager": {"name": "another"}}}
    hub.store.transact(put, CLUSTER_PROFILES, theirs)
    await bind(hub, work, "p/one")
    assert "status" not in profile(hub, "a", "p")
    hub.store.transact(remove, CLUSTER_SET_BINDINGS, "one", "p")
    await work.settle()
    assert profiles(hub) == ["p/a"]


async def test_a_namespace_that_is_missing_or_being_deleted_has_none(hub: Hub, work: Fleetwork) -> None:
    """A binding may outlive its namespace, or be restored before it."""
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", "nowhere"))
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", "p"))
    hub.store.transact(lambda tx: namespaces.remove(tx, namespaces.get(tx, "p"), "admin"))  # type: ignore[arg-type]
    await work.settle()
    assert profiles(hub) == []
    hub.store.transact(open_namespace, "nowhere")
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("two", "nowhere"))
    await work.settle()
    assert profiles(hub) == ["nowhere/a", "nowhere/b", "nowhere/c"]
