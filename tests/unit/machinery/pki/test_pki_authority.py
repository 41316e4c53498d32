"""What the authority signs, what it refuses to sign, and that a public linter agrees."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import SerialNumber, Subject, agent_id, agent_subject, cluster_name

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
KEY = pki.generate_key()
AUTHORITY = pki.create_authority(
    Subject("muster-ca-1"), KEY, pki.random_serial(), NOW - timedelta(hours=48), NOW + timedelta(days=3650)
)
PLAN = pki.Plan(
    subject=agent_subject(cluster_name("edge1"), agent_id("bcdfg")),
    public_key=pki.public_key_of(pki.generate_key()),
    serial=pki.random_serial(),
    not_before=NOW - timedelta(minutes=5),
    not_after=NOW + timedelta(days=30),
)


def test_a_signed_certificate_says_what_was_planned() -> None:
    signed = AUTHORITY.sign(PLAN)
    facts = pki.parse_certificate(signed)
    assert (facts.subject, facts.serial, facts.public_key) == (PLAN.subject, PLAN.serial, PLAN.public_key)
    assert (facts.not_before, facts.not_after) == (PLAN.not_before, PLAN.not_after)
    assert (facts.client_auth, facts.server_auth, facts.is_ca) == (True, False, False)
    assert facts.authority_key_id == AUTHORITY.facts.subject_key_id
    assert pki.is_issued_by(signed, AUTHORITY.certificate)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"not_after": NOW + timedelta(days=4000)}, "outlives the CA"),
        ({"not_before": NOW - timedelta(days=3)}, "begins before the CA"),
        ({"not_after": NOW - timedelta(days=1)}, "ends before it begins"),
        ({"serial": SerialNumber(0)}, "serial"),
        ({"subject": Subject("")}, "no CN"),
        ({"usage": pki.Usage.SERVER}, "alternative names"),
    ],
)
def test_what_breaks_a_rule_is_never_signed(change: dict[str, object], finding: str) -> None:
    with pytest.raises(RuntimeError, match=finding):
        AUTHORITY.sign(replace(PLAN, **change))  # type: ignore[arg-type]


def test_a_key_and_a_certificate_that_are_no_pair_make_no_authority() -> None:
    with pytest.raises(InvalidError, match="no pair"):
        pki.Authority(AUTHORITY.certificate, pki.generate_key())


def test_a_leaf_is_no_authority() -> None:
    key = pki.generate_key()
    with pytest.raises(InvalidError, match="not one of a certificate authority"):
        pki.Authority(AUTHORITY.sign(replace(PLAN, public_key=pki.public_key_of(key))), key)


def test_an_unreadable_key_is_told_without_a_part_of_it() -> None:
    broken = pki.generate_key().replace(b"M", b"N")
    with pytest.raises(InvalidError) as refused:
        pki.public_key_of(broken)
    assert all(line not in str(refused.value).encode() for line in broken.splitlines()[1:-1])


def test_another_authority_of_the_same_name_has_not_issued_it() -> None:
    other = pki.create_authority(
        Subject("muster-ca-1"), pki.generate_key(), pki.random_serial(), NOW - timedelta(hours=48), NOW + timedelta(days=30)
    )
    assert not pki.is_issued_by(AUTHORITY.sign(PLAN), other.certificate)
