"""Who comes back to a hub that was restored and has forgotten his certificates, and who does not."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import EVENTS, MANAGED_CLUSTERS, Key, Query
from hub.domain.request import RequestPhase
from hub.domain.restoration import KEPT, Readopts, Restoration, covering
from hub.issuer.local import make_authority
from hub.services import authorities, clusters, readoption, requests, restoring, revoked
from hub.services.authorities import Made
from hub.services.readoption import Returning, readopt
from hub.services.restoring import Order
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import ForbiddenError, InvalidError, UnauthorizedError, Verdict
from machinery.identity import AgentId, ClusterName, SerialNumber, Subject, agent_subject, recovery_subject
from machinery.pki import RevocationList, RevokedSerial
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, LIFETIMES, Newcomer

LEASE = timedelta(seconds=60)
WEST, AGENT = ClusterName("west"), AgentId("agent-1")


@dataclass
class Loss:
    """A hub that was restored, and the CA with which it signed what it has forgotten."""

    store: MemoryStore
    clock: ManualClock
    authority: pki.Authority
    made: datetime

    def signed(
        self, subject: Subject | None = None, *, issuer: pki.Authority | None = None, at: datetime | None = None
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

    def restored(self, readopts: Readopts = Readopts.AUTOMATIC, *lists: bytes) -> restoring.Outcome:
        return self.store.transact(restoring.restored, Order(self.made, readopts, lists))

    def back(self, certificate: bytes, cluster: ClusterName = EDGE, agent: AgentId = AGENT) -> CertificateRecord:
        """The record that it has then."""
        self.store.transact(readopt, Returning(certificate, cluster, agent, "uid-1", LEASE))
        record = self.store.transact(lambda tx: tx.certificates.by_serial(pki.parse_certificate(certificate).serial))
        assert record is not None
        return record

    def revoked(self, *serials: int, by: pki.Authority | None = None) -> bytes:
        """A list of the hub that was."""
        at = self.made + timedelta(hours=2)
        entries = tuple(RevokedSerial(SerialNumber(serial), at, "keyCompromise") for serial in serials)
        return (by or self.authority).sign_list(RevocationList(7, at, at + timedelta(days=1), entries))


@pytest.fixture
def loss(store: MemoryStore, clock: ManualClock) -> Loss:
    """An hour and more after a backup."""
    authority, _ = make_authority(LIFETIMES, clock.now())
    store.transact(authorities.adopt, Made(authority.certificate, None))
    made = clock.now()
    clock.advance(timedelta(hours=3))
    return Loss(store, clock, authority, made)


def ask(newcomer: Newcomer, holder: CertificateRecord, *, unattended: bool = True) -> str:
    asked = newcomer.submission(holder, request=newcomer.request(key=pki.generate_key()))
    return newcomer.store.transact(lambda tx: requests.recover(tx, asked, unattended=unattended))


def phase(newcomer: Newcomer, name: str) -> RequestPhase:
    return newcomer.store.transact(requests.state, name).phase


def test_an_agent_that_renewed_after_the_backup_comes_back_without_a_person(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    holder = loss.back(loss.signed())
    assert (holder.purpose, holder.cluster, holder.agent) == (Purpose.RECOVERY, EDGE, AGENT)
    name = ask(newcomer, holder)
    assert phase(newcomer, name) is RequestPhase.APPROVED
    newcomer.issue(name)
    assert phase(newcomer, name) is RequestPhase.ISSUED


def test_an_agent_that_took_a_place_after_the_backup_has_it(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.clock.advance(timedelta(minutes=1))
    loss.restored()
    other = replace(newcomer, agent=AgentId("agent-2"))
    holder = loss.back(loss.signed(recovery_subject(EDGE, other.agent)), agent=other.agent)
    assert phase(other, ask(other, holder)) is RequestPhase.APPROVED


def test_a_cluster_that_joined_after_the_backup_is_entered_and_waits_to_be_accepted(loss: Loss, newcomer: Newcomer) -> None:
    loss.restored()
    holder = loss.back(loss.signed())
    stored = loss.store.transact(lambda tx: clusters.find(tx, EDGE))
    assert stored.document["spec"]["hubAcceptsClient"] is False
    name = ask(newcomer, holder)
    assert phase(newcomer, name) is RequestPhase.APPROVED
    with pytest.raises(ForbiddenError, match="not accepted"):
        loss.store.transact(lambda tx: clusters.require_accepted(clusters.find(tx, EDGE)))


def test_operators_hear_of_it(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    loss.back(loss.signed())
    events = loss.store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items
    told = [event.document for event in events if event.document["reason"] == readoption.REASON]
    assert [each["message"].split(":")[0] for each in told] == ['agent "agent-1" comes back']


def test_with_the_order_somebody_approves_each(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored(Readopts.APPROVAL)
    assert phase(newcomer, ask(newcomer, loss.back(loss.signed()))) is RequestPhase.PENDING


def test_who_is_on_record_comes_back_as_ever_whatever_the_order(loss: Loss, newcomer: Newcomer) -> None:
    """Issued shortly before the backup: in the time that may be lost, and not lost."""
    newcomer.registered()
    loss.made = loss.clock.now()
    loss.restored(Readopts.APPROVAL)
    assert phase(newcomer, ask(newcomer, newcomer.certificate(Purpose.RECOVERY))) is RequestPhase.APPROVED


def refused(loss: Loss, certificate: bytes, cluster: ClusterName = EDGE) -> None:
    with pytest.raises(UnauthorizedError, match="register again with a bootstrap kubeconfig"):
        loss.back(certificate, cluster)
    serial = pki.parse_certificate(certificate).serial
    assert loss.store.transact(lambda tx: tx.certificates.by_serial(serial)) is None


def test_nobody_comes_back_to_a_hub_that_was_not_restored(loss: Loss) -> None:
    refused(loss, loss.signed())


def test_nobody_comes_back_where_the_order_says_so(loss: Loss) -> None:
    loss.restored(Readopts.NEVER)
    refused(loss, loss.signed())


@pytest.mark.parametrize("off", [timedelta(hours=-1), timedelta(hours=4)], ids=["before the backup", "after the restore"])
def test_what_was_signed_outside_the_time_that_was_lost_is_not_the_hubs(loss: Loss, off: timedelta) -> None:
    loss.restored()
    refused(loss, loss.signed(at=loss.made + off))


def test_what_another_ca_signed_in_the_same_words_opens_nothing(loss: Loss) -> None:
    loss.restored()
    other, _ = make_authority(LIFETIMES, loss.made)
    refused(loss, loss.signed(issuer=other))


def test_an_agent_comes_back_as_itself_alone(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    refused(loss, loss.signed(), cluster=WEST)
    refused(loss, loss.signed(recovery_subject(WEST, AGENT)))


def test_an_agents_own_certificate_is_told_what_to_do_and_does_not_come_back(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    certificate = loss.signed(agent_subject(EDGE, AGENT))
    facts = pki.parse_certificate(certificate)
    told = loss.store.transact(readoption.refusal_of, facts)
    assert told is not None
    assert told.verdict is Verdict.CERTIFICATE_LOST
    refused(loss, certificate)


def test_what_a_list_names_does_not_come_back_and_stays_on_the_hubs_own_lists(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    certificate = loss.signed()
    serial = pki.parse_certificate(certificate).serial
    outcome = loss.restored(Readopts.AUTOMATIC, loss.revoked(serial))
    assert [(each.number, each.revoked, each.unknown) for each in outcome.lists] == [(7, 0, 1)]
    record = loss.back(certificate)
    assert record.purpose is Purpose.SERVING
    assert record.revoked_at is not None
    assert loss.store.transact(readoption.refusal_of, pki.parse_certificate(certificate)) is None
    with pytest.raises(ForbiddenError, match="only a recovery certificate"):
        ask(newcomer, record)
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
        loss.store.transact(lambda tx: revoked.check(tx, EDGE, loss.made))


def test_a_list_of_another_hub_is_refused_whole(loss: Loss) -> None:
    other, _ = make_authority(LIFETIMES, loss.made)
    with pytest.raises(InvalidError, match="not signed by any CA of this hub"):
        loss.restored(Readopts.AUTOMATIC, loss.revoked(1, by=other))
    assert loss.store.transact(restoring.restorations) == ()


def test_restores_are_remembered_and_the_newest_that_fits_decides() -> None:
    start = ManualClock().now()
    early = Restoration(start, start + timedelta(hours=4), Readopts.NEVER)
    late = Restoration(start + timedelta(hours=2), start + timedelta(hours=6), Readopts.APPROVAL)
    assert covering((early, late), start + timedelta(hours=1)) is None, "NEVER, and only the first one lost it"
    assert covering((early, late), start + timedelta(hours=3)) is late
    assert covering((late, early), start + timedelta(hours=3)) is late
    assert covering((), start) is None


def test_no_more_restores_are_remembered_than_there_is_use_for(loss: Loss) -> None:
    for _ in range(KEPT + 2):
        loss.restored()
        loss.clock.advance(timedelta(minutes=1))
    found = loss.store.transact(restoring.restorations)
    assert len(found) == KEPT
    assert found[-1].at > found[0].at


def test_a_returning_agent_changes_nothing_of_a_cluster_that_is_known(loss: Loss, newcomer: Newcomer) -> None:
    newcomer.registered()
    loss.restored()
    before = loss.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE)))
    loss.back(loss.signed())
    assert loss.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE))) == before
