"""Revoking, revocation lists, recovery certificates, and the return of agents to a hub that was restored."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.api import revocations as rules
from hub.api.certificates import CertificateHolder, CertificateRecord, Profile, Purpose
from hub.api.certificatesigningrequests import AddOnRequest, RequestPhase
from hub.api.events import EventRecord
from hub.api.liveness import Beat
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.cluster import StatusReport
from hub.api.meta.change import EVENTS, MANAGED_CLUSTERS, REQUESTS, REVOCATIONS, SERVICE_ACCOUNTS
from hub.api.restorations import KEPT, Readopts, Restoration, covering
from hub.api.revocations import Reason
from hub.controllers.observers.transition_recorder import TransitionRecorder
from hub.issuer.local import make_authority
from hub.ports import Transaction
from hub.ports.identities import ListSigner
from hub.registry import certificates, recovery, revocations as revocation
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from hub.registry.certificates import LIST_LIFETIME, PublishedList
from hub.registry.certificatesigningrequests import credential_uses as revoked
from hub.registry.generic import objects
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery import RestoreOrder, Returning, readopt
from hubctl.commands.access.revocation import REASONS
from machinery import errors, identity, pki
from machinery.errors import DenialCause, ForbiddenError, InvalidError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import AddOnName, AgentId, CertificateSubject, ClusterName, SerialNumber, recovery_subject
from machinery.meta.objects import ChangeType, Key, Query
from machinery.pki import RevocationList, RevokedSerial
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal, check_refusals, check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, LIFETIMES, OPERATOR, Newcomer

OTHER = ClusterName("far")
FIRST, SECOND = "hub/00000000000000aa", "hub/00000000000000bb"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
WEST, AGENT = ClusterName("west"), AgentId("agent-1")


def revoke(store: InlineStore, name: str = "r1", **spec: Any) -> dict[str, Any]:
    """Creates a Revocation, as the API does; the document as stored."""
    new = {"apiVersion": "hub.x/v1alpha1", "kind": "Revocation", "metadata": {"name": name}, "spec": spec}
    store.transact(revocation.put, new, None, OPERATOR)
    return dict(present(store.transact(lambda tx: tx.objects.get(REVOCATIONS, Key("", name)))).document)


def record(store: InlineStore, one: CertificateRecord) -> CertificateRecord:
    return present(store.transact(lambda tx: tx.certificates.by_serial(one.serial)))


def addon_certificate(newcomer: Newcomer) -> CertificateRecord:
    def sign(tx: Transaction) -> CertificateRecord:
        subject = identity.addon_subject(EDGE, AddOnName("metrics"), "agent")
        public_key = pki.public_key_of(pki.generate_key())
        profile = Profile(Purpose.ADDON, subject, public_key, tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.agent)
        issued = certificates.sign(tx, newcomer.issuer, profile, CertificateHolder(cluster=EDGE, addon=AddOnName("metrics")))
        return present(tx.certificates.by_serial(issued.serial))

    return newcomer.store.transact(sign)


def test_cluster_is_revoked_once_with_all_that_is_its_own(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    agent, addon = newcomer.registered(), addon_certificate(newcomer)
    bound, free = newcomer.bootstrap(cluster=EDGE), newcomer.bootstrap()
    other = Newcomer(store, newcomer.issuer, cluster=OTHER, uid="uid-2").registered()
    announced = store.state.revocations
    document = revoke(store, cluster="edge", reason="KeyCompromise", message="stolen")
    assert store.state.revocations > announced, "other replicas are notified"
    for gone in (agent, newcomer.certificate(Purpose.RECOVERY), addon):
        assert record(store, gone).revoked_reason == "KeyCompromise"
    assert record(store, bound).revoked_at is not None
    assert (record(store, free).revoked_at, record(store, other).revoked_at) == (None, None)
    status = document["status"]
    assert (status["revokedBy"], status["certificatesRevoked"]) == (OPERATOR, 4)
    assert status["bootstrapCredentials"] == [bound.credential]
    assert {each["purpose"] for each in status["certificates"]} == {"agent", "recovery", "addon", "bootstrap"}
    cluster = store.transact(clusters.find, EDGE)
    assert (status["clusterUID"], cluster.document["spec"]["hubAcceptsClient"]) == (cluster.uid, True)
    assert (
        rules.describe(document)
        == 'cluster "edge" revoked by ann (KeyCompromise: stolen): 4 certificates, 1 bootstrap credential'
    )
    stored = present(store.transact(lambda tx: tx.objects.get(REVOCATIONS, Key("", "r1"))))
    with pytest.raises(InvalidError, match="cannot be changed"):
        store.transact(revocation.put, dict(stored.document), stored, OPERATOR)
    check_refusal(errors.MethodNotAllowedError, store.transact, revocation.remove, stored, OPERATOR)
    before = record(store, agent)
    clock.advance(LIFETIMES.bootstrap)
    assert (revoke(store, "r2", cluster="edge")["status"]["certificatesRevoked"], record(store, agent)) == (0, before)
    again = revoke(store, "r3", cluster="edge", agent="agent-1")
    assert rules.describe(again) == 'agent "agent-1" of cluster "edge" revoked by ann: nothing of it was valid any more'


@pytest.mark.parametrize("ahead", [timedelta(hours=9), -timedelta(hours=9)], ids=str)
def test_a_revocation_by_a_wrong_clock_keeps_out_earlier_credentials_and_no_later_one(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock, ahead: timedelta
) -> None:
    newcomer.registered()
    before = newcomer.bootstrap(lifetime=timedelta(days=1))
    clock.set_forward(ahead)
    revoke(store, cluster="edge")
    clock.set_forward(-ahead)
    check_refusal(ForbiddenError, newcomer.join, before, match="is older")
    newcomer.join(newcomer.bootstrap(cluster=EDGE))


def test_revoked_cluster_is_not_available_until_it_joins_again(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock
) -> None:
    """Whatever takes its last certificate, and whatever its former agent sends meanwhile."""
    beat, report = Beat(EDGE, timedelta(), available=True), StatusReport(conditions=(cluster_rules.AVAILABLE,))

    def available() -> tuple[str, str]:
        found = present(cluster_rules.availability(store.transact(clusters.find, EDGE).document))
        return found.status, found.reason

    agent = newcomer.registered()
    store.transact(clusters.set_condition, EDGE, cluster_rules.ACCEPTED, "hub")
    store.transact(clusters.report_status, EDGE, report, "agent")
    for number, target in enumerate(({"cluster": "edge"}, {"cluster": "edge", "agent": "agent-1"}, {"serial": ""})):
        assert available()[0] == "True", target
        revoke(store, f"r{number}", **(target if "cluster" in target else {"serial": f"{agent.serial:x}"}))
        assert available() == ("Unknown", "Revoked"), target
        store.transact(clusters.report_status, EDGE, report, "agent")
        assert not store.transact(heartbeats.revive, beat, "hub")
        assert available() == ("Unknown", "Revoked"), target
        clock.advance(LIFETIMES.backdate)
        newcomer.issued(newcomer.bootstrap(cluster=EDGE), request=newcomer.request(key=pki.generate_key()))
        agent = newcomer.certificate()
        assert store.transact(heartbeats.revive, beat, "hub")


def test_requests_that_could_still_become_certificates_are_refused(newcomer: Newcomer, store: InlineStore) -> None:
    agent = newcomer.registered()
    waits = newcomer.submit(agent, request=newcomer.request(key=pki.generate_key()))
    decided = newcomer.submit(agent, request=newcomer.request(key=pki.generate_key()))
    newcomer.approve(decided)
    assert sorted(revoke(store, cluster="edge")["status"]["requestsRefused"]) == sorted([waits, decided])
    assert [newcomer.state(name).phase for name in (waits, decided)] == [RequestPhase.DENIED, RequestPhase.FAILED]
    assert newcomer.issue(decided) is None


def test_tokens_of_its_add_ons_end_and_the_accounts_of_others_stay(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()

    def make(tx: Transaction) -> None:
        for name, labels in (("metrics-agent", {identity.CLUSTER_LABEL: "edge"}), ("mine", {})):
            document = {"metadata": {"name": name, "namespace": "edge", "labels": labels}}
            objects.put(tx, SERVICE_ACCOUNTS, document, None, OPERATOR)

    store.transact(make)
    assert revoke(store, cluster="edge")["status"]["serviceAccountsEnded"] == 1
    assert store.transact(lambda tx: tx.objects.get(SERVICE_ACCOUNTS, Key("edge", "metrics-agent"))) is None
    assert store.transact(lambda tx: tx.objects.get(SERVICE_ACCOUNTS, Key("edge", "mine"))) is not None


def test_one_agent_is_revoked_and_the_other_and_the_add_ons_stay(newcomer: Newcomer, store: InlineStore) -> None:
    first, addon = newcomer.registered(), addon_certificate(newcomer)
    waits = newcomer.submit(first, request=newcomer.request(key=pki.generate_key()))
    other = Newcomer(store, newcomer.issuer, agent=AgentId("agent-2"))
    other.issued(other.bootstrap())
    kept = other.submit(other.bootstrap(), request=other.request(key=pki.generate_key()))
    document = revoke(store, cluster="edge", agent="agent-1")
    assert record(store, first).revoked_at is not None
    assert record(store, addon).revoked_at is None
    found = store.transact(lambda tx: tx.certificates.of_cluster(EDGE))
    assert all(each.revoked_at is None for each in found if each.agent == "agent-2")
    assert (document["status"]["requestsRefused"], newcomer.state(kept).phase) == ([waits], RequestPhase.PENDING)
    assert store.transact(revoked.cluster_revoked_at, EDGE) is None, "bootstrap credentials of the cluster stay good"


def test_serial_is_revoked_with_its_recovery_certificate_or_as_a_credential(newcomer: Newcomer, store: InlineStore) -> None:
    agent, bound = newcomer.registered(), newcomer.bootstrap(cluster=EDGE)
    revoke(store, bootstrapCredential=str(agent.credential))
    assert record(store, agent).revoked_at is None, "agents that joined with a credential stay"
    (spent,) = store.transact(lambda tx: tx.certificates.of_credential(present(agent.credential)))
    assert spent.revoked_at is not None
    document = revoke(store, "r2", serial=f"{agent.serial:x}", reason="Superseded")
    assert {each["purpose"] for each in document["status"]["certificates"]} == {"agent", "recovery"}
    assert record(store, newcomer.certificate(Purpose.RECOVERY)).revoked_reason == "Superseded"
    assert document["status"]["cluster"] == "edge"
    document = revoke(store, "r3", serial=f"{bound.serial:x}")
    assert document["status"]["bootstrapCredentials"] == [bound.credential]
    check_refusal(ForbiddenError, newcomer.join, bound, match="revoked")


def test_only_a_new_credential_brings_back_a_revoked_cluster(
    newcomer: Newcomer, store: InlineStore, clock: ManualClock
) -> None:
    newcomer.registered()
    older = newcomer.bootstrap()
    name = newcomer.submit(older, request=newcomer.request(key=pki.generate_key()))
    clock.advance(LIFETIMES.backdate)
    revoke(store, cluster="edge")
    for attempt in (newcomer.join, newcomer.submit):
        with pytest.raises(ForbiddenError, match="create a new one") as refused:
            attempt(older)
        assert refused.value.denial_cause is DenialCause.CLUSTER_REVOKED
    assert newcomer.state(name).phase is RequestPhase.DENIED
    Newcomer(store, newcomer.issuer, cluster=OTHER, uid="uid-2").join(older)  # other names may still use it
    clock.advance(LIFETIMES.backdate)
    new = newcomer.bootstrap(cluster=EDGE)
    newcomer.join(new)
    newcomer.issued(new, request=newcomer.request(key=pki.generate_key()))
    assert newcomer.certificate().is_open(clock.now())


def test_late_request_with_older_credential_is_not_issued(newcomer: Newcomer, store: InlineStore, clock: ManualClock) -> None:
    """Its transaction had looked for revocations before this one committed: what is signed is decided anew."""
    newcomer.registered()
    name = newcomer.submit(newcomer.bootstrap(), request=newcomer.request(key=pki.generate_key()))
    newcomer.approve(name)
    late = newcomer.stored(name)
    clock.advance(LIFETIMES.backdate)
    revoke(store, cluster="edge")
    stored = newcomer.stored(name)
    store.transact(lambda tx: tx.objects.delete(REQUESTS, stored, OPERATOR))
    store.transact(lambda tx: tx.objects.put(REQUESTS, dict(late.document), None, OPERATOR))
    newcomer.issue(name)
    state = newcomer.state(name)
    assert state.phase is RequestPhase.FAILED
    assert "was revoked" in state.message


def test_recorded_reason_gives_the_verdict_and_the_word_in_the_list() -> None:
    rows = (
        ("KeyCompromise", (DenialCause.CERTIFICATE_REVOKED, "keyCompromise")),
        *(("Unspecified", (DenialCause.CERTIFICATE_REVOKED, "")), (None, (DenialCause.CERTIFICATE_REVOKED, ""))),
        ("ClusterDeleted", (DenialCause.CLUSTER_DELETED, "cessationOfOperation")),
        ("ClusterLeft", (DenialCause.CLUSTER_DELETED, "cessationOfOperation")),
        ("ClusterRebuilt", (DenialCause.CLUSTER_REBUILT, "superseded")),
        ("CredentialRevoked", (DenialCause.CREDENTIAL_REVOKED, "privilegeWithdrawn")),
    )
    check_results(lambda reason: (rules.denial_of(reason)[0], rules.listed_reason(reason)), rows)
    listed = {rules.listed_reason(reason) for reason in Reason if reason is not Reason.UNSPECIFIED}
    assert listed <= set(pki.REASONS)
    assert len(listed) == len(Reason) - 1
    assert list(REASONS) == [str(reason) for reason in Reason], "hubctl knows every reason"


def test_a_revocation_is_an_event_of_its_cluster_once(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.registered()
    document = revoke(store, cluster="edge", reason="KeyCompromise")
    events: list[EventRecord] = []
    chronicle = TransitionRecorder(events.append)
    chronicle.listed(REVOCATIONS, Key("", "r0"), document)  # what is there at the start is no news
    chronicle.changed(REVOCATIONS, Key("", "r1"), document, ChangeType.ADDED, OPERATOR)
    (event,) = events
    assert (event.cluster, event.reason, event.type) == ("edge", "Revoked", "Warning")
    assert (event.message, event.about["metadata"]["uid"]) == (rules.describe(document), document["status"]["clusterUID"])


class TwoSigners(ListSigner):
    def __init__(self) -> None:
        ends, make = LONG_AGO + timedelta(days=36500), pki.create_authority
        self._cas = {
            name: make(CertificateSubject(name), pki.generate_key(), pki.random_serial(), LONG_AGO, ends)
            for name in (FIRST, SECOND)
        }
        self.signed = 0

    @property
    def authorities(self) -> Sequence[str]:
        return tuple(self._cas)

    def sign_list(self, authority: str, content: pki.RevocationList) -> bytes:
        self.signed += 1
        return self._cas[authority].sign_list(content)


@pytest.fixture(scope="module")
def signer() -> TwoSigners:
    return TwoSigners()


def add(store: InlineStore, serial: int, *, lives: timedelta = timedelta(days=30), by: str = FIRST) -> SerialNumber:
    number, now = SerialNumber(serial), store.transact(lambda tx: tx.now)
    added = CertificateRecord(number, Purpose.AGENT, "u", (), now, now + lives, str(serial), now, signed_by=by)
    store.transact(lambda tx: tx.certificates.add(added))
    return number


def revoke_one(store: InlineStore, serial: SerialNumber, reason: str = "KeyCompromise") -> None:
    store.transact(lambda tx: tx.certificates.revoke([serial], tx.now, reason))


def sign(store: InlineStore, signer: TwoSigners, authority: str = FIRST) -> PublishedList:
    return store.transact(certificates.sign_list, signer, authority)


def serials(published: PublishedList) -> dict[int, str]:
    return {entry.serial: entry.reason for entry in pki.parse_list(published.der).entries}


def test_each_ca_lists_the_certificates_that_it_signed(store: InlineStore, signer: TwoSigners) -> None:
    for serial, by in ((1, FIRST), (2, SECOND), (3, FIRST), (4, FIRST)):
        add(store, serial, by=by)
    for serial in (1, 2, 3):
        revoke_one(store, SerialNumber(serial))
    assert serials(sign(store, signer)) == {1: "keyCompromise", 3: "keyCompromise"}
    assert serials(sign(store, signer, SECOND)) == {2: "keyCompromise"}
    check_refusal(NotFoundError, sign, store, signer, "hub/00000000000000cc")


def test_list_is_signed_anew_at_half_its_life_or_revocation(store: InlineStore, signer: TwoSigners, clock: ManualClock) -> None:
    serial = add(store, 1)
    first, count = sign(store, signer), signer.signed
    clock.advance(LIST_LIFETIME / 2 - timedelta(seconds=1))
    assert (sign(store, signer), store.transact(certificates.current_list, signer, FIRST)) == (first, first)
    assert signer.signed == count
    clock.advance(timedelta(seconds=1))
    second = sign(store, signer)
    content = pki.parse_list(second.der)
    assert second.number > first.number
    assert content.next_update - content.this_update == LIST_LIFETIME
    assert content.this_update - clock.now() < timedelta(seconds=1)
    revoke_one(store, serial, "Superseded")
    assert store.transact(certificates.current_list, signer, FIRST) is None
    third = sign(store, signer)
    assert third.number > second.number
    assert serials(third) == {1: "superseded"}
    clock.advance(-timedelta(days=1))
    assert sign(store, signer).number == third.number + 1, "although the database's clock was set back"


def test_entry_outlives_its_certificate_by_one_list(store: InlineStore, signer: TwoSigners, clock: ManualClock) -> None:
    """RFC 5280 (3.3): it must have been on one list that was issued after that."""
    revoke_one(store, add(store, 1, lives=timedelta(hours=1)))
    clock.advance(timedelta(hours=1) + LIST_LIFETIME - timedelta(seconds=1))
    assert serials(sign(store, signer)) == {1: "keyCompromise"}
    clock.advance(timedelta(seconds=1))
    assert serials(sign(store, signer)) == {}


@pytest.fixture
def holder(newcomer: Newcomer, clock: ManualClock) -> CertificateRecord:
    """The recovery certificate of an agent whose own has expired while it was off."""
    newcomer.registered()
    clock.advance(LIFETIMES.agent + timedelta(days=1))
    return newcomer.certificate(Purpose.RECOVERY)


def recover(newcomer: Newcomer, holder: CertificateRecord, *, unattended: bool = True, **changed: Any) -> str:
    asked = newcomer.submission(holder, **{"request": newcomer.request(key=pki.generate_key()), **changed})
    return newcomer.store.transact(lambda tx: recovery.recover(tx, asked, unattended=unattended))


def test_agent_that_was_off_recovers_by_one_request_without_an_operator(newcomer: Newcomer, holder: CertificateRecord) -> None:
    before, request = newcomer.certificate(), newcomer.request(key=pki.generate_key())
    name = recover(newcomer, holder, request=request)
    state = newcomer.state(name)
    assert (state.phase, state.reason) == (RequestPhase.APPROVED, "RecoveredByItsKey")
    assert "recovery certificate of its previous key" in state.message
    newcomer.issue(name)
    assert (recover(newcomer, holder, request=request), newcomer.state(name).phase) == (name, RequestPhase.ISSUED)
    after = newcomer.certificate()
    assert (after.user, after.cluster, after.agent) == (before.user, before.cluster, before.agent)
    assert after.serial != before.serial
    assert newcomer.certificate(Purpose.RECOVERY).serial != holder.serial


def test_operator_decides_where_the_rule_says_so_and_a_denial_stands(newcomer: Newcomer, holder: CertificateRecord) -> None:
    name = recover(newcomer, holder, unattended=False)
    assert newcomer.state(name).phase is RequestPhase.PENDING
    assert newcomer.review(name, "*") is None, "no other rule decides instead"
    request = newcomer.request(key=pki.generate_key())
    denied = recover(newcomer, holder, request=request, unattended=False)
    newcomer.deny(denied)
    assert (recover(newcomer, holder, request=request), newcomer.state(denied).phase) == (denied, RequestPhase.DENIED)
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.state(name).phase is RequestPhase.ISSUED


def test_replaced_agent_does_not_come_back(newcomer: Newcomer, store: InlineStore, holder: CertificateRecord) -> None:
    other = Newcomer(store, newcomer.issuer, agent=AgentId("agent-2"))
    other.issued(other.bootstrap())
    check_refusal(ForbiddenError, recover, newcomer, holder, match='agent "agent-2" has replaced agent "agent-1"')


def test_recovery_certificate_is_for_its_agent_alone(newcomer: Newcomer, clock: ManualClock, holder: CertificateRecord) -> None:
    others: tuple[dict[str, Any], ...] = (
        {"cluster": ClusterName("other")},
        {"agent": AgentId("other")},
        {"addon": AddOnRequest(AddOnName("work"), "kubernetes.io/kube-apiserver-client")},
    )
    asked = lambda changed: recover(newcomer, holder, **changed)  # noqa: E731 - one line
    check_refusals(ForbiddenError, asked, [(changed, r"for agent .* only") for changed in others])
    check_refusals(errors.AlreadyExistsError, asked, [({"cluster_uid": uid}, "rebuilt") for uid in ("", "uid-2")])
    for record in (newcomer.bootstrap(), newcomer.certificate()):
        check_refusal(ForbiddenError, recover, newcomer, record, match="recovery certificate")
    check_refusal(MusterError, newcomer.submit, holder, match="cannot request")
    clock.advance(LIFETIMES.recovery)
    check_refusal(ForbiddenError, recover, newcomer, holder, match="valid")


@dataclass
class Loss:
    """A hub that was restored, and the CA with which it signed what it has forgotten."""

    store: InlineStore
    clock: ManualClock
    authority: pki.CertificateAuthority
    made: datetime

    def signed(
        self,
        subject: CertificateSubject | None = None,
        *,
        issuer: pki.CertificateAuthority | None = None,
        at: datetime | None = None,
    ) -> bytes:
        """A certificate of after the backup, that nothing is known of."""
        begins = (at or self.clock.now()) - LIFETIMES.backdate
        plan = pki.Plan(
            subject=subject or recovery_subject(EDGE, AGENT),
            public_key=pki.public_key_of(pki.generate_key()),
            serial=pki.random_serial(),
            not_before=begins,
            not_after=begins + LIFETIMES.recovery,
            usage=pki.Usage.CLIENT,
        )
        return (issuer or self.authority).sign(plan)

    def restored(self, readopts: Readopts = Readopts.AUTOMATIC, *lists: bytes) -> recovery.RestoreOutcome:
        return self.store.transact(recovery.restored, RestoreOrder(self.made, readopts, lists))

    def back(self, certificate: bytes, cluster: ClusterName = EDGE, agent: AgentId = AGENT) -> CertificateRecord:
        self.store.transact(readopt, Returning(certificate, cluster, agent, "uid-1", timedelta(seconds=60)))
        return present(self.store.transact(lambda tx: tx.certificates.by_serial(pki.parse_certificate(certificate).serial)))

    def revoked(self, *serials: int, by: pki.CertificateAuthority | None = None) -> bytes:
        at = self.made + timedelta(hours=2)
        entries = tuple(RevokedSerial(SerialNumber(serial), at, "keyCompromise") for serial in serials)
        return (by or self.authority).sign_list(RevocationList(7, at, at + timedelta(days=1), entries))


@pytest.fixture
def loss(store: InlineStore, clock: ManualClock) -> Loss:
    """An hour and more after a backup."""
    authority, _ = make_authority(LIFETIMES, clock.now())
    store.transact(authorities.adopt, NewAuthority(authority.certificate, None))
    made = clock.now()
    clock.advance(timedelta(hours=3))
    return Loss(store, clock, authority, made)


def test_agent_that_renewed_after_the_backup_returns_without_an_operator(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    before = loss.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE)))
    holder = loss.back(loss.signed())
    assert (holder.purpose, holder.cluster, holder.agent) == (Purpose.RECOVERY, EDGE, AGENT)
    assert loss.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE))) == before
    events = loss.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items
    reported = [event.document for event in events if event.document["reason"] == recovery.READOPTED]
    assert [each["message"].split(":")[0] for each in reported] == ['agent "agent-1" returns']
    name = recover(newcomer, holder)
    assert newcomer.state(name).phase is RequestPhase.APPROVED
    newcomer.issue(name)
    assert newcomer.state(name).phase is RequestPhase.ISSUED


def test_an_agent_that_took_a_place_after_the_backup_has_it(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.clock.advance(timedelta(minutes=1))
    loss.restored()
    other = replace(newcomer, agent=AgentId("agent-2"))
    holder = loss.back(loss.signed(recovery_subject(EDGE, other.agent)), agent=other.agent)
    assert other.state(recover(other, holder)).phase is RequestPhase.APPROVED


def test_a_cluster_that_joined_after_the_backup_is_entered_and_waits_to_be_accepted(loss: Loss, newcomer: Newcomer) -> None:
    loss.restored()
    holder = loss.back(loss.signed())
    assert loss.store.transact(lambda tx: clusters.find(tx, EDGE)).document["spec"]["hubAcceptsClient"] is False
    assert newcomer.state(recover(newcomer, holder)).phase is RequestPhase.APPROVED
    with pytest.raises(ForbiddenError, match="not accepted"):
        loss.store.transact(lambda tx: clusters.require_accepted(clusters.find(tx, EDGE)))


def test_operator_approves_where_the_order_says_so_except_agents_on_record(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.made = loss.clock.now()  # its certificate is of the time that may be lost, and is not lost
    loss.restored(Readopts.APPROVAL)
    assert newcomer.state(recover(newcomer, newcomer.certificate(Purpose.RECOVERY))).phase is RequestPhase.APPROVED
    assert newcomer.state(recover(newcomer, loss.back(loss.signed()))).phase is RequestPhase.PENDING


def test_only_recovery_certificates_that_a_restored_hub_lost_return(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    refused(loss, loss.signed())  # not restored
    loss.restored()
    refused(loss, loss.signed(at=loss.made - timedelta(hours=1)))  # before the backup
    refused(loss, loss.signed(at=loss.made + timedelta(hours=4)))  # after the restore
    refused(loss, loss.signed(issuer=make_authority(LIFETIMES, loss.made)[0]))
    refused(loss, loss.signed(), cluster=WEST)
    refused(loss, loss.signed(recovery_subject(WEST, AGENT)))
    own = loss.signed(identity.agent_subject(EDGE, AGENT))
    refusal = present(loss.store.transact(recovery.lost_record_error, pki.parse_certificate(own)))
    assert refusal.denial_cause is DenialCause.CERTIFICATE_LOST, "the agent is asked to use its recovery certificate"
    refused(loss, own)
    assert loss.back(loss.signed())
    loss.clock.advance(timedelta(minutes=1))
    loss.restored(Readopts.NEVER)
    refused(loss, loss.signed())


def refused(loss: Loss, certificate: bytes, cluster: ClusterName = EDGE) -> None:
    check_refusal(UnauthorizedError, loss.back, certificate, cluster, match="register again with a bootstrap kubeconfig")
    serial = pki.parse_certificate(certificate).serial
    assert loss.store.transact(lambda tx: tx.certificates.by_serial(serial)) is None


def test_what_a_list_names_does_not_come_back_and_stays_on_the_hubs_own_lists(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    certificate = loss.signed()
    serial = pki.parse_certificate(certificate).serial
    outcome = loss.restored(Readopts.AUTOMATIC, loss.revoked(serial))
    assert [(each.number, each.revoked, each.unknown) for each in outcome.lists] == [(7, 0, 1)]
    record = loss.back(certificate)
    assert record.purpose is Purpose.SERVING
    assert record.revoked_at is not None
    assert loss.store.transact(recovery.lost_record_error, pki.parse_certificate(certificate)) is None
    check_refusal(ForbiddenError, recover, newcomer, record, match="only with a valid recovery certificate")
    assert serial in [each.serial for each in loss.store.transact(lambda tx: tx.certificates.revoked(tx.now))]


def test_what_a_list_names_and_the_backup_knows_is_revoked(loss: Loss, newcomer: Newcomer) -> None:
    outcome = loss.restored(Readopts.AUTOMATIC, loss.revoked(newcomer.registered().serial))
    assert ([(each.revoked, each.unknown) for each in outcome.lists], outcome.spent) == ([(1, 0)], (EDGE,))
    found = newcomer.certificate()
    assert found.revoked_at is not None
    assert found.revoked_reason == "KeyCompromise"
    with pytest.raises(ForbiddenError, match='cluster "edge" was revoked at'):
        loss.store.transact(lambda tx: revoked.check_cluster_revocation(tx, EDGE, loss.made))


def test_a_list_of_another_hub_is_refused_whole(loss: Loss) -> None:
    other, _ = make_authority(LIFETIMES, loss.made)
    check_refusal(InvalidError, loss.restored, Readopts.AUTOMATIC, loss.revoked(1, by=other), match="no CA of this hub signed")
    assert loss.store.transact(recovery.restorations) == ()


def test_newest_restore_that_fits_decides_and_only_the_last_ones_are_kept(loss: Loss) -> None:
    start, hour = loss.made, timedelta(hours=1)
    early = Restoration(start, start + 4 * hour, Readopts.NEVER)
    late = Restoration(start + 2 * hour, start + 6 * hour, Readopts.APPROVAL)
    assert covering((early, late), start + hour) is None, "NEVER, and only the first one lost it"
    assert covering((early, late), start + 3 * hour) is late
    assert covering((late, early), start + 3 * hour) is late
    assert covering((), start) is None
    for _ in range(KEPT + 2):
        loss.restored()
        loss.clock.advance(timedelta(minutes=1))
    found = loss.store.transact(recovery.restorations)
    assert len(found) == KEPT
    assert found[-1].at > found[0].at
