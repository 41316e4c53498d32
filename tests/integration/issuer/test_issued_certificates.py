"""Every kind of certificate that the hub issues, judged by a public linter, and the CA's files.

Allowed findings, with their reasons:
- a CN or O longer than 64 characters: OCM's names are, for clusters named by a UUID or by 63 characters; Kubernetes issues them
- several O in one relative name: Go writes them so, hence every Kubernetes certificate has it
- `localhost` as a DNS name: a single label, which is what agents and tools on the hub's machine dial
"""

import os
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pkilint import loader
from pkilint.pkix import certificate, extension, name
from pkilint.validation import ValidationFindingSeverity

from hub.domain.certificate import Lifetimes, Profile, Purpose
from hub.issuer import LocalIssuer, ServingNames
from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import (
    OPERATOR_GROUP,
    AddOnName,
    CredentialId,
    Subject,
    addon_subject,
    agent_id,
    agent_subject,
    bootstrap_subject,
    cluster_name,
    recovery_subject,
)

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
UUID_NAME = cluster_name("0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70")
LONG_NAME = cluster_name("c" * 63)
SHORT_NAME = cluster_name("edge1")
SHARED_RDN = "pkix.rdn_contains_duplicate_attribute_types at certificate.tbsCertificate.subject.rdnSequence.0"
TOO_LONG = "itu.invalid_asn1_syntax at certificate.tbsCertificate.subject."
SINGLE_LABEL = "pkix.invalid_domain_name_syntax at certificate.tbsCertificate.extensions.5.extnValue.subjectAltName.0.dNSName"
SUBJECTS = {
    "agent": (Purpose.AGENT, agent_subject(SHORT_NAME, agent_id("bcdfg"))),
    "agent of a cluster named by a UUID": (Purpose.AGENT, agent_subject(UUID_NAME, agent_id("bcdfg"))),
    "agent of a cluster with the longest name": (Purpose.AGENT, agent_subject(LONG_NAME, agent_id("bcdfg"))),
    "recovery": (Purpose.RECOVERY, recovery_subject(SHORT_NAME, agent_id("bcdfg"))),
    "add-on": (Purpose.ADDON, addon_subject(SHORT_NAME, AddOnName("work"), "work")),
    "bootstrap": (Purpose.BOOTSTRAP, bootstrap_subject(CredentialId("0123456789abcdef"))),
    "operator": (Purpose.OPERATOR, Subject("admin", frozenset((OPERATOR_GROUP,)))),
    "login": (Purpose.LOGIN, Subject("ann@corp.example", frozenset(("fleet-viewers",)))),
}


def findings(pem: bytes) -> list[str]:
    """What the linter calls an error, as `code at path`."""
    container = certificate.create_pkix_certificate_validator_container(
        certificate.create_decoding_validators(name.ATTRIBUTE_TYPE_MAPPINGS, extension.EXTENSION_MAPPINGS),
        [
            certificate.create_issuer_validator_container([]),
            certificate.create_validity_validator_container(),
            certificate.create_subject_validator_container([]),
            certificate.create_extensions_validator_container([]),
            certificate.create_spki_validator_container([]),
        ],
    )
    document = loader.load_certificate(pem, "certificate")
    return [
        f"{found.finding.code} at {result.node.path}"
        for result in container.validate(document.root)
        for found in result.finding_descriptions
        if found.finding.severity in (ValidationFindingSeverity.ERROR, ValidationFindingSeverity.FATAL)
    ]


@pytest.fixture
def issuer(tmp_path: Path) -> LocalIssuer:
    return LocalIssuer.open(tmp_path, Lifetimes(), NOW)


@pytest.mark.parametrize("kind", SUBJECTS)
def test_the_linter_finds_nothing_in_a_client_certificate_but_long_names(issuer: LocalIssuer, kind: str) -> None:
    purpose, subject = SUBJECTS[kind]
    key = pki.public_key_of(pki.generate_key())
    names = ("work.addon.open-cluster-management.io",) if purpose is Purpose.ADDON else ()
    profile = Profile(purpose, subject, key, NOW - timedelta(minutes=5), NOW + timedelta(days=30), dns_names=names)
    found = findings(issuer.issue(profile, pki.random_serial(), NOW).chain)
    too_long = [value for value in (subject.common_name, *subject.organizations) if len(value) > 64]
    others = [each for each in found if not each.startswith(TOO_LONG)]
    assert len(found) - len(others) == len(too_long)
    assert others == ([SHARED_RDN] if len(subject.organizations) > 1 else [])


def test_every_purpose_is_looked_at() -> None:
    assert {purpose for purpose, _ in SUBJECTS.values()} | {Purpose.SERVING} == {*Purpose}, "serving: the next test"


def test_the_linter_finds_nothing_in_a_ca_that_another_has_signed(issuer: LocalIssuer, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    next_ca = LocalIssuer.open(other, Lifetimes(), NOW)
    assert findings(issuer.cross_sign(next_ca.trust_bundle)) == []


def test_the_linter_finds_nothing_in_the_ca_and_the_serving_certificate(issuer: LocalIssuer, tmp_path: Path) -> None:
    names = ServingNames(("localhost", "hub.example"), ("127.0.0.1",))
    assert findings(issuer.trust_bundle) == []
    assert findings(issuer.serving(tmp_path, names, Lifetimes(), NOW).chain) == [SINGLE_LABEL]


def test_the_ca_is_made_once_and_its_files_are_private(issuer: LocalIssuer, tmp_path: Path) -> None:
    again = LocalIssuer.open(tmp_path, Lifetimes(), NOW)
    assert (issuer.created, again.created) == (True, False)
    assert again.trust_bundle == issuer.trust_bundle
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key"}
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("gone", ["ca.crt", "ca.key"])
def test_half_of_a_ca_is_an_error_and_never_replaced(issuer: LocalIssuer, tmp_path: Path, gone: str) -> None:
    del issuer
    (tmp_path / gone).unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidError, match=rf"{gone} is missing"):
        LocalIssuer.open(tmp_path, Lifetimes(), NOW)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"half a key", pki.generate_key()], ids=["empty", "broken", "another's"])
def test_a_key_that_does_not_belong_is_an_error_and_never_replaced(issuer: LocalIssuer, tmp_path: Path, content: bytes) -> None:
    del issuer
    (tmp_path / "ca.key").write_bytes(content)
    with pytest.raises(InvalidError, match="cannot be used"):
        LocalIssuer.open(tmp_path, Lifetimes(), NOW)
    assert (tmp_path / "ca.key").read_bytes() == content


def test_the_serving_certificate_is_kept_until_its_names_or_its_time_are_over(issuer: LocalIssuer, tmp_path: Path) -> None:
    names, lifetimes = ServingNames(("localhost",), ("127.0.0.1",)), Lifetimes()
    first = issuer.serving(tmp_path, names, lifetimes, NOW)
    assert issuer.serving(tmp_path, names, lifetimes, NOW + timedelta(days=200)) == first
    assert issuer.serving(tmp_path, replace(names, dns_names=("localhost", "more")), lifetimes, NOW) != first
    second = issuer.serving(tmp_path, names, lifetimes, NOW)
    assert issuer.serving(tmp_path, names, lifetimes, NOW + timedelta(days=260)) != second
    facts = pki.parse_certificate(second.chain)
    assert facts.not_before == NOW - timedelta(hours=48)
    assert stat.S_IMODE(os.stat(tmp_path / "serving.key").st_mode) == 0o600  # noqa: PTH116 - the mode alone


def test_every_leaf_ends_with_the_ca_at_the_latest(issuer: LocalIssuer) -> None:
    key = pki.public_key_of(pki.generate_key())
    profile = Profile(Purpose.AGENT, agent_subject(SHORT_NAME, agent_id("a")), key, NOW, NOW + timedelta(days=4000))
    issued = issuer.issue(profile, pki.random_serial(), NOW)
    end = pki.parse_certificate(issuer.trust_bundle).not_after
    assert pki.parse_certificate(issued.chain).not_after == issued.not_after == end == NOW + timedelta(days=3650)
