"""The end of clusters and namespaces: what goes first, what is waited for, what is given up; and which namespaces there are."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest

from hub.api import namespaces as namespace_rules
from hub.api.bootstrapcredentials import CredentialBounds, CredentialUse
from hub.api.certificatesigningrequests import Requester
from hub.api.events import EventRecord
from hub.api.managedclusters import removal as rules
from hub.api.meta import change, document as doc
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.controllers.clusters.deletion import CLUSTER_CHECKS, NAMESPACE_CHECKS, Namespaces, Removal
from hub.ports import Transaction
from hub.registry import deletion as removal, deletion as termination, namespaces
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.deletion import PORTION, ClusterDeletionProgress, NamespaceDeletionProgress
from hub.registry.generic import objects
from hub.registry.kinds import WRITE_PATHS
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import CLUSTER_LABEL, AddOnName, AgentId, ClusterName, CredentialId, cluster_name
from machinery.meta import conditions
from machinery.meta.objects import Key, Query, StoredObject
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusals, check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer, change_cluster, fresh_newcomer, set_accepted

HOUR = timedelta(hours=1)
HELD = "example.com/pre-delete"
FAR = ClusterName("edge-2")
NAMESPACE_HELD = "example.com/wait"


def add_addon(store: InlineStore, name: str, priority: str | None = None, finalizers: Iterable[str] = ()) -> None:
    notes = {} if priority is None else {rules.PRIORITY: priority}
    metadata = {"name": name, "namespace": "edge", "annotations": notes, "finalizers": list(finalizers)}
    store.transact(addons.put, {"metadata": metadata}, None, OPERATOR)


def delete(store: InlineStore) -> None:
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))


def proceed(store: InlineStore, deadline: timedelta = HOUR) -> ClusterDeletionProgress:
    return store.transact(removal.delete_cluster, "edge", deadline, "hub")


def cluster_of(store: InlineStore) -> dict[str, Any] | None:
    stored = store.transact(lambda tx: tx.objects.get(change.MANAGED_CLUSTERS, Key("", "edge")))
    return dict(stored.document) if stored else None


def names(store: InlineStore, kind: change.Kind) -> list[str]:
    return [stored.key.name for stored in store.transact(lambda tx: tx.objects.find(kind, Query())).items]


def let_go(store: InlineStore, addon: str) -> None:
    stored = store.transact(addons.find, EDGE, AddOnName(addon))
    store.transact(addons.put, doc.with_metadata(stored.document, finalizers=None), stored, OPERATOR)


def deleting(store: InlineStore) -> tuple[str, str, str]:
    condition = conditions.find(doc.conditions(present(cluster_of(store))), "Deleting")
    return (condition.status, condition.reason, condition.message) if condition else ("", "", "")


def hold(store: InlineStore, *finalizers: str) -> None:
    change_cluster(store, lambda old: doc.with_metadata(old, finalizers=list(finalizers) or None))


async def test_only_a_deleted_cluster_loses_anything_and_addons_go_first(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.14: not deleting; deleting with resources. Our finalizer comes with the deletion, so no write comes before it."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    assert proceed(store) == ClusterDeletionProgress()
    assert await Removal(store, HOUR, lambda _told: None, ClockGuard(ManualClock())).reconcile("edge") is None
    assert (names(store, change.ADDONS), doc.finalizers(cluster_of(store) or {})) == (["a"], ())
    delete(store)
    assert list(doc.finalizers(cluster_of(store) or {})) == ["cluster.open-cluster-management.io/resource-cleanup"]
    assert proceed(store).moved == 1
    remaining = "managedclusteraddons: 1 remaining; 1 wait for finalizers: example.com/pre-delete (1)."
    assert (deleting(store), proceed(store)) == (("False", "ResourceRemaining", remaining), ClusterDeletionProgress(held=1))
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
    assert ([proceed(store).moved, proceed(store).moved], names(store, change.ADDONS)) == ([1, 0], ["first", "last", "second"])
    assert not doc.is_deleting(store.transact(addons.find, EDGE, AddOnName("second")).document)
    let_go(store, "first")
    assert (proceed(store).moved, names(store, change.ADDONS)) == (1, ["last"])
    assert proceed(store).gone


def test_what_was_made_for_the_cluster_goes_after_the_addons(newcomer: Newcomer, store: InlineStore) -> None:
    """OCM 5.2: deleting; the namespace is kept."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    pending = newcomer.submit(newcomer.bootstrap(), request=newcomer.request())
    for name, labels in (("made", {"addon.open-cluster-management.io/name": "a"}), ("own", {})):
        document = {"metadata": {"name": name, "namespace": "edge", "labels": labels}}
        store.transact(objects.put, change.SERVICE_ACCOUNTS, document, None, OPERATOR)
    store.transact(objects.put, change.ADDON_SCORES, {"metadata": {"name": "cpu", "namespace": "edge"}}, None, OPERATOR)
    delete(store)
    proceed(store)
    assert (names(store, change.SERVICE_ACCOUNTS), names(store, change.ADDON_SCORES)) == (["made", "own"], ["cpu"])
    let_go(store, "a")
    proceed(store)
    assert (names(store, change.SERVICE_ACCOUNTS), names(store, change.ADDON_SCORES)) == (["own"], [])
    assert pending not in names(store, change.REQUESTS)
    assert cluster_of(store) is None


def test_after_the_deadline_all_goes_at_once_with_advice(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.registered()
    forged = conditions.Condition("Mine", "True", "DeletionOverdue", "")
    change_cluster(store, lambda old: doc.with_status_condition(old, forged, clock.now()))
    add_addon(store, "held", finalizers=[HELD])
    add_addon(store, "later", "50")
    delete(store)
    proceed(store)
    clock.advance(HOUR - timedelta(seconds=1))
    assert (proceed(store).overdue, names(store, change.ADDONS)) == (False, ["held", "later"])
    clock.advance(timedelta(seconds=1))
    assert proceed(store).overdue
    assert (proceed(store).overdue, names(store, change.ADDONS)) == (False, ["held"])
    status, reason, message = deleting(store)
    assert (status, reason) == ("False", "DeletionOverdue")
    assert "hubctl delete cluster edge --force" in message


async def test_no_jump_of_the_clock_or_stop_ends_a_deletion(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.registered()
    add_addon(store, "first", finalizers=[HELD])
    add_addon(store, "second", "50")
    delete(store)
    subject = Removal(store, HOUR, lambda _told: None, ClockGuard(clock))

    async def is_orderly() -> bool:
        await subject.reconcile("edge")
        agents = [each for each in store.transact(lambda tx: tx.certificates.of_cluster(EDGE)) if each.agent]
        return "second" in names(store, change.ADDONS) and not any(each.revoked_at for each in agents)

    assert await is_orderly()
    clock.advance(SETTLED)
    for jump in (timedelta(days=365), -timedelta(days=365)):
        clock.set_forward(jump)
        assert await is_orderly()
    clock.advance(HOUR)
    subject = Removal(store, HOUR, lambda _told: None, ClockGuard(clock))  # the hub was stopped for an hour
    assert await is_orderly()
    clock.advance(SETTLED)
    assert not await is_orderly()


def test_by_force_everything_goes_and_what_is_given_up_is_named(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    add_addon(store, "b")
    hold(store, "example.com/other")
    change_cluster(store, lambda old: doc.with_annotations(old, {rules.FORCED: "true"}))
    assert (proceed(store), names(store, change.ADDONS)) == (ClusterDeletionProgress(), ["a", "b"])
    delete(store)
    done = proceed(store)
    assert done.gone
    assert done.orphaned == ("managedclusteraddons/a (example.com/pre-delete)", "the cluster itself (example.com/other)")
    assert (names(store, change.ADDONS), cluster_of(store)) == ([], None)


def test_objects_made_while_another_finalizer_holds_the_cluster_go_too(newcomer: Newcomer, store: InlineStore) -> None:
    """As a tool does that applies an add-on again and again: no later cluster of the name shall inherit it."""
    newcomer.registered()
    hold(store, "example.com/other")
    add_addon(store, "a")
    delete(store)
    proceed(store)
    document = present(cluster_of(store))
    assert (list(doc.finalizers(document)), deleting(store)[:2]) == (["example.com/other"], ("True", "NoResource"))
    assert rules.is_emptied(document)
    add_addon(store, "a")
    hold(store)
    assert not rules.is_emptied(cluster_of(store) or {})
    proceed(store)
    assert (cluster_of(store), names(store, change.ADDONS)) == (None, [])


def test_content_keeps_a_cluster_whose_last_finalizer_is_removed_at_the_door(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    hold(store, "example.com/other")
    delete(store)
    proceed(store)
    add_addon(store, "a")
    store.transact(lambda tx: WRITE_PATHS[change.MANAGED_CLUSTERS].remove(tx, clusters.find(tx, EDGE), Requester(OPERATOR)))
    assert list(doc.finalizers(present(cluster_of(store)))) == [rules.FINALIZER]
    assert proceed(store).gone
    assert (cluster_of(store), names(store, change.ADDONS)) == (None, [])


def delete_in(way: str, newcomer: Newcomer, made_meanwhile: Callable[[], object]) -> None:
    """Deletes a cluster as an operator does at the HTTPS door, or in a `way` that keeps the credentials."""
    store, path = newcomer.store, WRITE_PATHS[change.MANAGED_CLUSTERS]

    def by_operator(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        if doc.finalizers(stored.document) and not doc.is_deleting(stored.document):
            path.put(tx, doc.deleting(stored.document, tx.now), stored, Requester(OPERATOR))
        else:
            path.remove(tx, stored, Requester(OPERATOR))

    prepare: dict[str, Callable[[], None]] = {
        "addon": lambda: add_addon(store, "a", finalizers=[HELD]),
        "finalizer": lambda: hold(store, HELD),
        "annotation": lambda: change_cluster(store, lambda old: doc.with_annotations(old, {rules.KEEP_CREDENTIALS: "true"})),
    }
    begin: dict[str, Callable[[], object]] = {
        "leave": lambda: store.transact(removal.leave, EDGE, newcomer.uid, "agent"),
        "silence": lambda: delete(store),
    }
    prepare.get(way, lambda: None)()
    begin.get(way, lambda: store.transact(by_operator))()
    made_meanwhile()
    if way == "addon":
        proceed(store)
        let_go(store, "a")
    if way in ("addon", "finalizer"):
        proceed(store)
    if way == "finalizer":
        store.transact(by_operator)
    assert cluster_of(store) is None


def test_an_operators_deletion_revokes_the_credentials_of_the_name_when_it_starts_and_no_others() -> None:
    def revoked_and_left(way: str) -> tuple[list[str], set[str]]:
        newcomer, made = fresh_newcomer(), dict[str | None, str]()
        store, globs = newcomer.store, CredentialBounds(patterns=("edge*",))

        def make(name: str, **terms: Any) -> None:
            made[newcomer.bootstrap(**terms).credential] = name

        made[newcomer.registered().credential] = "any"
        make("far", cluster=FAR)
        make("own", cluster=EDGE)
        make("glob", uses=1, bounds=globs)
        make("spent", uses=1, bounds=globs)
        spent = CredentialId(str(list(made)[-1]))
        store.transact(lambda tx: credential_uses.spend(tx, CredentialUse(spent, FAR, AgentId("a"), "r", tx.now, tx.now)))
        delete_in(way, newcomer, lambda: make("later", cluster=EDGE))
        revoked = [each for each in store.transact(lambda tx: list(tx.credentials.all())) if each.revoked_at]
        assert ({each.revoked_by for each in revoked} <= {OPERATOR}, len(names(store, change.REVOCATIONS))) == (
            True,
            len(revoked),
        )
        return [made[each.id] for each in revoked], {made[each.id] for each in store.transact(credential_uses.left_for, EDGE)}

    ends, left = ("nothing", "addon", "finalizer"), {"any", "glob", "later"}
    keeps = [(way, (list[str](), {*left, "own"})) for way in ("annotation", "leave", "silence")]
    check_results(revoked_and_left, [*((way, (["own"], left)) for way in ends), *keeps])


async def test_what_is_held_is_looked_at_rarely_and_on_time(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    """A stale policy may delete hundreds of clusters whose agents will never answer."""
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    events: list[EventRecord] = []
    subject = Removal(store, HOUR, events.append, ClockGuard(clock, timedelta()))
    delete(store)
    began, looks = clock.now(), 0
    overdue_at: list[timedelta] = []
    while clock.now() - began < timedelta(days=1):
        pause = present(await subject.reconcile("edge"))
        looks += 1
        if len(events) > len(overdue_at):
            overdue_at.append(clock.now() - began)
        clock.advance(pause)
    assert looks < 24 * 60 + 100
    assert (overdue_at, [each.reason for each in events]) == ([HOUR], ["DeletionOverdue"])


async def test_next_priority_is_waited_for_from_its_mark_on(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.registered()
    add_addon(store, "a", finalizers=[HELD])
    add_addon(store, "b", "9", finalizers=[HELD])
    subject = Removal(store, HOUR, lambda _told: None, ClockGuard(clock, timedelta()))
    delete(store)
    assert await subject.reconcile("edge") == timedelta()
    clock.advance(HOUR / 2)
    assert await subject.reconcile("edge") == timedelta(minutes=1)
    let_go(store, "a")
    assert (await subject.reconcile("edge"), await subject.reconcile("edge")) == (timedelta(), CLUSTER_CHECKS)


@pytest.mark.parametrize("content", ["none", "goes", "held"])
async def test_certificates_end_by_the_deadline(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock, content: str
) -> None:
    def is_revoked() -> bool:
        return all(record.revoked_at for record in store.transact(lambda tx: tx.certificates.of_cluster(EDGE)) if record.agent)

    newcomer.registered()
    hold(store, "example.com/other")
    if content != "none":
        add_addon(store, "a", finalizers=[HELD] if content == "held" else [])
    events: list[EventRecord] = []
    subject = Removal(store, HOUR, events.append, ClockGuard(clock, timedelta()))
    delete(store)
    for _ in range(3):
        await subject.reconcile("edge")
    assert is_revoked() == (content != "held"), "what still is to be cleaned up has until the deadline"
    clock.advance(HOUR)
    for _ in range(3):
        await subject.reconcile("edge")
    assert is_revoked()
    assert [each.reason for each in events] == ["DeletionOverdue"]
    status, reason, message = deleting(store)
    assert (status, reason) == ("False", "DeletionOverdue")
    assert ("example.com/pre-delete" if content == "held" else "example.com/other") in message


def make(store: InlineStore, name: str = "east") -> None:
    store.transact(lambda tx: namespaces.put(tx, namespace_rules.namespace(name), None, "admin"))


def found(store: InlineStore, name: str = "east") -> StoredObject | None:
    return store.transact(namespaces.get, name)


def namespace_delete(store: InlineStore, name: str = "east") -> None:
    store.transact(lambda tx: namespaces.remove(tx, present(namespaces.get(tx, name)), "admin"))


def fill(store: InlineStore, count: int, *finalizers: str) -> None:
    def use_case(tx: Transaction) -> None:
        for number in range(count):
            metadata: dict[str, Any] = {"name": f"c{number:04}", "namespace": "east", "finalizers": list(finalizers)}
            objects.put(tx, change.CONFIG_MAPS, {"metadata": metadata}, None, "admin")

    store.transact(use_case)


def namespace_proceed(store: InlineStore) -> NamespaceDeletionProgress:
    return store.transact(termination.delete_namespace, "east", "controller")


def content(store: InlineStore) -> tuple[StoredObject, ...]:
    return store.transact(lambda tx: tx.objects.find(change.CONFIG_MAPS, Query(namespace="east"))).items


def test_standing_namespaces_are_made_once_and_never_deleted(store: InlineStore) -> None:
    store.transact(namespaces.ensure_predefined)
    revision = store.state.revision
    names = [stored.key.name for stored in store.transact(lambda tx: tx.objects.find(change.NAMESPACES, Query())).items]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system", "open-cluster-management-hub"]
    store.transact(namespaces.ensure_predefined)
    assert store.state.revision == revision

    def mark(name: str) -> None:
        document = {**namespace_rules.namespace(name), "metadata": {"name": name, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        store.transact(lambda tx: namespaces.put(tx, document, namespaces.get(tx, name), "admin"))

    for act in (lambda name: namespace_delete(store, name), mark):
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
    namespace_delete(store, newcomer.cluster)
    newcomer.join(newcomer.bootstrap())
    check_refusal(ForbiddenError, newcomer.accept, match="is terminating")


def test_a_deleted_namespace_goes_when_it_is_empty_and_not_before(store: InlineStore) -> None:
    make(store)
    fill(store, PORTION + 1)
    assert (namespace_proceed(store), len(content(store))) == (NamespaceDeletionProgress(), PORTION + 1)
    namespace_delete(store)
    assert present(found(store)).document["status"]["phase"] == "Terminating"
    assert [namespace_proceed(store).removed, namespace_proceed(store).removed] == [PORTION, 1]
    assert (content(store), found(store) is None, namespace_proceed(store)) == ((), False, NamespaceDeletionProgress())
    assert found(store) is None


def test_finalizers_of_the_content_hold_the_namespace_and_it_says_so(store: InlineStore) -> None:
    make(store)
    fill(store, 2, NAMESPACE_HELD)
    namespace_delete(store)
    assert [namespace_proceed(store), namespace_proceed(store)] == [
        NamespaceDeletionProgress(removed=2),
        NamespaceDeletionProgress(held=2),
    ]
    by_type = {entry["type"]: (entry["status"], entry["message"]) for entry in doc.conditions(present(found(store)).document)}
    assert by_type["NamespaceContentRemaining"] == ("True", "Some resources are remaining: configmaps has 2 resource instances")
    assert NAMESPACE_HELD in by_type["NamespaceFinalizersRemaining"][1]
    revision = store.state.revision
    assert namespace_proceed(store) == NamespaceDeletionProgress(held=2)
    assert store.state.revision == revision, "nothing new is written twice"


def test_a_namespaces_own_finalizer_holds_it_after_its_content_is_gone(store: InlineStore) -> None:
    make(store)
    stored = present(found(store))
    store.transact(namespaces.put, doc.with_metadata(stored.document, finalizers=[NAMESPACE_HELD]), stored, "admin")
    namespace_delete(store)
    assert namespace_proceed(store) == NamespaceDeletionProgress()
    stored = present(found(store))
    store.transact(namespaces.put, doc.with_metadata(stored.document, finalizers=None), stored, "admin")
    assert found(store) is None


async def settle(subject: Namespaces) -> None:
    for _ in range(10):
        if await subject.reconcile(EDGE) is None:
            return
    raise AssertionError(EDGE)


async def test_lost_namespace_is_made_and_known_ones_wait(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.join(newcomer.bootstrap())
    await settle(Namespaces(store))
    assert found(store, EDGE) is None
    newcomer.accept()
    store.transact(lambda tx: tx.objects.delete(change.NAMESPACES, present(namespaces.get(tx, EDGE)), "an earlier release"))
    await settle(Namespaces(store))
    assert found(store, EDGE) is not None
    cluster = store.transact(clusters.find, EDGE).document
    subject, namespace = Namespaces(store), namespace_rules.of_cluster(EDGE)
    assert subject.wanted_of(cluster)
    assert (subject.wanted(namespace), subject.wanted_of(cluster)) == (False, False)
    assert subject.wanted(doc.deleting(namespace, clock.now()))
    assert subject.wanted_of(cluster)
    assert not subject.wanted(namespace_rules.namespace("team")), "a namespace of no cluster"


async def test_a_namespace_that_was_there_before_or_lost_its_label_is_labelled(newcomer: Newcomer, store: InlineStore) -> None:
    store.transact(lambda tx: namespaces.put(tx, namespace_rules.namespace(EDGE, {"team": "a"}), None, "admin"))
    newcomer.accepted()
    labelled = present(found(store, EDGE))
    assert doc.labels(labelled.document) == {"team": "a", namespace_rules.NAME_LABEL: EDGE, CLUSTER_LABEL: EDGE}
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
    fill(store, 1, NAMESPACE_HELD)
    namespace_delete(store)
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
        store.transact(lambda tx: objects.put(tx, change.SERVICE_ACCOUNTS, document, None, "admin"))

    def cluster(name: str) -> None:
        store.transact(clusters.put, {"metadata": {"name": name}}, None, "admin")

    for name in ("open-cluster-management", "open-cluster-management-agent", "default", "managed-clusters"):
        check_refusal(InvalidError, cluster, name, match="reserved for the hub")
    make(store)
    cluster("east")
    account("east")
    make(store, "west")
    account("west")
    check_refusal(ForbiddenError, cluster, "west", match="belongs to no cluster")
    with pytest.raises(ForbiddenError, match=r"label the namespace with .*cluster-name=east"):
        store.transact(set_accepted, cluster_name("east"), True, "admin")  # noqa: FBT003 - the field's value
    stored = present(found(store))
    store.transact(lambda tx: namespaces.put(tx, namespace_rules.labelled(stored.document), stored, "admin"))
    store.transact(set_accepted, cluster_name("east"), True, "admin")  # noqa: FBT003 - the field's value
