"""The check after the signature: a certificate that is not what was planned, in any field or extension, is found out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from machinery import pki
from machinery.errors import InvalidError
from machinery.identity import SerialNumber, Subject, agent_id, agent_subject, cluster_name
from machinery.pki.lint import lint_certificate, lint_plan

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
CA_KEY = pki.generate_key()
AUTHORITY = pki.create_authority(
    Subject("muster-ca-1"), CA_KEY, pki.random_serial(), NOW - timedelta(hours=48), NOW + timedelta(days=3650)
)
KEY = ec.generate_private_key(ec.SECP256R1()).public_key()
OTHER_KEY = ec.generate_private_key(ec.SECP256R1()).public_key()
DER, SPKI = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
PLAN = pki.Plan(
    subject=agent_subject(cluster_name("edge1"), agent_id("bcdfg")),
    public_key=KEY.public_bytes(DER, SPKI),
    serial=pki.random_serial(),
    not_before=NOW - timedelta(minutes=5),
    not_after=NOW + timedelta(days=30),
)
GOOD = x509.load_pem_x509_certificate(AUTHORITY.sign(PLAN))
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def usage(**more: bool) -> x509.KeyUsage:
    allowed = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"), False
    )
    return x509.KeyUsage(**{"digital_signature": True, **allowed, "encipher_only": False, "decipher_only": False, **more})


def signed(
    *put: tuple[x509.ExtensionType, bool],
    without: type[x509.ExtensionType] | None = None,
    subject: x509.Name | None = None,
    key: ec.EllipticCurvePublicKey = KEY,
    digest: hashes.SHA384 | None = None,
) -> x509.Certificate:
    """The good certificate with extensions put in (or in place of the one of their class), one left out, or another field."""
    kinds = {type(value) for value, _ in put} | {without}
    kept = [(one.value, one.critical) for one in GOOD.extensions if type(one.value) not in kinds]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject or GOOD.subject)
        .issuer_name(GOOD.issuer)
        .public_key(key)
        .serial_number(GOOD.serial_number)
        .not_valid_before(GOOD.not_valid_before_utc)
        .not_valid_after(GOOD.not_valid_after_utc)
    )
    for value, critical in (*kept, *put):
        builder = builder.add_extension(value, critical)
    signing = serialization.load_pem_private_key(CA_KEY, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    return builder.sign(signing, digest or hashes.SHA256())


def findings(certificate: x509.Certificate) -> list[str]:
    return lint_certificate(certificate, PLAN, AUTHORITY.facts, serving=False)


def test_what_the_authority_signs_is_clean_and_so_is_its_copy() -> None:
    assert findings(GOOD) == findings(signed()) == []


TITLE = x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.TITLE, "of another")])
ROGUES = {
    "a CA": (signed((x509.BasicConstraints(ca=True, path_length=None), True)), "it is a CA"),
    "no word on being a CA": (signed(without=x509.BasicConstraints), "it lacks extensions: 2.5.29.19"),
    "constraints that may be ignored": (signed((x509.BasicConstraints(ca=False, path_length=None), False)), "not critical"),
    "usage that may be ignored": (signed((usage(), False)), "KeyUsage is not critical"),
    "no usage": (signed(without=x509.KeyUsage), "it lacks extensions: 2.5.29.15"),
    "signs certificates": (signed((usage(key_cert_sign=True), True)), "KeyUsage allows signing certificates"),
    "signs CRLs": (signed((usage(crl_sign=True), True)), "KeyUsage allows signing certificates"),
    "encrypts": (signed((usage(key_encipherment=True), True)), "KeyUsage allows more than signatures"),
    "no signatures": (signed((usage(digital_signature=False), True)), "KeyUsage lacks digitalSignature"),
    "a server, too": (signed((x509.ExtendedKeyUsage([CLIENT, SERVER]), False)), "the extended usage does not fit"),
    "any use": (signed((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), False)), "the extended usage"),
    "no extended usage": (signed(without=x509.ExtendedKeyUsage), "it lacks extensions: 2.5.29.37"),
    "no SKI": (signed(without=x509.SubjectKeyIdentifier), "it lacks extensions: 2.5.29.14"),
    "another's SKI": (signed((x509.SubjectKeyIdentifier.from_public_key(OTHER_KEY), False)), "subject key identifier"),
    "no AKI": (signed(without=x509.AuthorityKeyIdentifier), "it lacks extensions: 2.5.29.35"),
    "another's AKI": (
        signed((x509.AuthorityKeyIdentifier.from_issuer_public_key(OTHER_KEY), False)),
        "the authority key identifier is not the CA's",
    ),
    "names that nobody planned": (
        signed((x509.SubjectAlternativeName([x509.DNSName("hub.example")]), False)),
        "it has alternative names that were not planned",
    ),
    "an e-mail address": (
        signed((x509.SubjectAlternativeName([x509.RFC822Name("a@b.example")]), False)),
        "it has extensions that none of ours has: 2.5.29.17",
    ),
    "an extension of a request": (
        signed((x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00"), False)),
        "it has extensions that none of ours has: 1.3.6.1.4.1.99999.1",
    ),
    "one more attribute": (signed(subject=x509.Name([*GOOD.subject.rdns, TITLE])), "is not spelled as planned, or says more"),
    "another order": (signed(subject=x509.Name([*reversed(GOOD.subject.rdns)])), "is not spelled as planned, or says more"),
    "another key": (signed(key=OTHER_KEY), "the key is not the planned one"),
    "another digest": (signed(digest=hashes.SHA384()), "it is not signed with SHA-256"),
}


@pytest.mark.parametrize("kind", ROGUES)
def test_what_was_not_planned_is_found_in_a_signed_certificate(kind: str) -> None:
    certificate, finding = ROGUES[kind]
    assert [found for found in findings(certificate) if finding in found], findings(certificate)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"serial": pki.random_serial()}, "the serial is not the planned one"),
        ({"not_before": NOW - timedelta(minutes=4)}, "the beginning is not the planned one"),
        ({"not_after": NOW + timedelta(days=31)}, "the end is not the planned one"),
        ({"subject": agent_subject(cluster_name("edge2"), agent_id("bcdfg"))}, "the subject is not the planned one"),
        ({"dns_names": ("hub.example",)}, "the DNS names are not the planned ones"),
        ({"ip_addresses": ("127.0.0.1",)}, "the IP addresses are not the planned ones"),
    ],
)
def test_each_field_is_compared_with_the_plan(change: dict[str, object], finding: str) -> None:
    plan = replace(PLAN, **change)  # type: ignore[arg-type]
    assert finding in lint_certificate(GOOD, plan, AUTHORITY.facts, serving=False)


@pytest.mark.parametrize("bits", [1, 8, 64])
def test_a_serial_that_can_be_guessed_is_not_signed(bits: int) -> None:
    found = lint_plan(replace(PLAN, serial=SerialNumber(1 << (bits - 1))), AUTHORITY.facts, serving=False)
    assert found == ["the serial is so short that it can be guessed"]


UNUSABLE: dict[str, Any] = {
    "P-521": ec.generate_private_key(ec.SECP521R1()).public_key(),
    "secp256k1": ec.generate_private_key(ec.SECP256K1()).public_key(),
    "Ed25519": ed25519.Ed25519PrivateKey.generate().public_key(),
    "RSA 1024": rsa.generate_private_key(65537, 1024).public_key(),  # noqa: S505 - that it is weak is the point
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_keys_that_no_handshake_takes_are_refused_before_the_signature(kind: str) -> None:
    with pytest.raises(InvalidError, match=r"keys: use ECDSA|an RSA key must have"):
        lint_plan(replace(PLAN, public_key=UNUSABLE[kind].public_bytes(DER, SPKI)), AUTHORITY.facts, serving=False)


def test_bytes_that_are_no_key_are_refused_before_the_signature() -> None:
    with pytest.raises(InvalidError, match="the public key cannot be read"):
        AUTHORITY.sign(replace(PLAN, public_key=b"no key"))
