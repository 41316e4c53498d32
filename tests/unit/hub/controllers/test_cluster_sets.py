"""Sets count their clusters, bindings follow their set, clusters have namespaces of their sets and are exported as profiles."""

from datetime import timedelta
from typing import Any

import pytest

from hub.api import managedclustersets as rules
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS
from hub.registry import managedclustersets as clustersets, namespaces
from hub.registry.clusterprofiles import SET as OF_SET
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import InvalidError
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import AVAILABLE, UNKNOWN
from machinery.meta.objects import Query
from tests.checks import check_refusal_of, present
from tests.fakes.fleetwork import Fleetwork, binding, cluster, cluster_set, find, open_namespace, put, remove
from tests.unit.hub.conftest import failing
from tests.unit.hub.controllers.conftest import Hub

EU = {"matchLabels": {"region": "eu"}}
LABELS = {
    "x-k8s.io/cluster-manager": "open-cluster-management",
    "multicluster.x-k8s.io/clusterset": "one",
    "open-cluster-management.io/cluster-name": "a",
}
IN_EU = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu", "uk"]}]}


def empty_condition(hub: Hub, name: str) -> tuple[str, str, str]:
    stored = present(hub.store.transact(find, CLUSTER_SETS, name))
    found = present(conditions.find(doc.conditions(stored.document), rules.EMPTY))
    return found.status, found.reason, found.message


def bound(hub: Hub, name: str, place: str = "team") -> tuple[str, str]:
    stored = present(hub.store.transact(find, CLUSTER_SET_BINDINGS, name, place))
    found = present(conditions.find(doc.conditions(stored.document), rules.BOUND))
    return found.status, found.reason


def label_of(hub: Hub, name: str) -> str | None:
    return doc.labels(hub.cluster(name)).get(rules.LABEL)


async def test_sets_count_their_clusters_by_label_and_by_selector_as_both_change(hub: Hub) -> None:
    for document in (cluster_set("one"), cluster_set("two"), cluster_set("europe", {"matchLabels": {"region": "us"}})):
        hub.store.transact(put, CLUSTER_SETS, document)
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("b", region="eu"))
    work = await Fleetwork(hub.store).start()
    empty, one = ("True", "NoClusterMatched", "No ManagedCluster selected"), ("False", "ClustersSelected")
    assert [empty_condition(hub, name) for name in ("one", "two", "europe")] == [empty] * 3
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", EU))
    nobody = {**cluster_set("nobody"), "spec": {"clusterSelector": {"selectorType": "LabelSelector"}}}
    hub.store.transact(put, CLUSTER_SETS, nobody)
    await work.settle()
    assert empty_condition(hub, "europe") == (*one, "1 ManagedClusters selected"), "the selector has changed"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu"))
    await work.settle()
    assert empty_condition(hub, "one") == (*one, "1 ManagedClusters selected")
    assert (empty_condition(hub, "europe"), empty_condition(hub, "nobody")) == ((*one, "2 ManagedClusters selected"), empty)
    before = hub.revision
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu", colour="red"))
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before + 1, "a change that moves no cluster writes nothing"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="two", region="asia"))
    await work.settle()
    assert [empty_condition(hub, name)[0] for name in ("one", "two")] == ["True", "False"]
    assert empty_condition(hub, "europe")[2] == "1 ManagedClusters selected"
    for name in ("a", "b"):
        hub.store.transact(remove, MANAGED_CLUSTERS, name)
    await work.settle()
    assert [empty_condition(hub, name)[0] for name in ("one", "two", "europe")] == ["True"] * 3


async def test_bindings_in_all_namespaces_follow_the_coming_and_going_of_their_set_and_no_other_is_written(hub: Hub) -> None:
    for place, name in (("east", "one"), ("west", "one"), ("other", "two")):
        hub.store.transact(open_namespace, place)
        hub.store.transact(put, CLUSTER_SET_BINDINGS, binding(name, place))
    work = await Fleetwork(hub.store).start()
    missing, there = ("False", "ClusterSetNotFound"), ("True", "ClusterSetBound")
    for _ in range(2):
        assert [bound(hub, "one", place) for place in ("east", "west")] == [missing] * 2
        hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
        before = hub.revision
        await work.settle()
        assert hub.revision - before == 3, "two bindings, and the count of the set itself"
        assert [bound(hub, "one", place) for place in ("east", "west")] == [there] * 2
        hub.store.transact(remove, CLUSTER_SETS, "one")
        await work.settle()


async def test_a_binding_that_fails_holds_up_no_other_of_its_set(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("east", "west"):
        hub.store.transact(open_namespace, name)
        hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", name))
    work = await Fleetwork(hub.store).start()
    error = InvalidError("it breaks a rule")
    failing(monkeypatch, clustersets, "update_binding", error, lambda key, _actor: key.namespace == "east")
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    await check_refusal_of(AssertionError, work.settle(), match="go on")
    assert [bound(hub, "one", place)[0] for place in ("east", "west")] == ["False", "True"]


async def test_default_and_global_are_made_and_come_again_when_deleted(hub: Hub) -> None:
    work = await Fleetwork(hub.store, default_cluster_set=True).start()
    first = present(hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT))
    for name in rules.STANDING:
        hub.store.transact(remove, CLUSTER_SETS, name)
    await work.settle()
    assert present(hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT)).uid != first.uid
    assert hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL) is not None
    assert [event.reason for event in work.recorded] == ["ClusterSetCreated"] * 4


async def test_an_edit_of_their_selector_is_taken_back_unless_they_say_that_it_is_meant(hub: Hub) -> None:
    work = await Fleetwork(hub.store, default_cluster_set=True).start()
    hub.store.transact(put, CLUSTER_SETS, cluster_set(rules.GLOBAL, EU, namespaces=("web",)))
    await work.settle()
    assert present(hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL)).document["spec"] == {
        "clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}},
        "managedNamespaces": [{"name": "web"}],
    }
    assert work.recorded[-1].reason == "ClusterSetRestored"
    hub.store.transact(put, CLUSTER_SETS, doc.with_annotations(cluster_set(rules.GLOBAL, EU), {rules.AUTOUPDATE: "false"}))
    await work.settle()
    kept = present(hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL))
    assert kept.document["spec"]["clusterSelector"]["labelSelector"] == EU


async def test_clusters_without_a_set_are_in_default_where_the_gate_is_open(hub: Hub) -> None:
    """Those of an earlier release once, others from their first moment on."""
    hub.join("old")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into="one"))
    await Fleetwork(hub.store).start()
    assert (hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT), label_of(hub, "old")) == (None, None)
    work = await Fleetwork(hub.store, default_cluster_set=True).start()
    assert [label_of(hub, name) for name in ("old", "c3")] == ["default", "one"]
    before = hub.revision
    await Fleetwork(hub.store, default_cluster_set=True).start()
    assert hub.revision == before
    hub.join("c1")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c2", into=""))
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("c4"), "metadata": {"name": "c4", "labels": {rules.LABEL: ""}}})
    assert [label_of(hub, name) for name in ("c1", "c2", "c4")] == ["default"] * 3
    before = hub.revision
    await work.settle()
    assert [empty_condition(hub, name)[2].split()[0] for name in rules.STANDING] == ["4", "5"]
    assert hub.revision - before == 2, "the two counts"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into=""))
    assert label_of(hub, "c3") == "default", "a cluster that leaves its set"


async def test_several_hubs_write_what_one_would(hub: Hub) -> None:
    """The second one finds nothing to do: no write is made twice, and none is refused."""
    for number in range(5):
        hub.store.transact(put, MANAGED_CLUSTERS, cluster(f"c{number}", into="one"))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("web",)))
    alone = Hub(clock=hub.clock)
    alone.store.restore(hub.store.saved())
    await Fleetwork(alone.store).start()
    works = [Fleetwork(hub.store) for _ in range(3)]
    for work in works:
        await work.start()
    for work in works:
        await work.settle()
    assert hub.revision == alone.revision


def bound_sets(hub: Hub, name: str = "a") -> list[tuple[str, str]]:
    return [(entry["clusterSet"], entry["name"]) for entry in doc.sequence(hub.cluster(name), "status", "managedNamespaces")]


async def staged(hub: Hub) -> Fleetwork:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("web", "db")))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", {"matchLabels": {"region": "eu"}}, namespaces=("web",)))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one"))
    return await Fleetwork(hub.store).start()


async def test_clusters_get_the_namespaces_of_their_sets_as_both_change(hub: Hub) -> None:
    work = await staged(hub)
    assert bound_sets(hub) == [("one", "db"), ("one", "web")]
    hub.store.transact(put, CLUSTER_SETS, doc.with_metadata(cluster_set("one", namespaces=("web", "db")), labels={"x": "y"}))
    before = hub.revision
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before + 1, "the set's own count, which the edit has dropped"
    assert bound_sets(hub) == [("one", "db"), ("one", "web")]
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a", into="one", region="eu"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert bound_sets(hub) == [("europe", "web"), ("one", "db"), ("one", "web")]
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("db",)))
    await work.settle()
    assert bound_sets(hub) == [("europe", "web"), ("one", "db")]
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert bound_sets(hub) == []


async def test_namespaces_of_a_set_that_is_gone_or_being_deleted_go(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(remove, CLUSTER_SETS, "one")
    await work.start()  # it went while nobody looked
    assert bound_sets(hub) == []
    held = doc.with_metadata(cluster_set("one", namespaces=("web", "db")), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, held)
    await work.settle()
    assert bound_sets(hub) == [("one", "db"), ("one", "web")]
    hub.store.transact(remove, CLUSTER_SETS, "one")
    assert hub.store.transact(find, CLUSTER_SETS, "one") is not None
    await work.settle()
    assert bound_sets(hub) == []


async def test_sets_and_clusters_that_are_being_deleted_or_wait_cost_no_write(hub: Hub) -> None:
    held = doc.with_metadata(cluster_set("one", namespaces=("web",)), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, held)
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("a", into="two"), finalizers=["example.com/hold"]))
    for kind, name in ((CLUSTER_SETS, "one"), (MANAGED_CLUSTERS, "a")):
        hub.store.transact(remove, kind, name)
    hub.join("c1")
    before = hub.revision
    await Fleetwork(hub.store, with_profiles=True).start()
    assert (hub.revision, bound_sets(hub)) == (before, [])
    hub.store.transact(put, CLUSTER_SETS, cluster_set("two", namespaces=("web",)))
    await Fleetwork(hub.store).start()
    assert bound_sets(hub) == []


async def test_a_cluster_that_is_being_deleted_and_falls_silent_reads_unknown(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("c1"), finalizers=["example.com/hold"]))
    hub.store.transact(clusters.set_condition, ClusterName("c1"), cluster_rules.ACCEPTED, "admin")
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    since = hub.clock.now()
    hub.clock.advance(timedelta(seconds=301))
    hub.store.transact(heartbeats.expire, ClusterName("c1"), window=timedelta(seconds=1), since=since, actor="test")
    assert present(hub.condition("c1", AVAILABLE)).status == UNKNOWN


def profiles(hub: Hub) -> list[str]:
    return [str(stored.key) for stored in hub.store.transact(lambda tx: tx.objects.find(CLUSTER_PROFILES, Query())).items]


def profile(hub: Hub, name: str, place: str) -> dict[str, Any]:
    return dict(present(hub.store.transact(find, CLUSTER_PROFILES, name, place)).document)


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
    return await Fleetwork(hub.store, with_profiles=True).start()


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
    await Fleetwork(hub.store, with_profiles=True).start()
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
    assert [doc.labels(profile(hub, name, "q"))[OF_SET] for name in "ac"] == ["", "one"], "the set may be none"


async def test_clusters_that_wait_are_denied_or_are_being_deleted_are_not_shown(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one", "p/two")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("waiting", into="one", accepted=False))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", accepted=False))
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("b", into="two"), finalizers=["example.com/hold"]))
    hub.store.transact(remove, MANAGED_CLUSTERS, "b")
    await work.settle()
    assert profiles(hub) == ["p/c"]


async def test_a_profile_says_what_its_cluster_says(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one")
    moment = "2026-01-01T00:00:00Z"
    condition = {"status": "True", "reason": "ManagedClusterAvailable", "message": "well", "lastTransitionTime": moment}
    status = {
        "version": {"kubernetes": "v1.36.1"},
        "clusterClaims": [{"name": "z", "value": "1"}, {"name": "a", "value": "2"}],
        "conditions": [
            {**condition, "type": "ManagedClusterConditionAvailable"},
            {**condition, "type": "ManagedClusterJoined"},
            {**condition, "type": "HubAcceptedManagedCluster"},
        ],
    }
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a", into="one"), "status": status})
    await work.settle()
    shown = profile(hub, "a", "p")["status"]
    assert shown["version"] == {"kubernetes": "v1.36.1"}
    assert shown["properties"] == status["clusterClaims"], "in the cluster's own order"
    healthy = {"ControlPlaneHealthy": "True", "Joined": "True"}
    assert {entry["type"]: entry["status"] for entry in shown["conditions"]} == healthy


async def test_a_profile_that_somebody_deletes_or_edits_comes_back(hub: Hub, work: Fleetwork) -> None:
    await bind(hub, work, "p/one", "q/one")
    hub.store.transact(remove, CLUSTER_PROFILES, "a", "p")
    edited = doc.with_metadata(profile(hub, "a", "q"), labels={"own": "label", OF_SET: "another"})
    theirs: dict[str, Any] = {"accessProviders": [{"name": "own"}], "conditions": [{"type": "Consumer", "status": "True"}]}
    hub.store.transact(put, CLUSTER_PROFILES, doc.with_status(edited, **theirs))
    await work.settle()
    again = profile(hub, "a", "q")
    assert (profiles(hub), doc.labels(again)) == (["p/a", "q/a"], {"own": "label", **LABELS})
    assert {part: again["status"][part] for part in theirs} == theirs, "a status that others write stays"
    hub.store.transact(put, CLUSTER_PROFILES, doc.with_metadata(again, finalizers=["example.com/consumer"]))
    hub.store.transact(remove, CLUSTER_SET_BINDINGS, "one", "q")
    await work.settle()
    await work.settle()
    held = profile(hub, "a", "q")
    assert doc.is_deleting(held)
    hub.store.transact(put, CLUSTER_PROFILES, doc.with_metadata(held, finalizers=None))
    await work.settle()
    assert profiles(hub) == ["p/a"]


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
