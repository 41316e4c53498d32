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
from hub.services import addons, approving, clusters, credentials, heartbeats, leases
from machinery import conditions
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    MusterError,
    NotFoundError,
)
from machinery.identity import AddOnName, ClusterName, SerialNumber
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

REPORT = StatusReport(conditions=(rules.AVAILABLE,), kubernetes_version="v1.31.2", node_count=3)


def document_of(store: MemoryStore, name: str = "edge") -> dict[str, Any]:
    return dict(store.transact(clusters.find, ClusterName(name)).document)


def availability_of(store: MemoryStore) -> str:
    found = rules.availability(document_of(store))
    return found.status if found else ""


def ensure(newcomer: Newcomer, **changed: Any) -> Joined:
    fields = {"name": newcomer.cluster, "cluster_uid": newcomer.uid, "agent": newcomer.agent}
    return newcomer.store.transact(clusters.ensure, Joining(**{**fields, **changed}), "agent")


def test_join_makes_a_cluster_that_is_not_accepted(newcomer: Newcomer, store: MemoryStore) -> None:
    joined = ensure(newcomer, credential=newcomer.bootstrap().credential)
    document = document_of(store)
    assert joined == Joined(created=True, accepted=False, uid=document["metadata"]["uid"])
    assert document["spec"] == {"hubAcceptsClient": False, "leaseDurationSeconds": 60}
    assert document["metadata"]["generation"] == 1
    assert doc.annotations(document) == {rules.CLUSTER_UID: "uid-1"}


def test_join_again_finds_it_and_writes_nothing(newcomer: Newcomer, store: MemoryStore) -> None:
    credential = newcomer.bootstrap(uses=1).credential
    first = ensure(newcomer, credential=credential)
    newcomer.accept()
    revision = store.state.revision
    assert ensure(newcomer, credential=credential) == Joined(created=False, accepted=True, uid=first.uid)
    assert ensure(newcomer) == Joined(created=False, accepted=True, uid=first.uid)
    assert store.state.revision == revision


def test_hub_chooses_the_lease_duration_of_who_joins(newcomer: Newcomer, store: MemoryStore) -> None:
    joining = Joining(EDGE, "uid-1", AGENT, credential=newcomer.bootstrap().credential)
    store.transact(lambda tx: clusters.ensure(tx, joining, "agent", lease_duration=timedelta(seconds=2)))
    assert document_of(store)["spec"]["leaseDurationSeconds"] == 2


def test_cluster_that_an_operator_entered_is_adopted_by_the_first_that_comes(newcomer: Newcomer, store: MemoryStore) -> None:
    entered = {"metadata": {"name": "edge", "labels": {"env": "prod"}}, "spec": {"hubAcceptsClient": True}}
    store.transact(clusters.put, entered, None, OPERATOR)
    credential = newcomer.bootstrap().credential
    assert ensure(newcomer, credential=credential).accepted
    document = document_of(store)
    assert doc.annotations(document)[rules.CLUSTER_UID] == "uid-1"
    assert doc.labels(document) == {"env": "prod"}
    with pytest.raises(AlreadyExistsError):
        ensure(newcomer, credential=credential, cluster_uid="uid-2")


def test_second_cluster_of_the_same_name_is_noticed_not_merged(newcomer: Newcomer, store: MemoryStore) -> None:
    credential = newcomer.bootstrap().credential
    ensure(newcomer, credential=credential)
    newcomer.accept()
    impostor = Joining(EDGE, "uid-2", AGENT, credential=credential)
    with pytest.raises(AlreadyExistsError, match="belongs to another cluster"):
        store.transact(clusters.ensure, impostor, "agent")
    store.transact(clusters.note_duplicate, impostor, "hub")
    document = document_of(store)
    condition = conditions.find(doc.conditions(document), rules.DUPLICATED)
    assert condition is not None
    assert "uid-2" in condition.message
    assert rules.is_accepted(document)
    assert doc.annotations(document)[rules.CLUSTER_UID] == "uid-1"


def test_whose_credential_is_for_other_names_is_refused_and_says_nothing_of_the_cluster_that_has_this_one(
    newcomer: Newcomer,
) -> None:
    ensure(newcomer, credential=newcomer.bootstrap().credential)
    stranger = newcomer.bootstrap(bounds=Bounds(patterns=("b-*",))).credential
    with pytest.raises(ForbiddenError):
        ensure(newcomer, credential=stranger, cluster_uid="uid-2")


def test_a_uid_is_no_longer_than_what_people_can_be_shown(newcomer: Newcomer) -> None:
    credential = newcomer.bootstrap().credential
    with pytest.raises(InvalidError, match="253 characters"):
        ensure(newcomer, credential=credential, cluster_uid="u" * 254)
    assert ensure(newcomer, credential=credential, cluster_uid="u" * 253).created


@pytest.mark.parametrize("name", ["Edge", "a.b", "", "a" * 64, "-a", "../a", "edge:agent"])
def test_invalid_name_cannot_join(newcomer: Newcomer, name: str) -> None:
    with pytest.raises(InvalidError, match="cluster name"):
        ensure(newcomer, name=ClusterName(name), credential=newcomer.bootstrap().credential)


def test_used_up_credential_admits_no_further_name(newcomer: Newcomer, store: MemoryStore) -> None:
    credential = newcomer.bootstrap(uses=2).credential
    for name in ("a", "b", "a"):
        ensure(newcomer, name=ClusterName(name), credential=credential)
    with pytest.raises(ForbiddenError, match="of 2, 0 spent and 2 held for others that wait"):
        ensure(newcomer, name=ClusterName("c"), credential=credential)
    with pytest.raises(NotFoundError):
        document_of(store, "c")


def test_refused_join_spends_no_use(newcomer: Newcomer, store: MemoryStore) -> None:
    ensure(newcomer, credential=newcomer.bootstrap().credential)
    credential = newcomer.bootstrap(uses=1).credential
    assert credential is not None
    with pytest.raises(AlreadyExistsError):
        ensure(newcomer, cluster_uid="uid-2", credential=credential)
    assert credential not in store.state.admissions


def test_unknown_credential_admits_nobody(newcomer: Newcomer) -> None:
    with pytest.raises(ForbiddenError, match="not known"):
        ensure(newcomer, credential="nobody")


def test_forgotten_cluster_does_not_come_back_with_its_own_certificate(newcomer: Newcomer) -> None:
    with pytest.raises(NotFoundError, match="register again with a bootstrap kubeconfig"):
        ensure(newcomer)


def test_acceptance_is_written_once_and_can_be_taken_back(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    assert document_of(store)["metadata"]["generation"] == 2
    revision = store.state.revision
    newcomer.accept()
    assert store.state.revision == revision
    newcomer.accept(accepted=False)
    assert not rules.is_accepted(document_of(store))


def test_approving_and_accepting_come_in_any_order(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.certificate().purpose is Purpose.AGENT
    newcomer.join(requester)
    newcomer.accept()
    assert rules.is_accepted(document_of(newcomer.store))


def test_rule_accepts_once_so_that_a_denial_by_hand_stands(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    assert store.transact(approving.accept, EDGE, of_flag(("other-*",))) is None
    assert store.transact(approving.accept, EDGE, of_flag(("ed*",))) is not None
    document = document_of(store)
    assert rules.is_accepted(document)
    assert doc.annotations(document)[rules.ACCEPTED_ON] == "2026-01-01T00:00:00Z"
    newcomer.accept(accepted=False)
    assert store.transact(approving.accept, EDGE, of_flag(("ed*",))) is None
    assert store.transact(approving.accept, ClusterName("nobody"), of_flag(("*",))) is None


def test_report_is_taken_from_accepted_clusters_only(newcomer: Newcomer, store: MemoryStore) -> None:
    with pytest.raises(NotFoundError):
        store.transact(clusters.report_status, EDGE, REPORT, "agent")
    newcomer.join(newcomer.bootstrap())
    with pytest.raises(ForbiddenError, match="hubctl accept edge"):
        store.transact(clusters.report_status, EDGE, REPORT, "agent")
    newcomer.accept()
    store.transact(clusters.report_status, EDGE, REPORT, "agent")
    assert document_of(store)["status"]["capacity"] == {"nodes": "3"}


def test_same_report_again_writes_nothing(newcomer: Newcomer, store: MemoryStore, clock: ManualClock) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.report_status, EDGE, REPORT, "agent")
    revision = store.state.revision
    clock.advance(timedelta(hours=1))
    stored = store.transact(clusters.report_status, EDGE, REPORT, "agent")
    assert store.state.revision == revision
    assert getattr(stored, "revision", None) == revision


def test_report_and_operators_change_do_not_overwrite_one_another(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, REPORT, "agent")
    newcomer.accept(accepted=False)
    document = document_of(store)
    assert {entry["type"] for entry in doc.conditions(document)} == {conditions.HUB_ACCEPTED, conditions.AVAILABLE}
    assert document["status"]["version"] == {"kubernetes": "v1.31.2"}


def test_stale_writer_is_refused(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    stale = store.transact(clusters.find, EDGE)
    newcomer.accept()
    with pytest.raises(ConflictError):
        store.transact(clusters.put, dict(stale.document), stale, OPERATOR)


def _remove(tx: Transaction) -> Written:
    return clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR)


def test_removed_cluster_takes_its_beats_and_certificates_with_it(newcomer: Newcomer, store: MemoryStore) -> None:
    requester = newcomer.bootstrap(cluster=EDGE)
    newcomer.join(requester)
    newcomer.accept()
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.issue(name)
    store.transact(lambda tx: tx.heartbeats.store([Beat(EDGE, timedelta(), available=True)]))
    assert store.transact(_remove).stored.key == Key("", "edge")
    assert store.state.log[-1].type is ChangeType.DELETED
    assert store.state.beats == {}
    revoked = {record.purpose: record.revoked_reason for record in store.state.certificates.values()}
    assert revoked == {
        Purpose.BOOTSTRAP: None,
        Purpose.AGENT: "ClusterDeleted",
        Purpose.RECOVERY: "ClusterDeleted",
    }


def test_cluster_with_finalizers_waits_for_them(newcomer: Newcomer, store: MemoryStore) -> None:
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


def test_taken_name_is_refused(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    with pytest.raises(AlreadyExistsError):
        store.transact(clusters.put, {"metadata": {"name": "edge"}}, None, OPERATOR)


# Add-ons and leases.


def _put_addon(tx: Transaction, /, **metadata: Any) -> Written:
    document = {"metadata": {"name": "work", "namespace": "edge", **metadata}}
    return addons.put(tx, document, tx.objects.get(ADDONS, Key("edge", "work")), OPERATOR)


def test_addon_report_sets_conditions_once(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(_put_addon)
    condition = Condition("Available", "True", "ManagedClusterAddOnLeaseUpdated", "fine")
    store.transact(addons.report, EDGE, AddOnName("work"), [condition], "agent")
    revision = store.state.revision
    clock.advance(timedelta(minutes=1))
    store.transact(addons.report, EDGE, AddOnName("work"), [condition], "agent")
    assert store.state.revision == revision
    stored = store.transact(addons.find, EDGE, AddOnName("work"))
    assert stored.document["apiVersion"] == "addon.open-cluster-management.io/v1beta1"
    assert doc.conditions(stored.document) == [
        {**condition.to_document(), "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]


@pytest.mark.parametrize(
    ("reported", "error"),
    [
        ((EDGE, AddOnName("other"), []), NotFoundError),
        ((ClusterName("other"), AddOnName("work"), []), NotFoundError),
        ((EDGE, AddOnName("work"), [Condition(f"C{n}", "True", "R", "") for n in range(33)]), InvalidError),
    ],
)
def test_addon_report_that_fits_nothing_is_refused(
    store: MemoryStore, reported: tuple[ClusterName, AddOnName, list[Condition]], error: type[MusterError]
) -> None:
    store.transact(_put_addon)
    with pytest.raises(error):
        store.transact(addons.report, *reported, "agent")


def test_addon_with_finalizers_waits_for_them(store: MemoryStore) -> None:
    store.transact(_put_addon, finalizers=["x"])

    def remove(tx: Transaction) -> Written:
        return addons.remove(tx, addons.find(tx, EDGE, AddOnName("work")), OPERATOR)

    assert doc.is_deleting(store.transact(remove).stored.document)
    store.transact(_put_addon, deletionTimestamp="2026-01-01T00:00:00Z")
    assert store.transact(lambda tx: tx.objects.get(ADDONS, Key("edge", "work"))) is None


def test_lease_has_no_generation(store: MemoryStore) -> None:
    document = {"metadata": {"name": "l", "namespace": "edge"}, "spec": {"holderIdentity": "me"}}
    stored = store.transact(leases.put, document, None, OPERATOR).stored
    assert stored.document["kind"] == "Lease"
    assert "generation" not in stored.document["metadata"]
    store.transact(leases.remove, stored, OPERATOR)
    assert store.state.objects == {}


# Bootstrap credentials.


@pytest.mark.parametrize("asked", [{"uses": 0}, {"uses": -1}, {"lifetime": timedelta()}, {"lifetime": timedelta(days=-1)}])
def test_credential_without_use_or_life_is_refused(newcomer: Newcomer, asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        newcomer.bootstrap(**asked)


def test_credential_lives_as_long_as_its_certificate(newcomer: Newcomer, clock: ManualClock) -> None:
    record, _ = newcomer.credential(cluster=EDGE, uses=3, lifetime=timedelta(hours=5))
    (certificate,) = newcomer.store.transact(lambda tx: tx.certificates.of_credential(record.id))
    assert record.expires_at == certificate.not_after == clock.now() + timedelta(hours=5)
    assert (certificate.user, certificate.groups) == (
        f"system:bootstrap:{record.id}",
        ("system:bootstrappers:managedcluster",),
    )
    assert (record.created_by, record.cluster, record.uses) == (OPERATOR, EDGE, 3)


def test_revoked_credential_takes_its_certificate_with_it(newcomer: Newcomer) -> None:
    certificate = newcomer.bootstrap()
    assert certificate.credential is not None
    newcomer.store.transact(credentials.revoke, certificate.credential)
    record = newcomer.store.transact(lambda tx: tx.certificates.by_serial(certificate.serial))
    assert record is not None
    assert record.revoked_reason == "CredentialRevoked"
    with pytest.raises(ForbiddenError, match="revoked"):
        newcomer.join(certificate)


def test_a_rebuilt_cluster_takes_the_name_by_an_operators_word(newcomer: Newcomer, store: MemoryStore) -> None:
    credential = newcomer.bootstrap().credential
    ensure(newcomer, credential=credential)
    newcomer.accept()
    store.transact(clusters.set_condition, EDGE, rules.ACCEPTED, "hub")
    store.transact(lambda tx: tx.certificates.add(certificate(tx)))
    store.transact(lambda tx: tx.heartbeats.claim(EDGE, 7))
    rebuilt = Joining(EDGE, "uid-2", AGENT, credential=credential)
    store.transact(clusters.note_duplicate, rebuilt, "hub")
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


def test_a_write_that_loses_the_uid_is_no_rebuilt_cluster(newcomer: Newcomer, store: MemoryStore) -> None:
    ensure(newcomer, credential=newcomer.bootstrap().credential)
    store.transact(lambda tx: tx.certificates.add(certificate(tx)))
    before = store.transact(clusters.find, EDGE)
    store.transact(clusters.put, doc.with_metadata(before.document, annotations=None), before, OPERATOR)
    assert [each.revoked_at for each in store.state.certificates.values() if each.cluster == EDGE] == [None]


def certificate(tx: Transaction) -> CertificateRecord:
    """One that the cluster's agent holds."""
    serial, ends = SerialNumber(2**158 + 7), tx.now + timedelta(days=1)
    held = CertificateRecord(serial, Purpose.AGENT, "u", (), tx.now, ends, "k", tx.now)
    return replace(held, cluster=EDGE, agent=AGENT)


def test_a_cluster_with_two_taints_of_one_key_goes_on(newcomer: Newcomer, store: MemoryStore, clock: ManualClock) -> None:
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
