"""Revoking: what ends with what, who stays, what is said of it, and by what way a cluster comes back."""

from typing import Any

import pytest

from hub.cli.revoking import REASONS
from hub.controllers.chronicle import Chronicle
from hub.domain import revocation as rules
from hub.domain.certificate import CertificateRecord, Holder, Profile, Purpose
from hub.domain.change import REQUESTS, REVOCATIONS, SERVICE_ACCOUNTS, ChangeType, Key
from hub.domain.event import Told
from hub.domain.request import CLUSTER_LABEL, RequestPhase
from hub.domain.revocation import Reason
from hub.ports import Transaction
from hub.services import certificates, clusters, objects, requests, revocation, revoked
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import ForbiddenError, InvalidError, MethodNotAllowedError, NotFoundError, Verdict
from machinery.identity import AddOnName, AgentId, ClusterName, addon_subject
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, LIFETIMES, OPERATOR, Newcomer

OTHER = ClusterName("far")


def revoke(store: MemoryStore, name: str = "r1", **spec: Any) -> dict[str, Any]:
    """Creates a Revocation, as the API does; the document as stored."""
    new = {"apiVersion": "hub.x/v1alpha1", "kind": "Revocation", "metadata": {"name": name}, "spec": spec}
    store.transact(revocation.put, new, None, OPERATOR)
    stored = store.transact(lambda tx: tx.objects.get(REVOCATIONS, Key("", name)))
    assert stored is not None
    return dict(stored.document)


def record(store: MemoryStore, one: CertificateRecord) -> CertificateRecord:
    found = store.transact(lambda tx: tx.certificates.by_serial(one.serial))
    assert found is not None
    return found


def addon_certificate(newcomer: Newcomer) -> CertificateRecord:
    def sign(tx: Transaction) -> CertificateRecord:
        subject = addon_subject(EDGE, AddOnName("metrics"), "agent")
        public_key = pki.public_key_of(pki.generate_key())
        profile = Profile(Purpose.ADDON, subject, public_key, tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.agent)
        issued = certificates.sign(tx, newcomer.issuer, profile, Holder(cluster=EDGE, addon=AddOnName("metrics")))
        found = tx.certificates.by_serial(issued.serial)
        assert found is not None
        return found

    return newcomer.store.transact(sign)


def test_a_cluster_is_revoked_with_its_add_ons_and_its_own_bootstrap_credentials(
    newcomer: Newcomer, store: MemoryStore
) -> None:
    agent, addon = newcomer.registered(), addon_certificate(newcomer)
    bound, free = newcomer.bootstrap(cluster=EDGE), newcomer.bootstrap()
    other = Newcomer(store, newcomer.issuer, cluster=OTHER, uid="uid-2").registered()
    document = revoke(store, cluster="edge", reason="KeyCompromise", message="stolen")
    for gone in (agent, newcomer.certificate(Purpose.RECOVERY), addon):
        assert record(store, gone).revoked_reason == "KeyCompromise"
    assert record(store, bound).revoked_at is not None
    assert record(store, free).revoked_at is None
    assert record(store, other).revoked_at is None
    status = document["status"]
    assert (status["revokedBy"], status["certificatesRevoked"]) == (OPERATOR, 4)
    assert status["bootstrapCredentials"] == [bound.credential]
    assert {each["purpose"] for each in status["certificates"]} == {"agent", "recovery", "addon", "bootstrap"}
    assert status["clusterUID"] == store.transact(lambda tx: clusters.find(tx, EDGE)).uid
    assert store.transact(lambda tx: clusters.find(tx, EDGE)).document["spec"]["hubAcceptsClient"] is True


def test_a_revocation_is_told_to_the_replicas(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()
    before = store.state.revocations
    revoke(store, cluster="edge")
    assert store.state.revocations > before


def test_requests_that_could_still_become_certificates_are_refused(newcomer: Newcomer, store: MemoryStore) -> None:
    agent = newcomer.registered()
    waits = newcomer.submit(agent, request=newcomer.request(key=pki.generate_key()))
    decided = newcomer.submit(agent, request=newcomer.request(key=pki.generate_key()))
    newcomer.approve(decided)
    document = revoke(store, cluster="edge")
    assert sorted(document["status"]["requestsRefused"]) == sorted([waits, decided])
    assert store.transact(requests.state, waits).phase is RequestPhase.DENIED
    assert store.transact(requests.state, decided).phase is RequestPhase.FAILED
    assert newcomer.issue(decided) is None


def test_tokens_of_its_add_ons_end_and_the_accounts_of_others_stay(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()

    def make(tx: Transaction) -> None:
        for name, labels in (("metrics-agent", {CLUSTER_LABEL: "edge"}), ("mine", {})):
            document = {"metadata": {"name": name, "namespace": "edge", "labels": labels}}
            objects.put(tx, SERVICE_ACCOUNTS, document, None, OPERATOR)

    store.transact(make)
    assert revoke(store, cluster="edge")["status"]["serviceAccountsEnded"] == 1
    assert store.transact(lambda tx: tx.objects.get(SERVICE_ACCOUNTS, Key("edge", "metrics-agent"))) is None
    assert store.transact(lambda tx: tx.objects.get(SERVICE_ACCOUNTS, Key("edge", "mine"))) is not None


def test_one_agent_is_revoked_and_the_other_and_the_add_ons_stay(newcomer: Newcomer, store: MemoryStore) -> None:
    first, addon = newcomer.registered(), addon_certificate(newcomer)
    waits = newcomer.submit(first, request=newcomer.request(key=pki.generate_key()))
    other = Newcomer(store, newcomer.issuer, agent=AgentId("agent-2"))
    name, kept = (other.submit(other.bootstrap(), request=other.request(key=key)) for key in (other.key, pki.generate_key()))
    other.approve(name)
    other.issue(name)
    document = revoke(store, cluster="edge", agent="agent-1")
    assert record(store, first).revoked_at is not None
    assert record(store, addon).revoked_at is None
    found = store.transact(lambda tx: tx.certificates.of_cluster(EDGE))
    assert all(each.revoked_at is None for each in found if each.agent == "agent-2")
    assert document["status"]["requestsRefused"] == [waits]
    assert store.transact(requests.state, kept).phase is RequestPhase.PENDING


def test_a_serial_is_revoked_with_the_recovery_certificate_over_its_key(newcomer: Newcomer, store: MemoryStore) -> None:
    agent = newcomer.registered()
    document = revoke(store, serial=f"{agent.serial:x}", reason="Superseded")
    assert {each["purpose"] for each in document["status"]["certificates"]} == {"agent", "recovery"}
    assert record(store, newcomer.certificate(Purpose.RECOVERY)).revoked_reason == "Superseded"
    assert document["status"]["cluster"] == "edge"


def test_the_serial_of_a_bootstrap_credential_revokes_that(newcomer: Newcomer, store: MemoryStore) -> None:
    bound = newcomer.bootstrap(cluster=EDGE)
    document = revoke(store, serial=f"{bound.serial:x}")
    assert document["status"]["bootstrapCredentials"] == [bound.credential]
    with pytest.raises(ForbiddenError, match="revoked"):
        newcomer.join(bound)


def test_a_bootstrap_credential_is_revoked_and_who_has_joined_with_it_stays(newcomer: Newcomer, store: MemoryStore) -> None:
    agent = newcomer.registered()
    revoke(store, bootstrapCredential=str(agent.credential))
    assert record(store, agent).revoked_at is None
    spent_by = agent.credential
    assert spent_by is not None
    (spent,) = store.transact(lambda tx: tx.certificates.of_credential(spent_by))
    assert spent.revoked_at is not None


def test_what_was_revoked_before_keeps_its_time_and_is_not_counted_again(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock
) -> None:
    agent = newcomer.registered()
    revoke(store, cluster="edge", reason="KeyCompromise")
    before = record(store, agent)
    clock.advance(LIFETIMES.bootstrap)
    assert revoke(store, "r2", cluster="edge")["status"]["certificatesRevoked"] == 0
    assert record(store, agent) == before


@pytest.mark.parametrize(
    "spec",
    [{"cluster": "nobody"}, {"cluster": "edge", "agent": "nobody"}, {"serial": "5"}, {"bootstrapCredential": "nobody"}],
    ids=["cluster", "agent", "serial", "credential"],
)
def test_what_is_not_there_cannot_be_revoked(newcomer: Newcomer, store: MemoryStore, spec: dict[str, str]) -> None:
    newcomer.registered()
    with pytest.raises(NotFoundError):
        revoke(store, **spec)
    assert store.transact(lambda tx: tx.objects.get(REVOCATIONS, Key("", "r1"))) is None


@pytest.mark.parametrize(
    "spec", [{}, {"cluster": "edge", "serial": "5"}, {"agent": "agent-1"}, {"agent": "agent-1", "serial": "5"}]
)
def test_a_revocation_names_one_thing(store: MemoryStore, spec: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="Required value"):
        revoke(store, **spec)


def test_a_revocation_neither_changes_nor_goes(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()
    revoke(store, cluster="edge")
    stored = store.transact(lambda tx: tx.objects.get(REVOCATIONS, Key("", "r1")))
    assert stored is not None
    with pytest.raises(InvalidError, match="does not change"):
        store.transact(revocation.put, dict(stored.document), stored, OPERATOR)
    with pytest.raises(MethodNotAllowedError):
        store.transact(revocation.remove, stored, OPERATOR)


def test_an_older_bootstrap_credential_does_not_bring_a_revoked_cluster_back(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock
) -> None:
    newcomer.registered()
    older = newcomer.bootstrap()
    name = newcomer.submit(older, request=newcomer.request(key=pki.generate_key()))
    clock.advance(LIFETIMES.backdate)
    revoke(store, cluster="edge")
    for attempt in (newcomer.join, newcomer.submit):
        with pytest.raises(ForbiddenError, match="have a new one made") as refused:
            attempt(older)
        assert refused.value.verdict is Verdict.CLUSTER_REVOKED
    assert store.transact(requests.state, name).phase is RequestPhase.DENIED
    elsewhere = Newcomer(store, newcomer.issuer, cluster=OTHER, uid="uid-2")
    elsewhere.join(older)  # of other names it is as good as it was


def test_a_request_that_slipped_in_with_an_older_credential_is_not_issued(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock
) -> None:
    """Its transaction had looked for revocations before this one committed: what is signed is decided anew."""
    newcomer.registered()
    name = newcomer.submit(newcomer.bootstrap(), request=newcomer.request(key=pki.generate_key()))
    newcomer.approve(name)
    late = newcomer.stored(name)
    clock.advance(LIFETIMES.backdate)
    revoke(store, cluster="edge")

    def slip_in(tx: Transaction) -> None:
        tx.objects.delete(REQUESTS, newcomer.stored(name), OPERATOR)

    store.transact(slip_in)
    store.transact(lambda tx: tx.objects.put(REQUESTS, dict(late.document), None, OPERATOR))
    newcomer.issue(name)
    state = store.transact(requests.state, name)
    assert state.phase is RequestPhase.FAILED
    assert "was revoked" in state.message


def test_a_new_bootstrap_credential_brings_a_revoked_cluster_back(
    newcomer: Newcomer, store: MemoryStore, clock: ManualClock
) -> None:
    newcomer.registered()
    revoke(store, cluster="edge")
    clock.advance(LIFETIMES.backdate)
    new = newcomer.bootstrap(cluster=EDGE)
    newcomer.join(new)
    name = newcomer.submit(new, request=newcomer.request(key=pki.generate_key()))
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.certificate().is_open(clock.now())


def test_the_revocation_of_one_agent_keeps_no_credential_out(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()
    revoke(store, cluster="edge", agent="agent-1")
    assert store.transact(revoked.revoked_at, EDGE) is None


@pytest.mark.parametrize(
    ("reason", "verdict", "listed"),
    [
        ("KeyCompromise", Verdict.CERTIFICATE_REVOKED, "keyCompromise"),
        ("Unspecified", Verdict.CERTIFICATE_REVOKED, ""),
        (None, Verdict.CERTIFICATE_REVOKED, ""),
        ("ClusterDeleted", Verdict.CLUSTER_DELETED, "cessationOfOperation"),
        ("ClusterLeft", Verdict.CLUSTER_DELETED, "cessationOfOperation"),
        ("ClusterRebuilt", Verdict.CLUSTER_REBUILT, "superseded"),
        ("CredentialRevoked", Verdict.CREDENTIAL_REVOKED, "privilegeWithdrawn"),
    ],
)
def test_the_reason_on_record_says_what_the_holder_and_the_list_are_told(
    reason: str | None, verdict: Verdict, listed: str
) -> None:
    assert rules.verdict_on(reason)[0] is verdict
    assert rules.listed_reason(reason) == listed


def test_every_reason_of_an_operator_has_its_word_in_the_list() -> None:
    listed = {rules.listed_reason(reason) for reason in Reason if reason is not Reason.UNSPECIFIED}
    assert listed <= set(pki.REASONS)
    assert len(listed) == len(Reason) - 1


def test_a_revocation_is_told_in_words(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()
    document = revoke(store, cluster="edge", reason="KeyCompromise", message="stolen")
    assert rules.told(document) == 'cluster "edge" revoked by ann (KeyCompromise: stolen): 2 certificates'
    again = revoke(store, "r2", cluster="edge", agent="agent-1")
    assert rules.told(again) == 'agent "agent-1" of cluster "edge" revoked by ann: nothing of it was good any more'


def test_a_revocation_is_an_event_of_its_cluster_once(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.registered()
    document = revoke(store, cluster="edge", reason="KeyCompromise")
    events: list[Told] = []
    chronicle = Chronicle(events.append)
    chronicle.listed(REVOCATIONS, Key("", "r0"), document)  # what is there at the start is no news
    chronicle.changed(REVOCATIONS, Key("", "r1"), document, ChangeType.ADDED, OPERATOR)
    (told,) = events
    assert (told.cluster, told.reason, told.type) == ("edge", "Revoked", "Warning")
    assert told.message == rules.told(document)
    assert told.about["metadata"]["uid"] == document["status"]["clusterUID"]


def test_hubctl_knows_every_reason() -> None:
    assert list(REASONS) == [str(reason) for reason in Reason]
