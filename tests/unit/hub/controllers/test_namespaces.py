"""Clusters have namespaces, and deleted namespaces are emptied."""

from datetime import timedelta

from hub.controllers.namespaces import LOOK_AGAIN, Namespaces
from hub.domain import document as doc
from hub.domain import namespace as rules
from hub.domain.change import CONFIG_MAPS, NAMESPACES, Key, StoredObject
from hub.domain.request import CLUSTER_LABEL
from hub.ports import Transaction
from hub.services import clusters, namespaces, objects
from machinery.identity import ClusterName
from tests.unit.hub.controllers.conftest import Hub


def found(hub: Hub, name: str = "c1") -> StoredObject | None:
    return hub.store.transact(namespaces.get, name)


def lose(hub: Hub, name: str = "c1") -> None:
    """As in a database of an earlier release."""
    hub.store.transact(lambda tx: tx.objects.delete(NAMESPACES, namespaces.get(tx, name), "test"))  # type: ignore[arg-type]


def delete(hub: Hub, name: str = "c1") -> None:
    hub.store.transact(lambda tx: namespaces.remove(tx, namespaces.get(tx, name), "admin"))  # type: ignore[arg-type]


async def settle(subject: Namespaces, name: str = "c1") -> None:
    for _ in range(10):
        if await subject.reconcile(name) is None:
            return
    raise AssertionError(name)


async def test_an_accepted_cluster_has_a_namespace_and_one_that_waits_has_none(hub: Hub) -> None:
    hub.join("c1")
    await settle(Namespaces(hub.store))
    assert found(hub) is None
    hub.accept("c1")
    lose(hub)
    await settle(Namespaces(hub.store))
    assert found(hub) is not None


async def test_a_cluster_whose_namespace_is_known_needs_no_step(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    cluster = hub.store.transact(clusters.find, ClusterName("c1")).document
    subject, namespace = Namespaces(hub.store), rules.of_cluster("c1")
    assert subject.wanted_of(cluster)
    assert not subject.wanted(namespace)
    assert not subject.wanted_of(cluster)
    assert subject.wanted(doc.deleting(namespace, hub.clock.now()))
    assert subject.wanted_of(cluster)
    assert not subject.wanted(rules.namespace("team")), "a namespace of no cluster"


async def test_a_deleted_namespace_of_an_accepted_cluster_is_emptied_and_comes_again(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    before = found(hub)
    assert before is not None

    def fill(tx: Transaction) -> None:
        objects.put(tx, CONFIG_MAPS, {"metadata": {"name": "settings", "namespace": "c1"}}, None, "admin")

    hub.store.transact(fill)
    delete(hub)
    await settle(Namespaces(hub.store))
    after = found(hub)
    assert after is not None
    assert after.uid != before.uid
    assert hub.store.transact(lambda tx: tx.objects.get(CONFIG_MAPS, Key("c1", "settings"))) is None


async def test_a_namespace_that_was_there_before_or_lost_its_label_is_labelled(hub: Hub) -> None:
    hub.store.transact(lambda tx: namespaces.put(tx, rules.namespace("c1", {"team": "a"}), None, "admin"))
    hub.join("c1")
    hub.accept("c1")
    labelled = found(hub)
    assert labelled is not None
    assert doc.labels(labelled.document) == {"team": "a", rules.NAME_LABEL: "c1", CLUSTER_LABEL: "c1"}
    subject = Namespaces(hub.store)
    assert not subject.wanted(labelled.document)
    bare = doc.with_metadata(labelled.document, labels={"team": "b"})
    hub.store.transact(namespaces.put, bare, labelled, "admin")
    assert subject.wanted(bare)
    await settle(subject)
    again = found(hub)
    assert again is not None
    assert doc.labels(again.document) == {"team": "b", CLUSTER_LABEL: "c1"}
    before = hub.revision
    await settle(subject)
    assert hub.revision == before


async def test_what_finalizers_hold_is_looked_at_again(hub: Hub) -> None:
    hub.store.transact(lambda tx: namespaces.put(tx, rules.namespace("east"), None, "admin"))
    held = {"metadata": {"name": "held", "namespace": "east", "finalizers": ["example.com/wait"]}}
    hub.store.transact(lambda tx: objects.put(tx, CONFIG_MAPS, held, None, "admin"))
    delete(hub, "east")
    subject = Namespaces(hub.store)
    assert await subject.reconcile("east") is not None, "it marked the object"
    assert await subject.reconcile("east") == LOOK_AGAIN
    hub.clock.advance(timedelta(minutes=5))
    assert await subject.reconcile("east") == timedelta(seconds=30), "the longer it lasts, the more seldom"
    hub.clock.advance(timedelta(days=1))
    assert await subject.reconcile("east") == timedelta(minutes=1)
