"""Namespaces: which there are, what may be put into them, and how they end."""

from datetime import timedelta
from typing import Any

import pytest

from hub.api import namespaces as rules
from hub.api.meta import document as doc
from hub.api.meta.change import CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS
from hub.controllers.clusters.deletion import NAMESPACE_CHECKS, Namespaces
from hub.ports import Transaction
from hub.registry import deletion as termination
from hub.registry import namespaces
from hub.registry.deletion import PORTION, NamespaceDeletionProgress
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import CLUSTER_LABEL, cluster_name
from machinery.meta.objects import Query, StoredObject
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, Newcomer

HELD = "example.com/wait"


def make(store: InlineStore, name: str = "east") -> None:
    store.transact(lambda tx: namespaces.put(tx, rules.namespace(name), None, "admin"))


def found(store: InlineStore, name: str = "east") -> StoredObject | None:
    return store.transact(namespaces.get, name)


def delete(store: InlineStore, name: str = "east") -> None:
    def use_case(tx: Transaction) -> None:
        stored = present(namespaces.get(tx, name))
        namespaces.remove(tx, stored, "admin")

    store.transact(use_case)


def fill(store: InlineStore, count: int, *finalizers: str) -> None:
    def use_case(tx: Transaction) -> None:
        for number in range(count):
            metadata: dict[str, Any] = {"name": f"c{number:04}", "namespace": "east", "finalizers": list(finalizers)}
            objects.put(tx, CONFIG_MAPS, {"metadata": metadata}, None, "admin")

    store.transact(use_case)


def finalized(tx: Transaction, name: str) -> None:
    stored = present(namespaces.get(tx, "east"))
    namespaces.put(tx, doc.with_metadata(stored.document, finalizers=[name]), stored, "admin")


def proceed(store: InlineStore) -> NamespaceDeletionProgress:
    return store.transact(termination.delete_namespace, "east", "controller")


def content(store: InlineStore) -> tuple[StoredObject, ...]:
    return store.transact(lambda tx: tx.objects.find(CONFIG_MAPS, Query(namespace="east"))).items


def test_standing_namespaces_are_made_once_and_never_deleted(store: InlineStore) -> None:
    store.transact(namespaces.ensure_standing)
    revision = store.state.revision
    names = [stored.key.name for stored in store.transact(lambda tx: tx.objects.find(NAMESPACES, Query())).items]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system", "open-cluster-management-hub"]
    store.transact(namespaces.ensure_standing)
    assert store.state.revision == revision

    def mark(name: str) -> None:
        document = {**rules.namespace(name), "metadata": {"name": name, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        store.transact(lambda tx: namespaces.put(tx, document, namespaces.get(tx, name), "admin"))

    for act in (lambda name: delete(store, name), mark):
        check_refusals(
            ForbiddenError, act, [(name, "may not be deleted") for name in ("default", "kube-system", "kube-public")]
        )


def test_accepted_cluster_gets_a_namespace_that_outlives_it(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.join(newcomer.bootstrap())
    assert found(store, newcomer.cluster) is None
    newcomer.accept()
    stored = present(found(store, newcomer.cluster))
    assert doc.labels(stored.document)["open-cluster-management.io/cluster-name"] == newcomer.cluster
    assert stored.document["spec"] == {"finalizers": ["kubernetes"]}
    newcomer.accept(accepted=False)
    newcomer.accept()
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, newcomer.cluster), "admin"))
    assert found(store, newcomer.cluster) is not None
    delete(store, newcomer.cluster)
    newcomer.join(newcomer.bootstrap())
    with pytest.raises(ForbiddenError, match="is terminating"):
        newcomer.accept()


def test_a_deleted_namespace_goes_when_it_is_empty_and_not_before(store: InlineStore) -> None:
    make(store)
    fill(store, PORTION + 1)
    assert (proceed(store), len(content(store))) == (NamespaceDeletionProgress(), PORTION + 1)
    delete(store)
    stored = present(found(store))
    assert stored.document["status"]["phase"] == "Terminating"
    assert [proceed(store).removed, proceed(store).removed] == [PORTION, 1]
    assert (content(store), found(store) is None) == ((), False)
    assert proceed(store) == NamespaceDeletionProgress()
    assert found(store) is None


def test_finalizers_of_the_content_hold_the_namespace_and_it_says_so(store: InlineStore) -> None:
    make(store)
    fill(store, 2, HELD)
    delete(store)
    assert [proceed(store), proceed(store)] == [NamespaceDeletionProgress(removed=2), NamespaceDeletionProgress(held=2)]
    stored = present(found(store))
    told = {entry["type"]: (entry["status"], entry["message"]) for entry in doc.conditions(stored.document)}
    remaining = "Some resources are remaining: configmaps has 2 resource instances"
    assert told["NamespaceContentRemaining"] == ("True", remaining)
    assert HELD in told["NamespaceFinalizersRemaining"][1]
    revision = store.state.revision
    assert proceed(store) == NamespaceDeletionProgress(held=2)
    assert store.state.revision == revision, "nothing new is written twice"


def test_a_namespaces_own_finalizer_holds_it_after_its_content_is_gone(store: InlineStore) -> None:
    make(store)
    store.transact(finalized, HELD)
    delete(store)
    assert proceed(store) == NamespaceDeletionProgress()
    stored = present(found(store))
    freed = doc.with_metadata(stored.document, finalizers=None)
    store.transact(lambda tx: namespaces.put(tx, freed, stored, "admin"))
    assert found(store) is None


async def settle(subject: Namespaces) -> None:
    for _ in range(10):
        if await subject.reconcile(EDGE) is None:
            return
    raise AssertionError(EDGE)


async def test_lost_namespace_is_made_and_a_known_one_needs_no_step(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock
) -> None:
    newcomer.join(newcomer.bootstrap())
    await settle(Namespaces(store))
    assert found(store, EDGE) is None
    newcomer.accept()
    store.transact(lambda tx: tx.objects.delete(NAMESPACES, present(namespaces.get(tx, EDGE)), "an earlier release"))
    await settle(Namespaces(store))
    assert found(store, EDGE) is not None
    cluster = store.transact(clusters.find, EDGE).document
    subject, namespace = Namespaces(store), rules.of_cluster(EDGE)
    assert subject.wanted_of(cluster)
    assert not subject.wanted(namespace)
    assert not subject.wanted_of(cluster)
    assert subject.wanted(doc.deleting(namespace, clock.now()))
    assert subject.wanted_of(cluster)
    assert not subject.wanted(rules.namespace("team")), "a namespace of no cluster"


async def test_a_namespace_that_was_there_before_or_lost_its_label_is_labelled(newcomer: Newcomer, store: InlineStore) -> None:
    store.transact(lambda tx: namespaces.put(tx, rules.namespace(EDGE, {"team": "a"}), None, "admin"))
    newcomer.accepted()
    labelled = present(found(store, EDGE))
    assert doc.labels(labelled.document) == {"team": "a", rules.NAME_LABEL: EDGE, CLUSTER_LABEL: EDGE}
    subject = Namespaces(store)
    assert not subject.wanted(labelled.document)
    bare = doc.with_metadata(labelled.document, labels={"team": "b"})
    store.transact(namespaces.put, bare, labelled, "admin")
    assert subject.wanted(bare)
    await settle(subject)
    assert doc.labels(present(found(store, EDGE)).document) == {"team": "b", CLUSTER_LABEL: EDGE}
    before = store.state.revision
    await settle(subject)
    assert store.state.revision == before


async def test_what_finalizers_hold_is_looked_at_again(store: InlineStore, clock: ManualClock) -> None:
    make(store)
    fill(store, 1, HELD)
    delete(store)
    subject = Namespaces(store)
    assert await subject.reconcile("east") is not None, "it marked the object"
    assert await subject.reconcile("east") == NAMESPACE_CHECKS
    clock.advance(timedelta(minutes=5))
    assert await subject.reconcile("east") == timedelta(seconds=30), "the longer it lasts, the more seldom"
    clock.advance(timedelta(days=1))
    assert await subject.reconcile("east") == timedelta(minutes=1)


def test_cluster_gets_no_name_of_the_hub_and_none_of_a_namespace_with_accounts_of_others(store: InlineStore) -> None:
    """Neither when it is made, nor when it is accepted; an operator may give it the namespace."""

    def account(name: str) -> None:
        document = {"metadata": {"name": "builder", "namespace": name}}
        store.transact(lambda tx: objects.put(tx, SERVICE_ACCOUNTS, document, None, "admin"))

    def cluster(name: str) -> None:
        store.transact(clusters.put, {"metadata": {"name": name}}, None, "admin")

    for name in ("open-cluster-management", "open-cluster-management-agent", "default"):
        with pytest.raises(InvalidError, match="the hub's own"):
            cluster(name)
    make(store)
    cluster("east")
    account("east")
    make(store, "west")
    account("west")
    with pytest.raises(ForbiddenError, match="belongs to no cluster"):
        cluster("west")
    with pytest.raises(ForbiddenError, match=r"label it with .*cluster-name=east"):
        store.transact(clusters.set_accepted, cluster_name("east"), True, "admin")  # noqa: FBT003 - the field's value
    stored = present(found(store))
    store.transact(lambda tx: namespaces.put(tx, rules.labelled(stored.document), stored, "admin"))
    store.transact(clusters.set_accepted, cluster_name("east"), True, "admin")  # noqa: FBT003 - the field's value
