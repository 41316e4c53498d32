"""Sets count their clusters, bindings follow their set, `default` and `global` stand, clusters are told their namespaces."""

from datetime import timedelta

import pytest

from hub.controllers.addon_tokens import AddOnTokens
from hub.controllers.batch import TOGETHER
from hub.controllers.cluster_profiles import ClusterProfiles, ProfiledNamespaces
from hub.controllers.cluster_sets import ClusterSets
from hub.controllers.default_set import DefaultSet
from hub.controllers.managed_namespaces import ManagedNamespaces
from hub.controllers.set_bindings import SetBindings
from hub.domain import cluster as cluster_rules
from hub.domain import clusterset as rules
from hub.domain import document as doc
from hub.domain.change import CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Key
from hub.ports import Transaction
from hub.services import clusters, clustersets, heartbeats
from machinery import conditions
from machinery.conditions import AVAILABLE, UNKNOWN
from machinery.errors import InvalidError
from machinery.identity import ClusterName
from tests.fakes.fleetwork import Fleetwork, binding, cluster, cluster_set, find, open_namespace, put, remove
from tests.unit.hub.controllers.conftest import Hub

EU = {"matchLabels": {"region": "eu"}}


def emptiness(hub: Hub, name: str) -> tuple[str, str, str]:
    stored = hub.store.transact(find, CLUSTER_SETS, name)
    assert stored is not None
    found = conditions.find(doc.conditions(stored.document), rules.EMPTY)
    assert found is not None
    return found.status, found.reason, found.message


def bound(hub: Hub, name: str, place: str = "team") -> tuple[str, str]:
    stored = hub.store.transact(find, CLUSTER_SET_BINDINGS, name, place)
    assert stored is not None
    found = conditions.find(doc.conditions(stored.document), rules.BOUND)
    assert found is not None
    return found.status, found.reason


def label_of(hub: Hub, name: str) -> str | None:
    return doc.labels(hub.cluster(name)).get(rules.LABEL)


async def test_sets_count_their_clusters_by_label_and_by_selector_as_both_change(hub: Hub) -> None:
    us = {"matchLabels": {"region": "us"}}
    for document in (cluster_set("one"), cluster_set("two"), cluster_set("europe", us)):
        hub.store.transact(put, CLUSTER_SETS, document)
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("b", region="eu"))
    work = Fleetwork(hub.store)
    await work.start()
    empty, one = ("True", "NoClusterMatched", "No ManagedCluster selected"), ("False", "ClustersSelected")
    assert [emptiness(hub, name) for name in ("one", "two", "europe")] == [empty] * 3
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", EU))
    nobody = {**cluster_set("nobody"), "spec": {"clusterSelector": {"selectorType": "LabelSelector"}}}
    hub.store.transact(put, CLUSTER_SETS, nobody)
    await work.settle()
    assert emptiness(hub, "europe") == (*one, "1 ManagedClusters selected"), "the selector has changed"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu"))
    await work.settle()
    assert emptiness(hub, "one") == (*one, "1 ManagedClusters selected")
    assert emptiness(hub, "europe") == (*one, "2 ManagedClusters selected")
    assert emptiness(hub, "nobody") == empty
    before = hub.revision
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu", colour="red"))
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before + 1, "a change that moves no cluster writes nothing"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="two", region="asia"))
    await work.settle()
    assert [emptiness(hub, name)[0] for name in ("one", "two")] == ["True", "False"]
    assert emptiness(hub, "europe")[2] == "1 ManagedClusters selected"
    for name in ("a", "b"):
        hub.store.transact(remove, MANAGED_CLUSTERS, name)
    await work.settle()
    assert [emptiness(hub, name)[0] for name in ("one", "two", "europe")] == ["True"] * 3


async def test_bindings_in_all_namespaces_follow_the_coming_and_going_of_their_set_and_no_other_is_written(hub: Hub) -> None:
    for place, name in (("east", "one"), ("west", "one"), ("other", "two")):
        hub.store.transact(open_namespace, place)
        hub.store.transact(put, CLUSTER_SET_BINDINGS, binding(name, place))
    work = Fleetwork(hub.store)
    await work.start()
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
    work = Fleetwork(hub.store)
    await work.start()
    right = clustersets.settle_binding

    def wrong(tx: Transaction, key: Key, actor: str) -> None:
        if key.namespace == "east":
            raise InvalidError("it breaks a rule")
        right(tx, key, actor)

    monkeypatch.setattr(clustersets, "settle_binding", wrong)
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    with pytest.raises(AssertionError, match="go on"):
        await work.settle()
    assert [bound(hub, "one", place)[0] for place in ("east", "west")] == ["False", "True"]


async def test_default_and_global_are_made_and_come_again_when_deleted(hub: Hub) -> None:
    work = Fleetwork(hub.store, default_cluster_set=True)
    await work.start()
    first = hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT)
    assert first is not None
    for name in rules.STANDING:
        hub.store.transact(remove, CLUSTER_SETS, name)
    await work.settle()
    again = hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT)
    assert again is not None
    assert again.uid != first.uid
    assert hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL) is not None
    assert [told.reason for told in work.told] == ["ClusterSetCreated"] * 4


async def test_an_edit_of_their_selector_is_taken_back_unless_they_say_that_it_is_meant(hub: Hub) -> None:
    work = Fleetwork(hub.store, default_cluster_set=True)
    await work.start()
    hub.store.transact(put, CLUSTER_SETS, cluster_set(rules.GLOBAL, EU, namespaces=("web",)))
    await work.settle()
    stored = hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL)
    assert stored is not None
    assert stored.document["spec"] == {
        "clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}},
        "managedNamespaces": [{"name": "web"}],
    }
    assert work.told[-1].reason == "ClusterSetRestored"
    meant = doc.with_annotations(cluster_set(rules.GLOBAL, EU), {rules.AUTOUPDATE: "false"})
    hub.store.transact(put, CLUSTER_SETS, meant)
    await work.settle()
    kept = hub.store.transact(find, CLUSTER_SETS, rules.GLOBAL)
    assert kept is not None
    assert kept.document["spec"]["clusterSelector"]["labelSelector"] == EU


async def test_clusters_without_a_set_are_in_default_where_the_gate_is_open(hub: Hub) -> None:
    """Those of an earlier release once, others from their first moment on."""
    hub.join("old")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into="one"))
    await Fleetwork(hub.store).start()
    assert hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT) is None
    assert label_of(hub, "old") is None
    work = Fleetwork(hub.store, default_cluster_set=True)
    await work.start()
    assert [label_of(hub, name) for name in ("old", "c3")] == ["default", "one"]
    before = hub.revision
    await Fleetwork(hub.store, default_cluster_set=True).start()
    assert hub.revision == before
    hub.join("c1")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c2", into=""))
    empty = {**cluster("c4"), "metadata": {"name": "c4", "labels": {rules.LABEL: ""}}}
    hub.store.transact(put, MANAGED_CLUSTERS, empty)
    assert [label_of(hub, name) for name in ("c1", "c2", "c4")] == ["default"] * 3
    before = hub.revision
    await work.settle()
    assert [emptiness(hub, name)[2].split()[0] for name in rules.STANDING] == ["4", "5"]
    assert hub.revision - before == 2, "the two counts"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into=""))
    assert label_of(hub, "c3") == "default", "a cluster that leaves its set"


async def test_several_hubs_write_what_one_would(hub: Hub) -> None:
    """Whoever comes second finds nothing to do: no write is made twice, and none is refused."""
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


def told(hub: Hub, name: str = "a") -> list[tuple[str, str]]:
    entries = doc.sequence(hub.cluster(name), "status", "managedNamespaces")
    return [(entry["clusterSet"], entry["name"]) for entry in entries]


async def staged(hub: Hub) -> Fleetwork:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("web", "db")))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", {"matchLabels": {"region": "eu"}}, namespaces=("web",)))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one"))
    work = Fleetwork(hub.store)
    await work.start()
    return work


async def test_clusters_are_told_the_namespaces_of_their_sets_as_both_change(hub: Hub) -> None:
    work = await staged(hub)
    assert told(hub) == [("one", "db"), ("one", "web")]
    labelled = doc.with_metadata(cluster_set("one", namespaces=("web", "db")), labels={"x": "y"})
    hub.store.transact(put, CLUSTER_SETS, labelled)
    before = hub.revision
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before + 1, "the set's own count, which the edit has dropped"
    assert told(hub) == [("one", "db"), ("one", "web")]

    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a", into="one", region="eu"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert told(hub) == [("europe", "web"), ("one", "db"), ("one", "web")]
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("db",)))
    await work.settle()
    assert told(hub) == [("europe", "web"), ("one", "db")]
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert told(hub) == []


async def test_namespaces_of_a_set_that_is_gone_or_being_deleted_go(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(remove, CLUSTER_SETS, "one")
    await work.start()  # it went while nobody looked
    assert told(hub) == []
    held = doc.with_metadata(cluster_set("one", namespaces=("web", "db")), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, held)
    await work.settle()
    assert told(hub) == [("one", "db"), ("one", "web")]
    hub.store.transact(remove, CLUSTER_SETS, "one")
    assert hub.store.transact(find, CLUSTER_SETS, "one") is not None
    await work.settle()
    assert told(hub) == []


async def test_sets_and_clusters_that_are_being_deleted_are_left_alone_and_a_cluster_that_waits_costs_no_write(
    hub: Hub,
) -> None:
    held = doc.with_metadata(cluster_set("one", namespaces=("web",)), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, held)
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("a", into="two"), finalizers=["example.com/hold"]))
    for kind, name in ((CLUSTER_SETS, "one"), (MANAGED_CLUSTERS, "a")):
        hub.store.transact(remove, kind, name)
    hub.join("c1")
    before = hub.revision
    await Fleetwork(hub.store, cluster_profiles=True).start()
    assert (hub.revision, told(hub)) == (before, [])
    hub.store.transact(put, CLUSTER_SETS, cluster_set("two", namespaces=("web",)))
    await Fleetwork(hub.store).start()
    assert told(hub) == []


WINDOW = timedelta(seconds=1)


async def test_a_cluster_that_is_being_deleted_and_falls_silent_reads_unknown(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("c1"), finalizers=["example.com/hold"]))
    hub.store.transact(clusters.set_condition, ClusterName("c1"), cluster_rules.ACCEPTED, "admin")
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    since = hub.clock.now()
    hub.clock.advance(timedelta(seconds=301))
    hub.store.transact(heartbeats.expire, ClusterName("c1"), window=WINDOW, since=since, actor="test")
    found = hub.condition("c1", AVAILABLE)
    assert found is not None
    assert found.status == UNKNOWN


async def test_keys_of_nothing_are_passed_over(hub: Hub) -> None:
    nothing = Key("nowhere", "nobody")
    told: list[object] = []
    for batched in (DefaultSet(hub.store), ManagedNamespaces(hub.store, tuple), ClusterProfiles(hub.store)):
        batched.wants("nobody")
        assert await batched.reconcile(TOGETHER) is None
    assert await ClusterSets(hub.store).reconcile("nobody") is None
    assert await SetBindings(hub.store, lambda _key: None).reconcile(nothing) is None
    assert await SetBindings(hub.store, lambda _key: None).reconcile(Key("", "nobody")) is None
    assert await AddOnTokens(hub.store, told.append).reconcile(nothing) is None
    assert await ProfiledNamespaces(hub.store, told.append).reconcile(nothing) is None
    assert (hub.revision, told) == (0, [])
