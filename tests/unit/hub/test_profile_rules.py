"""The last look before a signature: what a certificate of each purpose may say, and for whom."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

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
from tests.checks import check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.issuer import WordIssuer

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


def test_profile_of_each_purpose_is_signed_for_its_holder_alone() -> None:
    check_results(lambda purpose: refusals(profile_of(purpose), GOOD[purpose][1], NOW), [(purpose, []) for purpose in GOOD])
    assert {*GOOD, Purpose.SERVING} == {*Purpose}
    serving = Profile(Purpose.SERVING, Subject("muster-hub"), KEY, BEGIN, END, dns_names=("hub.example",))
    assert refusals(serving, Holder(), NOW), "a serving certificate is not recorded"
    rows = (
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
    )
    expected = [(*row, [f'its subject is none of purpose "{row[0]}" for its holder']) for row in rows]
    check_results(lambda purpose, subject, holder: refusals(profile_of(purpose, subject), holder, NOW), expected)


def test_other_names_other_beginnings_and_past_ends_are_refused() -> None:
    def changed(purpose: Purpose, **more: Any) -> list[str]:
        return refusals(replace(profile_of(purpose), **more), GOOD[purpose][1], NOW)

    for purpose in {*GOOD} - {Purpose.ADDON}:
        for more in ({"dns_names": ("hub.example",)}, {"ip_addresses": ("127.0.0.1",)}):
            assert changed(purpose, **more) == ["it has alternative names that its purpose has not"], (purpose, more)
    for begin in (NOW, NOW - timedelta(minutes=4, seconds=59), NOW + timedelta(hours=1), NOW - timedelta(days=3)):
        assert changed(Purpose.AGENT, not_before=begin) == ["it does not begin five minutes before now"], begin
    assert changed(Purpose.AGENT, not_after=NOW) == ["it has ended already"]
    rows = (
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
    )
    check_results(lambda subject: claims_anothers(subject, EDGE), rows)


def test_defect_of_a_service_or_an_unusable_key_signs_and_records_nothing(store: InlineStore, clock: ManualClock) -> None:
    issuer, now = WordIssuer(), clock.now()
    subject = agent_subject(OTHER, AGENT)
    profile = replace(profile_of(Purpose.AGENT, subject), not_before=now - timedelta(minutes=5), not_after=END)
    with pytest.raises(RuntimeError, match="its subject is none of purpose"):
        store.transact(certificates.sign, issuer, profile, OF_AGENT)
    assert issuer.issued == []
    assert store.transact(lambda tx: tx.certificates.of_cluster(EDGE)) == []
    validity = now - timedelta(days=2), now + timedelta(days=9)
    authority = pki.create_authority(Subject("ca"), pki.generate_key(), pki.random_serial(), *validity)
    with pytest.raises(InvalidError, match="the public key cannot be read"):
        store.transact(operators.admit, "ann", b"no key", LocalIssuer(authority), Lifetimes())


class _ShortIssuer(WordIssuer):
    """Its CA ends before the certificate would."""

    end = NOW

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:
        return replace(super().issue(profile, serial, now), not_after=self.end)


def test_the_record_ends_where_the_certificate_does(store: InlineStore) -> None:
    issued = store.transact(operators.admit, "ann", KEY, _ShortIssuer(), Lifetimes())
    record = present(store.transact(lambda tx: tx.certificates.by_serial(issued.serial)))
    assert record.not_after == _ShortIssuer.end
