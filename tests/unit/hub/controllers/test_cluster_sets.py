"""Sets say how many clusters they have, bindings whether their set is there, and `default` and `global` stand."""

import pytest

from hub.domain import clusterset as rules
from hub.domain import document as doc
from hub.domain.change import CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Key
from hub.ports import Transaction
from hub.services import clustersets
from machinery import conditions
from machinery.conditions import Condition
from machinery.errors import InvalidError
from tests.fakes.fleetwork import Fleetwork, binding, cluster, cluster_set, find, open_namespace, put, remove
from tests.unit.hub.controllers.conftest import Hub

EU = {"matchLabels": {"region": "eu"}}


def emptiness(hub: Hub, name: str) -> tuple[str, str, str]:
    stored = hub.store.transact(find, CLUSTER_SETS, name)
    assert stored is not None
    found = conditions.find(doc.conditions(stored.document), rules.EMPTY)
    assert found is not None
    return found.status, found.reason, found.message


def bound(hub: Hub, name: str, place: str = "team") -> Condition | None:
    stored = hub.store.transact(find, CLUSTER_SET_BINDINGS, name, place)
    assert stored is not None
    return conditions.find(doc.conditions(stored.document), rules.BOUND)


def label_of(hub: Hub, name: str) -> str | None:
    return doc.labels(hub.cluster(name)).get(rules.LABEL)


@pytest.fixture
def team(hub: Hub) -> str:
    hub.store.transact(open_namespace, "team")
    return "team"


async def test_sets_count_their_clusters_by_label_and_by_selector(hub: Hub) -> None:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", EU))
    work = Fleetwork(hub.store)
    await work.start()
    assert emptiness(hub, "one") == ("True", "NoClusterMatched", "No ManagedCluster selected")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu"))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("b", region="eu"))
    nobody = {**cluster_set("nobody"), "spec": {"clusterSelector": {"selectorType": "LabelSelector"}}}
    hub.store.transact(put, CLUSTER_SETS, nobody)
    await work.settle()
    assert emptiness(hub, "one") == ("False", "ClustersSelected", "1 ManagedClusters selected")
    assert emptiness(hub, "europe") == ("False", "ClustersSelected", "2 ManagedClusters selected")
    assert emptiness(hub, "nobody")[1] == "NoClusterMatched"


async def test_a_cluster_that_moves_or_goes_is_counted_where_it_is(hub: Hub) -> None:
    for name in ("one", "two"):
        hub.store.transact(put, CLUSTER_SETS, cluster_set(name))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one"))
    work = Fleetwork(hub.store)
    await work.start()
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="two"))
    await work.settle()
    assert [emptiness(hub, name)[0] for name in ("one", "two")] == ["True", "False"]
    hub.store.transact(remove, MANAGED_CLUSTERS, "a")
    await work.settle()
    assert [emptiness(hub, name)[0] for name in ("one", "two")] == ["True", "True"]


async def test_a_selector_that_changes_is_counted_anew_and_still_knows_who_leaves(hub: Hub) -> None:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", {"matchLabels": {"region": "us"}}))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", region="eu"))
    work = Fleetwork(hub.store)
    await work.start()
    assert emptiness(hub, "europe")[0] == "True"
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", EU))
    await work.settle()
    assert emptiness(hub, "europe")[2] == "1 ManagedClusters selected"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", region="asia"))
    await work.settle()
    assert emptiness(hub, "europe")[0] == "True"


async def test_a_set_that_is_being_deleted_is_left_alone(hub: Hub) -> None:
    document = doc.with_metadata(cluster_set("one"), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, document)
    hub.store.transact(remove, CLUSTER_SETS, "one")
    before = hub.revision
    await Fleetwork(hub.store).start()
    assert hub.revision == before


async def test_changes_that_move_nobody_write_nothing(hub: Hub) -> None:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("europe", EU))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu"))
    work = Fleetwork(hub.store)
    await work.start()
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("a", into="one", region="eu", colour="red"))
    before = hub.revision
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before


async def test_bindings_follow_the_coming_and_going_of_their_set(hub: Hub, team: str) -> None:
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", team))
    work = Fleetwork(hub.store)
    await work.start()
    missing = bound(hub, "one")
    assert missing is not None
    assert (missing.status, missing.reason) == ("False", "ClusterSetNotFound")
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    await work.settle()
    there = bound(hub, "one")
    assert there is not None
    assert (there.status, there.reason) == ("True", "ClusterSetBound")
    hub.store.transact(remove, CLUSTER_SETS, "one")
    await work.settle()
    assert (again := bound(hub, "one")) is not None
    assert again.status == "False"
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    await work.settle()
    assert (back := bound(hub, "one")) is not None
    assert back.status == "True"


async def test_a_set_that_is_bound_in_several_namespaces_is_found_in_all_and_no_other_is_written(hub: Hub) -> None:
    for name in ("east", "west", "other"):
        hub.store.transact(open_namespace, name)
    for place in ("east", "west"):
        hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("one", place))
    hub.store.transact(put, CLUSTER_SET_BINDINGS, binding("two", "other"))
    work = Fleetwork(hub.store)
    await work.start()
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one"))
    before = hub.revision
    await work.settle()
    assert hub.revision - before == 3, "two bindings, and the count of the set itself"
    assert all((found := bound(hub, "one", place)) and found.status == "True" for place in ("east", "west"))


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
    assert [found.status for place in ("east", "west") if (found := bound(hub, "one", place))] == ["False", "True"]


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


async def test_without_the_gate_there_are_no_such_sets_and_nobody_is_put_anywhere(hub: Hub) -> None:
    hub.join("c1")
    work = Fleetwork(hub.store)
    await work.start()
    assert hub.store.transact(find, CLUSTER_SETS, rules.DEFAULT) is None
    assert label_of(hub, "c1") is None


async def test_a_cluster_without_a_set_is_in_default_from_its_first_moment_on(hub: Hub) -> None:
    work = Fleetwork(hub.store, default_cluster_set=True)
    await work.start()
    hub.join("c1")
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c2", into=""))
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into="one"))
    assert [label_of(hub, name) for name in ("c1", "c2", "c3")] == ["default", "default", "one"]
    before = hub.revision
    await work.settle()
    assert [emptiness(hub, name)[2].split()[0] for name in rules.STANDING] == ["2", "3"]
    assert hub.revision - before == 2, "the two counts"
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into=""))
    assert label_of(hub, "c3") == "default", "a cluster that leaves its set"


async def test_clusters_of_an_earlier_release_are_put_into_default_once(hub: Hub) -> None:
    for name in ("c1", "c2"):
        hub.join(name)
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c3", into="one"))
    await Fleetwork(hub.store, default_cluster_set=True).start()
    assert [label_of(hub, name) for name in ("c1", "c2", "c3")] == ["default", "default", "one"]
    before = hub.revision
    await Fleetwork(hub.store, default_cluster_set=True).start()
    assert hub.revision == before


async def test_several_hubs_write_what_one_would(hub: Hub) -> None:
    """Whoever comes second finds nothing to do: no write is made twice, and none is refused."""
    for number in range(5):
        hub.store.transact(put, MANAGED_CLUSTERS, cluster(f"c{number}", into="one"))
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("web",)))
    alone = Hub(clock=hub.clock)
    alone.store.state = hub.store.state.copied()
    await Fleetwork(alone.store).start()
    works = [Fleetwork(hub.store) for _ in range(3)]
    for work in works:
        await work.start()
    for work in works:
        await work.settle()
    assert hub.revision == alone.revision
