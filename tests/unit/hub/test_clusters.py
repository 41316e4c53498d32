"""ManagedClusters: joining, accepting, reporting, leaving."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain import duplicate
from hub.domain.approval_rule import of_flag
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import ADDONS, MANAGED_CLUSTERS, ChangeType, Key
from hub.domain.cluster import Joined, Joining, StatusReport
from hub.domain.credential import Bounds
from hub.domain.heartbeat import Beat
from hub.ports import Transaction, Written
from hub.services import addons, approving, clusters, heartbeats, leases
from machinery import conditions
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.errors import AlreadyExistsError, ConflictError, ForbiddenError, InvalidError, NotFoundError
from machinery.identity import AddOnName, ClusterName, SerialNumber
from tests.checks import check_refusals, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

REPORT = StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v1.31.2", node_count=3)


def document_of(store: InlineStore, name: str = "edge") -> dict[str, Any]:
    return dict(store.transact(clusters.find, ClusterName(name)).document)


def availability_of(store: InlineStore) -> str:
    found = rules.availability(document_of(store))
    return found.status if found else ""


def ensure(newcomer: Newcomer, **changed: Any) -> Joined:
    fields = {"name": newcomer.cluster, "cluster_uid": newcomer.uid, "agent": newcomer.agent}
    return newcomer.store.transact(clusters.ensure, Joining(**{**fields, **changed}), "agent")


def test_join_makes_a_cluster_once_and_acceptance_is_written_once(newcomer: Newcomer, store: InlineStore) -> None:
    credential = newcomer.bootstrap(uses=1).credential
    joined = ensure(newcomer, credential=credential)
    document = document_of(store)
    assert joined == Joined(created=True, accepted=False, uid=document["metadata"]["uid"])
    assert document["spec"] == {"hubAcceptsClient": False, "leaseDurationSeconds": 60}
    assert document["metadata"]["generation"] == 1
    assert doc.annotations(document) == {rules.CLUSTER_UID: "uid-1"}
    stale = store.transact(clusters.find, EDGE)
    newcomer.accept()
    assert document_of(store)["metadata"]["generation"] == 2
    revision = store.state.revision
    newcomer.accept()
    assert ensure(newcomer, credential=credential) == Joined(created=False, accepted=True, uid=joined.uid)
    assert ensure(newcomer) == Joined(created=False, accepted=True, uid=joined.uid)
    assert store.state.revision == revision
    with pytest.raises(ConflictError):
        store.transact(clusters.put, dict(stale.document), stale, OPERATOR)
    with pytest.raises(AlreadyExistsError):
        store.transact(clusters.put, {"metadata": {"name": "edge"}}, None, OPERATOR)
    newcomer.accept(accepted=False)
    assert not rules.is_accepted(document_of(store))


def test_hub_chooses_the_lease_duration_of_who_joins(newcomer: Newcomer, store: InlineStore) -> None:
    joining = Joining(EDGE, "uid-1", AGENT, credential=newcomer.bootstrap().credential)
    store.transact(lambda tx: clusters.ensure(tx, joining, "agent", lease_duration=timedelta(seconds=2)))
    assert document_of(store)["spec"]["leaseDurationSeconds"] == 2


def test_cluster_that_an_operator_entered_is_adopted_by_the_first_that_comes(newcomer: Newcomer, store: InlineStore) -> None:
    entered = {"metadata": {"name": "edge", "labels": {"env": "prod"}}, "spec": {"hubAcceptsClient": True}}
    store.transact(clusters.put, entered, None, OPERATOR)
    credential = newcomer.bootstrap().credential
    assert ensure(newcomer, credential=credential).accepted
    document = document_of(store)
    assert doc.annotations(document)[rules.CLUSTER_UID] == "uid-1"
    assert doc.labels(document) == {"env": "prod"}
    with pytest.raises(AlreadyExistsError):
        ensure(newcomer, credential=credential, cluster_uid="uid-2")


def test_second_cluster_of_the_same_name_is_refused_and_shown(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    credential = present(newcomer.bootstrap(uses=1).credential)
    impostor = Joining(EDGE, "uid-2", AGENT, credential=credential)
    with pytest.raises(AlreadyExistsError, match="belongs to another cluster"):
        store.transact(clusters.ensure, impostor, "agent")
    assert credential not in store.state.admissions, "a refused join spends no use"
    store.transact(clusters.note_duplicate, impostor, "hub")
    document = document_of(store)
    condition = present(conditions.find(doc.conditions(document), rules.DUPLICATED))
    assert "uid-2" in condition.message
    assert rules.is_accepted(document)
    assert doc.annotations(document)[rules.CLUSTER_UID] == "uid-1"
    stranger = newcomer.bootstrap(bounds=Bounds(patterns=("b-*",))).credential
    with pytest.raises(ForbiddenError):  # and not that the name is taken
        ensure(newcomer, credential=stranger, cluster_uid="uid-2")


def test_join_needs_a_valid_name_a_short_uid_and_a_known_credential(newcomer: Newcomer) -> None:
    credential = newcomer.bootstrap().credential
    with pytest.raises(InvalidError, match="253 characters"):
        ensure(newcomer, credential=credential, cluster_uid="u" * 254)
    names = ("Edge", "a.b", "", "a" * 64, "-a", "../a", "edge:agent")
    join = lambda name: ensure(newcomer, name=ClusterName(name), credential=credential)  # noqa: E731 - one line
    check_refusals(InvalidError, join, [(name, "cluster name") for name in names])
    with pytest.raises(ForbiddenError, match="not known"):
        ensure(newcomer, credential="nobody")
    with pytest.raises(NotFoundError, match="register again with a bootstrap kubeconfig"):
        ensure(newcomer)
    assert ensure(newcomer, credential=credential, cluster_uid="u" * 253).created


def test_used_up_credential_admits_no_further_name(newcomer: Newcomer, store: InlineStore) -> None:
    credential = newcomer.bootstrap(uses=2).credential
    for name in ("a", "b", "a"):
        ensure(newcomer, name=ClusterName(name), credential=credential)
    with pytest.raises(ForbiddenError, match="of 2, 0 spent and 2 held for others that wait"):
        ensure(newcomer, name=ClusterName("c"), credential=credential)
    with pytest.raises(NotFoundError):
        document_of(store, "c")


def test_approving_and_accepting_come_in_any_order(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    newcomer.issued(requester)
    assert newcomer.certificate().purpose is Purpose.AGENT
    newcomer.join(requester)
    newcomer.accept()
    assert rules.is_accepted(document_of(newcomer.store))


def test_rule_accepts_once_so_that_a_denial_by_hand_stands(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.join(newcomer.bootstrap())
    assert store.transact(approving.accept, EDGE, of_flag(("other-*",))) is None
    assert store.transact(approving.accept, EDGE, of_flag(("ed*",))) is not None
    document = document_of(store)
    assert rules.is_accepted(document)
    assert doc.annotations(document)[rules.ACCEPTED_ON] == "2026-01-01T00:00:00Z"
    newcomer.accept(accepted=False)
    assert store.transact(approving.accept, EDGE, of_flag(("ed*",))) is None
    assert store.transact(approving.accept, ClusterName("nobody"), of_flag(("*",))) is None


def test_report_is_taken_from_accepted_clusters_written_once_and_kept_beside_the_hubs(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock
) -> None:
    def report() -> object:
        return store.transact(clusters.report_status, EDGE, REPORT, "agent")

    with pytest.raises(NotFoundError):
        report()
    newcomer.join(newcomer.bootstrap())
    with pytest.raises(ForbiddenError, match="hubctl accept edge"):
        report()
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    report()
    assert document_of(store)["status"]["capacity"] == {"nodes": "3"}
    revision = store.state.revision
    clock.advance(timedelta(hours=1))
    stored = report()
    assert store.state.revision == revision
    assert getattr(stored, "revision", None) == revision
    newcomer.accept(accepted=False)
    document = document_of(store)
    assert {entry["type"] for entry in doc.conditions(document)} == {conditions.HUB_ACCEPTED, conditions.AVAILABLE}
    assert document["status"]["version"] == {"kubernetes": "v1.31.2"}


def _remove(tx: Transaction) -> Written:
    return clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR)


def test_removed_cluster_takes_its_beats_and_certificates_with_it(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(), available=True)]))
    assert store.transact(_remove).stored.key == Key("", "edge")
    assert store.state.log[-1].type is ChangeType.DELETED
    assert store.state.beats == {}
    revoked = {record.purpose: record.revoked_reason for record in store.state.certificates.values()}
    gone = "ClusterDeleted"
    assert revoked == {Purpose.BOOTSTRAP: None, Purpose.AGENT: gone, Purpose.RECOVERY: gone}


def test_cluster_with_finalizers_waits_for_them(newcomer: Newcomer, store: InlineStore) -> None:
    metadata = {"name": "edge", "finalizers": ["example.com/wait"]}
    store.transact(clusters.put, {"metadata": metadata}, None, OPERATOR)
    store.transact(_remove)
    document = document_of(store)
    assert document["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert document["metadata"]["generation"] == 2
    assert store.transact(approving.accept, EDGE, of_flag(("*",))) is None

    def let_go(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        clusters.put(tx, doc.with_metadata(stored.document, finalizers=None), stored, OPERATOR)

    store.transact(let_go)
    assert store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "edge"))) is None
    newcomer.join(newcomer.bootstrap())


# Add-ons and leases.


def _put_addon(tx: Transaction, /, **metadata: Any) -> Written:
    document = {"metadata": {"name": "work", "namespace": "edge", **metadata}}
    return addons.put(tx, document, tx.objects.get(ADDONS, Key("edge", "work")), OPERATOR)


def test_addon_report_sets_conditions_once(store: InlineStore, clock: ManualClock) -> None:
    def report(name: str, *told: Condition, cluster: ClusterName = EDGE) -> None:
        store.transact(addons.report, cluster, AddOnName(name), told, "agent")

    store.transact(_put_addon)
    condition = Condition("Available", "True", "ManagedClusterAddOnLeaseUpdated", "fine")
    report("work", condition)
    revision = store.state.revision
    clock.advance(timedelta(minutes=1))
    report("work", condition)
    with pytest.raises(NotFoundError):
        report("other")
    with pytest.raises(NotFoundError):
        report("work", cluster=ClusterName("other"))
    with pytest.raises(InvalidError):
        report("work", *(Condition(f"C{n}", "True", "R", "") for n in range(33)))
    assert store.state.revision == revision
    stored = store.transact(addons.find, EDGE, AddOnName("work"))
    assert stored.document["apiVersion"] == "addon.open-cluster-management.io/v1beta1"
    assert doc.conditions(stored.document) == [{**condition.to_document(), "lastTransitionTime": "2026-01-01T00:00:00Z"}]


def test_addon_with_finalizers_waits_for_them(store: InlineStore) -> None:
    store.transact(_put_addon, finalizers=["x"])

    def remove(tx: Transaction) -> Written:
        return addons.remove(tx, addons.find(tx, EDGE, AddOnName("work")), OPERATOR)

    assert doc.is_deleting(store.transact(remove).stored.document)
    store.transact(_put_addon, deletionTimestamp="2026-01-01T00:00:00Z")
    assert store.transact(lambda tx: tx.objects.get(ADDONS, Key("edge", "work"))) is None


def test_lease_has_no_generation(store: InlineStore) -> None:
    document = {"metadata": {"name": "l", "namespace": "edge"}, "spec": {"holderIdentity": "me"}}
    stored = store.transact(leases.put, document, None, OPERATOR).stored
    assert stored.document["kind"] == "Lease"
    assert "generation" not in stored.document["metadata"]
    store.transact(leases.remove, stored, OPERATOR)
    assert store.state.objects == {}


# Rebuilt clusters, and taints.


def test_a_rebuilt_cluster_takes_the_name_by_an_operators_word(newcomer: Newcomer, store: InlineStore) -> None:
    credential = newcomer.bootstrap().credential
    ensure(newcomer, credential=credential)
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(lambda tx: tx.certificates.add(certificate(tx)))
    store.transact(lambda tx: tx.heartbeats.claim(EDGE, 7))
    rebuilt = Joining(EDGE, "uid-2", AGENT, credential=credential)
    store.transact(clusters.note_duplicate, rebuilt, "hub")
    unnamed = store.transact(clusters.find, EDGE)
    store.transact(clusters.put, doc.with_metadata(unnamed.document, annotations=None), unnamed, OPERATOR)
    assert [each.revoked_at for each in store.state.certificates.values() if each.cluster == EDGE] == [None]
    stored = store.transact(clusters.find, EDGE)
    store.transact(clusters.put, doc.with_annotations(stored.document, doc.annotations(unnamed.document)), stored, OPERATOR)
    before = store.transact(clusters.find, EDGE)
    assert doc.annotations(before.document)[duplicate.WANTED_BY] == "uid-2"
    named = doc.with_annotations(before.document, {rules.CLUSTER_UID: "uid-2"})
    store.transact(clusters.put, named, before, OPERATOR)
    after = store.transact(clusters.find, EDGE)
    assert (after.uid, rules.is_accepted(after.document)) == (before.uid, True)
    assert doc.annotations(after.document) == {rules.CLUSTER_UID: "uid-2"}
    assert duplicate.reason(after.document) == ""
    assert [each.revoked_reason for each in store.state.certificates.values() if each.cluster == EDGE] == ["ClusterRebuilt"]
    assert EDGE not in store.state.beats
    assert store.transact(clusters.ensure, rebuilt, "agent").accepted


def certificate(tx: Transaction) -> CertificateRecord:
    """One that the cluster's agent holds."""
    serial, ends = SerialNumber(2**158 + 7), tx.now + timedelta(days=1)
    held = CertificateRecord(serial, Purpose.AGENT, "u", (), tx.now, ends, "k", tx.now)
    return replace(held, cluster=EDGE, agent=AGENT)


def test_a_cluster_with_two_taints_of_one_key_goes_on(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "test")
    store.transact(clusters.report_status, EDGE, REPORT, "agent")
    started = clock.now()
    for effect in ("NoSelect", "PreferNoSelect"):  # one after the other, as an operator adds them
        clock.advance(timedelta(minutes=1))
        stored = store.transact(clusters.find, EDGE)
        taints = [*doc.sequence(stored.document, "spec", "taints"), {"key": "a", "effect": effect}]
        store.transact(clusters.put, doc.with_spec(stored.document, taints=taints), stored, OPERATOR)
    tainted = document_of(store)["spec"]["taints"]
    clock.advance(timedelta(minutes=10))
    store.transact(lambda tx: heartbeats.expire(tx, EDGE, window=timedelta(), since=started, actor="test"))
    assert availability_of(store) == "Unknown"
    store.transact(heartbeats.revive, Beat(EDGE, timedelta(), available=True), "test")
    assert availability_of(store) == "True"
    for accepted in (False, True):
        store.transact(clusters.set_accepted, EDGE, accepted, OPERATOR)
    store.transact(clusters.report_status, EDGE, replace(REPORT, node_count=4), "agent")
    assert document_of(store)["spec"]["taints"] == tainted
    assert len({entry["timeAdded"] for entry in tainted}) == 2
