"""Clusters are told the namespaces of their sets, as sets and memberships change."""

from hub.domain import document as doc
from hub.domain.change import CLUSTER_SETS, MANAGED_CLUSTERS
from tests.fakes.fleetwork import Fleetwork, cluster, cluster_set, find, put, remove
from tests.unit.hub.controllers.conftest import Hub


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


async def test_a_cluster_is_told_of_its_set_and_of_a_second_one(hub: Hub) -> None:
    work = await staged(hub)
    assert told(hub) == [("one", "db"), ("one", "web")]
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a", into="one", region="eu"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert told(hub) == [("europe", "web"), ("one", "db"), ("one", "web")]


async def test_a_cluster_in_no_set_is_told_of_nothing_any_more(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(put, MANAGED_CLUSTERS, {**cluster("a"), "status": hub.cluster("a")["status"]})
    await work.settle()
    assert told(hub) == []


async def test_a_namespace_more_or_less_reaches_the_clusters_of_the_set(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("db",)))
    await work.settle()
    assert told(hub) == [("one", "db")]


async def test_namespaces_of_a_set_that_is_deleted_or_being_deleted_go(hub: Hub) -> None:
    work = await staged(hub)
    held = doc.with_metadata(cluster_set("one", namespaces=("web", "db")), finalizers=["example.com/hold"])
    hub.store.transact(put, CLUSTER_SETS, held)
    hub.store.transact(remove, CLUSTER_SETS, "one")
    assert hub.store.transact(find, CLUSTER_SETS, "one") is not None
    await work.settle()
    assert told(hub) == []


async def test_a_set_that_went_while_nobody_looked_is_noticed_at_the_next_start(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(remove, CLUSTER_SETS, "one")
    await work.start()
    assert told(hub) == []


async def test_a_cluster_that_is_being_deleted_is_left_alone(hub: Hub) -> None:
    hub.store.transact(put, CLUSTER_SETS, cluster_set("one", namespaces=("web",)))
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("a", into="one"), finalizers=["example.com/hold"]))
    hub.store.transact(remove, MANAGED_CLUSTERS, "a")
    await Fleetwork(hub.store).start()
    assert told(hub) == []


async def test_clusters_whose_namespaces_stand_are_not_written(hub: Hub) -> None:
    work = await staged(hub)
    hub.store.transact(
        put, CLUSTER_SETS, {**cluster_set("one", namespaces=("web", "db")), "metadata": {"name": "one", "labels": {"x": "y"}}}
    )
    before = hub.revision
    await work.settle()
    await Fleetwork(hub.store).start()
    assert hub.revision == before + 1, "the set's own count, which the edit has dropped"
    assert told(hub) == [("one", "db"), ("one", "web")]
