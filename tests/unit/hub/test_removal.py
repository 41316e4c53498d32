"""The end of a cluster: what goes before it, in which order, what is waited for, and what is given up."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from hub.api.events import EventRecord
from hub.api.managedclusters import removal as rules
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, SERVICE_ACCOUNTS, Kind
from hub.controllers.clusters.deletion import CLUSTER_CHECKS, Removal
from hub.ports import Transaction
from hub.registry import deletion as removal
from hub.registry.deletion import ClusterDeletionProgress
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.identity import AddOnName
from machinery.meta import conditions
from machinery.meta.objects import Key, Query
from machinery.runtime.clock import ManualClock
from tests.checks import check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer

HOUR = timedelta(hours=1)
HELD = "example.com/pre-delete"


def add_addon(store: InlineStore, name: str, priority: str | None = None, finalizers: Iterable[str] = ()) -> None:
    notes = {} if priority is None else {rules.PRIORITY: priority}
    metadata = {"name": name, "namespace": "edge", "annotations": notes, "finalizers": list(finalizers)}
    store.transact(addons.put, {"metadata": metadata}, None, OPERATOR)


def delete(store: InlineStore) -> None:
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))


def proceed(store: InlineStore, deadline: timedelta = HOUR) -> ClusterDeletionProgress:
    return store.transact(removal.delete_cluster, "edge", deadline, "hub")


def cluster_of(store: InlineStore) -> dict[str, Any] | None:
    stored = store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "edge")))
    return dict(stored.document) if stored else None


def names(store: InlineStore, kind: Kind) -> list[str]:
    return [stored.key.name for stored in store.transact(lambda tx: tx.objects.find(kind, Query())).items]


def let_go(store: InlineStore, addon: str) -> None:
    def write(tx: Transaction) -> None:
        stored = addons.find(tx, EDGE, AddOnName(addon))
        addons.put(tx, doc.with_metadata(stored.document, finalizers=None), stored, OPERATOR)

    store.transact(write)


def deleting(store: InlineStore) -> tuple[str, str, str]:
    document = present(cluster_of(store))
    condition = conditions.find(doc.conditions(document), "Deleting")
    return (condition.status, condition.reason, condition.message) if condition else ("", "", "")


def hold(store: InlineStore, *finalizers: str) -> None:
    def write(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        clusters.put(tx, doc.with_metadata(stored.document, finalizers=list(finalizers) or None), stored, OPERATOR)

    store.transact(write)


async def test_only_a_deleted_cluster_loses_anything_and_an_empty_one_goes_at_once(
    newcomer: Newcomer, store: InlineStore
) -> None:
    """OCM 5.14: not deleting; deleting, no resources. Our finalizer comes with the deletion, so no write comes before it."""
    newcomer.registered()
    add_addon(store, "a")
    assert proceed(store) == ClusterDeletionProgress()
    assert await Removal(store, HOUR, lambda _told: None).reconcile("edge") is None
    assert names(store, ADDONS) == ["a"]
    assert doc.finalizers(cluster_of(store) or {}) == ()
    store.transact(lambda tx: objects.remove(tx, ADDONS, addons.find(tx, EDGE, AddOnName("a")), OPERATOR, generations=True))
    delete(store)
    assert cluster_of(store) is None


def test_a_clusters_addons_go_before_it(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.14: deleting with resources; the finalizer is resource-cleanup, the condition Deleting."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    delete(store)
    assert list(doc.finalizers(cluster_of(store) or {})) == ["cluster.open-cluster-management.io/resource-cleanup"]
    assert proceed(store).moved == 1
    remaining = "managedclusteraddons: 1 remaining; 1 wait for finalizers: example.com/pre-delete (1)."
    assert deleting(store) == ("False", "ResourceRemaining", remaining)
    assert proceed(store) == ClusterDeletionProgress(held=1)
    let_go(store, "a")
    assert proceed(store).gone
    assert cluster_of(store) is None
    assert all(record.revoked_at for record in store.transact(lambda tx: tx.certificates.of_cluster(EDGE)))


def test_lowest_priority_goes_first_and_is_waited_for(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.14: priorities none, invalid, valid; several priorities."""
    read = lambda notes: rules.priority({"metadata": {"annotations": notes}})  # noqa: E731 - one line
    texts = {"": 0, "7": 7, "100": 100, "101": 0, "-1": 0, "x": 0, "٣": 0, "9" * 5000: 0}
    check_results(read, [({}, 0), *(({rules.PRIORITY: text}, priority) for text, priority in texts.items())])
    newcomer.registered()
    add_addon(store, "last", "100")
    add_addon(store, "second", "7")
    add_addon(store, "first", finalizers=[HELD])
    delete(store)
    assert [proceed(store).moved, proceed(store).moved] == [1, 0]
    assert names(store, ADDONS) == ["first", "last", "second"]
    assert not doc.is_deleting(store.transact(addons.find, EDGE, AddOnName("second")).document)
    let_go(store, "first")
    assert proceed(store).moved == 1
    assert names(store, ADDONS) == ["last"]
    assert proceed(store).gone


def test_what_was_made_for_the_cluster_goes_after_the_addons(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.2: deleting; the namespace is kept."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    pending = newcomer.submit(newcomer.bootstrap(), request=newcomer.request())
    for name, labels in (("made", {"addon.open-cluster-management.io/name": "a"}), ("own", {})):
        document = {"metadata": {"name": name, "namespace": "edge", "labels": labels}}
        store.transact(objects.put, SERVICE_ACCOUNTS, document, None, OPERATOR)
    delete(store)
    proceed(store)
    assert names(store, SERVICE_ACCOUNTS) == ["made", "own"]
    let_go(store, "a")
    proceed(store)
    assert names(store, SERVICE_ACCOUNTS) == ["own"]
    assert pending not in names(store, REQUESTS)
    assert cluster_of(store) is None


def test_after_the_deadline_all_goes_at_once_with_advice(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.registered()
    add_addon(store, "held", finalizers=[HELD])
    add_addon(store, "later", "50")
    delete(store)
    proceed(store)
    clock.advance(HOUR - timedelta(seconds=1))
    assert not proceed(store).overdue
    assert names(store, ADDONS) == ["held", "later"]
    clock.advance(timedelta(seconds=1))
    assert proceed(store).overdue
    assert not proceed(store).overdue
    assert names(store, ADDONS) == ["held"]
    status, reason, message = deleting(store)
    assert (status, reason) == ("False", "DeletionOverdue")
    assert "hubctl delete cluster edge --force" in message


def force(store: InlineStore) -> None:
    def write(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        clusters.put(tx, doc.with_annotations(stored.document, {rules.FORCED: "true"}), stored, OPERATOR)

    store.transact(write)


def test_by_force_everything_goes_and_what_is_given_up_is_named(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    add_addon(store, "b")
    hold(store, "example.com/other")
    force(store)
    assert proceed(store) == ClusterDeletionProgress()
    assert names(store, ADDONS) == ["a", "b"]
    delete(store)
    done = proceed(store)
    assert done.gone
    assert done.orphaned == ("managedclusteraddons/a (example.com/pre-delete)", "the cluster itself (example.com/other)")
    assert names(store, ADDONS) == []
    assert cluster_of(store) is None


def test_objects_made_while_another_finalizer_holds_the_cluster_go_too(newcomer: Newcomer, store: InlineStore) -> None:
    """As a tool does that applies an add-on again and again: no later cluster of the name shall inherit it."""
    newcomer.registered()
    hold(store, "example.com/other")
    add_addon(store, "a")
    delete(store)
    proceed(store)
    document = present(cluster_of(store))
    assert list(doc.finalizers(document)) == ["example.com/other"]
    assert deleting(store)[:2] == ("True", "NoResource")
    assert rules.is_emptied(document)
    add_addon(store, "a")
    hold(store)
    assert not rules.is_emptied(cluster_of(store) or {})
    proceed(store)
    assert (cluster_of(store), names(store, ADDONS)) == (None, [])


async def test_what_is_held_is_looked_at_rarely_and_overdue_on_time(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock
) -> None:
    """A stale policy may delete hundreds of clusters whose agents will never answer."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    told: list[EventRecord] = []
    subject = Removal(store, HOUR, told.append)
    delete(store)
    began, looks = clock.now(), 0
    overdue_at: list[timedelta] = []
    while clock.now() - began < timedelta(days=1):
        pause = present(await subject.reconcile("edge"))
        looks += 1
        if len(told) > len(overdue_at):
            overdue_at.append(clock.now() - began)
        clock.advance(pause)
    assert looks < 24 * 60 + 100
    assert (overdue_at, [each.reason for each in told]) == ([HOUR], ["DeletionOverdue"])


async def test_next_priority_is_waited_for_from_its_mark_on(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    add_addon(store, "b", "9", finalizers=[HELD])
    subject = Removal(store, HOUR, lambda _told: None)
    delete(store)
    assert await subject.reconcile("edge") == timedelta()
    clock.advance(HOUR / 2)
    assert await subject.reconcile("edge") == timedelta(minutes=1)
    let_go(store, "a")
    assert await subject.reconcile("edge") == timedelta()
    assert await subject.reconcile("edge") == CLUSTER_CHECKS


@pytest.mark.parametrize("content", ["none", "goes", "held"])
async def test_certificates_end_by_the_deadline_whatever_finalizers_hold_a_deleted_cluster(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock, content: str
) -> None:
    def is_revoked() -> bool:
        return all(record.revoked_at for record in store.transact(lambda tx: tx.certificates.of_cluster(EDGE)) if record.agent)

    newcomer.registered()
    hold(store, "example.com/other")
    if content != "none":
        add_addon(store, "a", finalizers=[HELD] if content == "held" else [])
    told: list[EventRecord] = []
    subject = Removal(store, HOUR, told.append)
    delete(store)
    for _ in range(3):
        await subject.reconcile("edge")
    assert is_revoked() == (content != "held"), "what still is to be cleaned up has until the deadline"
    clock.advance(HOUR)
    for _ in range(3):
        await subject.reconcile("edge")
    assert is_revoked()
    assert [each.reason for each in told] == ["DeletionOverdue"]
    status, reason, message = deleting(store)
    assert (status, reason) == ("False", "DeletionOverdue")
    assert ("example.com/pre-delete" if content == "held" else "example.com/other") in message
