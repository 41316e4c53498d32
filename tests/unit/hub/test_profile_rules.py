"""The last look before a signature: what a certificate of each purpose may say, and for whom."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.certificate import Holder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.domain.profile import claims_anothers, refusals
from hub.issuer import LocalIssuer
from hub.services import certificates, operators
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from machinery.identity import (
    ALL_CLUSTERS_GROUP,
    BOOTSTRAP_GROUP,
    OPERATOR_GROUP,
    AddOnName,
    AgentId,
    ClusterName,
    CredentialId,
    SerialNumber,
    Subject,
    addon_subject,
    agent_subject,
    bootstrap_subject,
    recovery_subject,
)
from tests.fakes.issuer import WordIssuer
from tests.fakes.memory_store import MemoryStore

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
BEGIN, END = NOW - timedelta(minutes=5), NOW + timedelta(days=30)
EDGE, OTHER, WORK = ClusterName("edge"), ClusterName("other"), AddOnName("work")
AGENT, CREDENTIAL = AgentId("agent-1"), CredentialId("0123456789abcdef")
KEY = pki.public_key_of(pki.generate_key())
OF_AGENT, OF_ADDON = Holder(cluster=EDGE, agent=AGENT), Holder(cluster=EDGE, addon=WORK)
GOOD = {
    Purpose.AGENT: (agent_subject(EDGE, AGENT), OF_AGENT),
    Purpose.RECOVERY: (recovery_subject(EDGE, AGENT), OF_AGENT),
    Purpose.ADDON: (addon_subject(EDGE, WORK, "work"), OF_ADDON),
    Purpose.BOOTSTRAP: (bootstrap_subject(CREDENTIAL), Holder(cluster=EDGE, credential=CREDENTIAL)),
    Purpose.OPERATOR: (Subject("ann", frozenset((OPERATOR_GROUP,))), Holder()),
    Purpose.LOGIN: (Subject("ann", frozenset(("admins",))), Holder()),
}


def profile_of(purpose: Purpose, subject: Subject | None = None) -> Profile:
    names = ("work.addon.open-cluster-management.io",) if purpose is Purpose.ADDON else ()
    return Profile(purpose, subject or GOOD[purpose][0], KEY, BEGIN, END, dns_names=names)


@pytest.mark.parametrize("purpose", GOOD)
def test_what_the_services_decide_is_signed(purpose: Purpose) -> None:
    assert refusals(profile_of(purpose), GOOD[purpose][1], NOW) == []


def test_every_purpose_is_decided_here() -> None:
    assert {*GOOD, Purpose.SERVING} == {*Purpose}
    serving = Profile(Purpose.SERVING, Subject("muster-hub"), KEY, BEGIN, END, dns_names=("hub.example",))
    assert refusals(serving, Holder(), NOW), "a serving certificate is recorded for nobody"


@pytest.mark.parametrize(
    ("purpose", "subject", "holder"),
    [
        (Purpose.AGENT, agent_subject(OTHER, AGENT), OF_AGENT),
        (Purpose.AGENT, agent_subject(EDGE, AgentId("agent-2")), OF_AGENT),
        (Purpose.AGENT, Subject("ann", frozenset((OPERATOR_GROUP,))), OF_AGENT),
        (Purpose.AGENT, agent_subject(EDGE, AGENT), Holder(cluster=EDGE)),
        (Purpose.AGENT, agent_subject(EDGE, AGENT), Holder()),
        (Purpose.RECOVERY, agent_subject(EDGE, AGENT), OF_AGENT),
        (Purpose.RECOVERY, recovery_subject(OTHER, AGENT), OF_AGENT),
        (Purpose.BOOTSTRAP, bootstrap_subject(CREDENTIAL), Holder(cluster=EDGE)),
        (Purpose.BOOTSTRAP, bootstrap_subject(CredentialId("f" * 16)), Holder(credential=CREDENTIAL)),
        (Purpose.ADDON, addon_subject(EDGE, WORK, "work"), Holder(cluster=EDGE)),
        (Purpose.ADDON, agent_subject(EDGE, AGENT), OF_ADDON),
        (Purpose.OPERATOR, agent_subject(EDGE, AGENT), Holder()),
        (Purpose.OPERATOR, Subject("ann", frozenset((BOOTSTRAP_GROUP,))), Holder()),
        (Purpose.OPERATOR, Subject("ann"), OF_AGENT),
        (Purpose.LOGIN, Subject("ann", frozenset((ALL_CLUSTERS_GROUP,))), Holder()),
        (Purpose.LOGIN, recovery_subject(EDGE, AGENT), Holder()),
    ],
)
def test_a_subject_that_is_not_its_holders_is_refused(purpose: Purpose, subject: Subject, holder: Holder) -> None:
    assert refusals(profile_of(purpose, subject), holder, NOW) == [f'its subject is none of purpose "{purpose}" for its holder']


@pytest.mark.parametrize("purpose", [purpose for purpose in GOOD if purpose is not Purpose.ADDON])
@pytest.mark.parametrize("more", [{"dns_names": ("hub.example",)}, {"ip_addresses": ("127.0.0.1",)}])
def test_names_that_a_purpose_has_not_are_refused(purpose: Purpose, more: dict[str, tuple[str, ...]]) -> None:
    profile = replace(profile_of(purpose), **more)  # type: ignore[arg-type]
    assert refusals(profile, GOOD[purpose][1], NOW) == ["it has alternative names that its purpose has not"]


@pytest.mark.parametrize(
    "begin", [NOW, NOW - timedelta(minutes=4, seconds=59), NOW + timedelta(hours=1), NOW - timedelta(days=3)]
)
def test_every_certificate_begins_five_minutes_before_now(begin: datetime) -> None:
    profile = replace(profile_of(Purpose.AGENT), not_before=begin)
    assert refusals(profile, OF_AGENT, NOW) == ["it does not begin five minutes before now"]


def test_what_has_ended_is_not_signed() -> None:
    profile = replace(profile_of(Purpose.AGENT), not_after=NOW)
    assert refusals(profile, OF_AGENT, NOW) == ["it has ended already"]


@pytest.mark.parametrize(
    ("subject", "claims"),
    [
        (addon_subject(EDGE, WORK, "work"), False),
        (Subject("ann", frozenset(("g", "system:authenticated", "system:open-cluster-management:addon:work"))), False),
        (addon_subject(OTHER, WORK, "work"), True),
        (Subject("ann", frozenset((OPERATOR_GROUP,))), True),
        (Subject(OPERATOR_GROUP), True),
        (agent_subject(EDGE, AGENT), True),
        (Subject("ann", frozenset((ALL_CLUSTERS_GROUP,))), True),
        (recovery_subject(EDGE, AGENT), True),
        (bootstrap_subject(CREDENTIAL), True),
        (Subject("ann", frozenset((BOOTSTRAP_GROUP,))), True),
    ],
)
def test_an_addon_has_its_own_names_or_nobodys(subject: Subject, claims: bool) -> None:  # noqa: FBT001 - a table's column
    assert claims_anothers(subject, EDGE) is claims


def test_a_defect_of_a_service_signs_and_records_nothing(clock: ManualClock) -> None:
    store, issuer = MemoryStore(clock), WordIssuer()
    profile = replace(
        profile_of(Purpose.AGENT, agent_subject(OTHER, AGENT)),
        not_before=clock.now() - timedelta(minutes=5),
        not_after=NOW.max.replace(tzinfo=UTC),
    )
    with pytest.raises(RuntimeError, match="its subject is none of purpose"):
        store.transact(certificates.sign, issuer, profile, OF_AGENT)
    assert issuer.issued == []
    assert store.transact(lambda tx: tx.certificates.of_cluster(EDGE)) == []


class _ShortIssuer(WordIssuer):
    """Its CA ends before the certificate would."""

    end = NOW

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:
        return replace(super().issue(profile, serial, now), not_after=self.end)


def test_the_record_ends_where_the_certificate_does(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    issued = store.transact(operators.admit, "ann", KEY, _ShortIssuer(), Lifetimes())
    record = store.transact(lambda tx: tx.certificates.by_serial(issued.serial))
    assert record is not None
    assert record.not_after == _ShortIssuer.end


def test_a_key_that_cannot_be_used_is_told_and_not_signed(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    authority = pki.create_authority(
        Subject("ca"), pki.generate_key(), pki.random_serial(), clock.now() - timedelta(days=2), clock.now() + timedelta(days=9)
    )
    with pytest.raises(InvalidError, match="the public key cannot be read"):
        store.transact(operators.admit, "ann", b"no key", LocalIssuer(authority), Lifetimes())
