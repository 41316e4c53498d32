"""Recovery certificates, and the return of agents to a hub that was restored."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests.request import AddOnRequest, RequestPhase
from hub.api.meta.change import EVENTS, MANAGED_CLUSTERS
from hub.api.restorations import KEPT, Readopts, Restoration, covering
from hub.issuer.local import make_authority
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import Made
from hub.registry.certificatesigningrequests import credential_uses as revoked
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery import recovery
from hub.registry.recovery import restore as restoring
from hub.registry.recovery.recovery import Returning, readopt
from hub.registry.recovery.restore import RestoreOrder
from machinery import pki
from machinery.errors import AlreadyExistsError, DenialCause, ForbiddenError, InvalidError, MusterError, UnauthorizedError
from machinery.identity import (
    AddOnName,
    AgentId,
    CertificateSubject,
    ClusterName,
    SerialNumber,
    agent_subject,
    recovery_subject,
)
from machinery.meta.objects import Key, Query
from machinery.pki import RevocationList, RevokedSerial
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, LIFETIMES, Newcomer

OFF = LIFETIMES.agent + timedelta(days=1)


@pytest.fixture
def holder(newcomer: Newcomer, clock: ManualClock) -> CertificateRecord:
    """The recovery certificate of an agent whose own has expired while it was off."""
    newcomer.registered()
    clock.advance(OFF)
    return newcomer.certificate(Purpose.RECOVERY)


def recover(newcomer: Newcomer, holder: CertificateRecord, *, unattended: bool = True, **changed: Any) -> str:
    asked = newcomer.submission(holder, **{"request": newcomer.request(key=pki.generate_key()), **changed})
    return newcomer.store.transact(lambda tx: recovery.recover(tx, asked, unattended=unattended))


def test_agent_that_was_off_recovers_by_one_request_without_an_operator(newcomer: Newcomer, holder: CertificateRecord) -> None:
    before, request = newcomer.certificate(), newcomer.request(key=pki.generate_key())
    name = recover(newcomer, holder, request=request)
    state = newcomer.state(name)
    assert (state.phase, state.reason) == (RequestPhase.APPROVED, "RecoveredByItsKey")
    assert "recovery certificate over its previous key" in state.message
    newcomer.issue(name)
    assert recover(newcomer, holder, request=request) == name
    assert newcomer.state(name).phase is RequestPhase.ISSUED
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
    assert recover(newcomer, holder, request=request) == denied
    assert newcomer.state(denied).phase is RequestPhase.DENIED
    newcomer.approve(name)
    newcomer.issue(name)
    assert newcomer.state(name).phase is RequestPhase.ISSUED


def test_replaced_agent_does_not_come_back(newcomer: Newcomer, store: InlineStore, holder: CertificateRecord) -> None:
    other = Newcomer(store, newcomer.issuer, agent=AgentId("agent-2"))
    other.issued(other.bootstrap())
    with pytest.raises(ForbiddenError, match='agent "agent-2" has taken the place of agent "agent-1"'):
        recover(newcomer, holder)


def test_recovery_certificate_is_for_its_agent_alone_until_it_expires(
    newcomer: Newcomer, clock: ManualClock, holder: CertificateRecord
) -> None:
    others: tuple[dict[str, Any], ...] = (
        {"cluster": ClusterName("other")},
        {"agent": AgentId("other")},
        {"addon": AddOnRequest(AddOnName("work"), "kubernetes.io/kube-apiserver-client")},
    )
    asked = lambda changed: recover(newcomer, holder, **changed)  # noqa: E731 - one line
    check_refusals(ForbiddenError, asked, [(changed, "recovers nothing else") for changed in others])
    check_refusals(AlreadyExistsError, asked, [({"cluster_uid": uid}, "rebuilt") for uid in ("", "uid-2")])
    for record in (newcomer.bootstrap(), newcomer.certificate()):
        with pytest.raises(ForbiddenError, match="recovery certificate"):
            recover(newcomer, record)
    with pytest.raises(MusterError, match="cannot request"):
        newcomer.submit(holder)
    clock.advance(LIFETIMES.recovery)
    with pytest.raises(ForbiddenError, match="valid"):
        recover(newcomer, holder)


LEASE = timedelta(seconds=60)
WEST, AGENT = ClusterName("west"), AgentId("agent-1")


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

    def restored(self, readopts: Readopts = Readopts.AUTOMATIC, *lists: bytes) -> restoring.RestoreOutcome:
        return self.store.transact(restoring.restored, RestoreOrder(self.made, readopts, lists))

    def back(self, certificate: bytes, cluster: ClusterName = EDGE, agent: AgentId = AGENT) -> CertificateRecord:
        self.store.transact(readopt, Returning(certificate, cluster, agent, "uid-1", LEASE))
        return present(self.store.transact(lambda tx: tx.certificates.by_serial(pki.parse_certificate(certificate).serial)))

    def revoked(self, *serials: int, by: pki.CertificateAuthority | None = None) -> bytes:
        at = self.made + timedelta(hours=2)
        entries = tuple(RevokedSerial(SerialNumber(serial), at, "keyCompromise") for serial in serials)
        return (by or self.authority).sign_list(RevocationList(7, at, at + timedelta(days=1), entries))


@pytest.fixture
def loss(store: InlineStore, clock: ManualClock) -> Loss:
    """An hour and more after a backup."""
    authority, _ = make_authority(LIFETIMES, clock.now())
    store.transact(authorities.adopt, Made(authority.certificate, None))
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
    assert [each["message"].split(":")[0] for each in reported] == ['agent "agent-1" comes back']
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
    stored = loss.store.transact(lambda tx: clusters.find(tx, EDGE))
    assert stored.document["spec"]["hubAcceptsClient"] is False
    name = recover(newcomer, holder)
    assert newcomer.state(name).phase is RequestPhase.APPROVED
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
    own = loss.signed(agent_subject(EDGE, AGENT))
    refusal = present(loss.store.transact(recovery.refusal_of, pki.parse_certificate(own)))
    assert refusal.verdict is DenialCause.CERTIFICATE_LOST, "the agent is told to use its recovery certificate"
    refused(loss, own)
    assert loss.back(loss.signed())
    loss.clock.advance(timedelta(minutes=1))
    loss.restored(Readopts.NEVER)
    refused(loss, loss.signed())


def refused(loss: Loss, certificate: bytes, cluster: ClusterName = EDGE) -> None:
    with pytest.raises(UnauthorizedError, match="register again with a bootstrap kubeconfig"):
        loss.back(certificate, cluster)
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
    assert loss.store.transact(recovery.refusal_of, pki.parse_certificate(certificate)) is None
    with pytest.raises(ForbiddenError, match="only a recovery certificate"):
        recover(newcomer, record)
    assert serial in [each.serial for each in loss.store.transact(lambda tx: tx.certificates.revoked(tx.now))]


def test_what_a_list_names_and_the_backup_knows_is_revoked(loss: Loss, newcomer: Newcomer) -> None:
    record = newcomer.registered()
    outcome = loss.restored(Readopts.AUTOMATIC, loss.revoked(record.serial))
    assert [(each.revoked, each.unknown) for each in outcome.lists] == [(1, 0)]
    assert outcome.spent == (EDGE,)
    found = newcomer.certificate()
    assert found.revoked_at is not None
    assert found.revoked_reason == "KeyCompromise"
    with pytest.raises(ForbiddenError, match='cluster "edge" was revoked at'):
        loss.store.transact(lambda tx: revoked.check_cluster_revocation(tx, EDGE, loss.made))


def test_a_list_of_another_hub_is_refused_whole(loss: Loss) -> None:
    other, _ = make_authority(LIFETIMES, loss.made)
    with pytest.raises(InvalidError, match="not signed by any CA of this hub"):
        loss.restored(Readopts.AUTOMATIC, loss.revoked(1, by=other))
    assert loss.store.transact(restoring.restorations) == ()


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
    found = loss.store.transact(restoring.restorations)
    assert len(found) == KEPT
    assert found[-1].at > found[0].at
