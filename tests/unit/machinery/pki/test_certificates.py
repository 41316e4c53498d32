"""Requests, the certificates and revocation lists that the CA signs, and the check after the signature."""

import base64
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, strategies as st

from machinery import pki
from machinery.errors import InvalidError, TooLargeError
from machinery.identity import CertificateSubject, SerialNumber, agent_id, agent_subject, cluster_name
from machinery.pki import RevocationList, RevokedSerial
from machinery.pki.keys import key_refusal
from machinery.pki.lint import lint_certificate, lint_plan
from tests.checks import check_refusal, check_refusals, present, refusal
from tests.trials import examples

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
CA_KEY = pki.generate_key()


def authority(key: bytes) -> pki.CertificateAuthority:
    times = NOW - timedelta(hours=48), NOW + timedelta(days=3650)
    return pki.create_authority(CertificateSubject("muster-ca-1"), key, pki.random_serial(), *times)


AUTHORITY = authority(CA_KEY)
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
    extensions = [x509.Extension(value.oid, critical, value) for value, critical in (*kept, *put)]
    times = GOOD.not_valid_before_utc, GOOD.not_valid_after_utc
    builder = x509.CertificateBuilder(GOOD.issuer, subject or GOOD.subject, key, GOOD.serial_number, *times, extensions)
    signing = serialization.load_pem_private_key(CA_KEY, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    return builder.sign(signing, digest or hashes.SHA256())


def findings(certificate: x509.Certificate) -> list[str]:
    return lint_certificate(certificate, PLAN, AUTHORITY.facts)


def test_signed_certificate_that_differs_from_the_plan_is_found() -> None:
    assert findings(GOOD) == findings(signed()) == []

    for kind, (certificate, finding) in ROGUES.items():
        assert [found for found in findings(certificate) if finding in found], (kind, findings(certificate))

    rows: list[tuple[dict[str, object], str]] = [
        ({"serial": pki.random_serial()}, "the serial is not the planned one"),
        ({"not_before": NOW - timedelta(minutes=4)}, "the beginning is not the planned one"),
        ({"not_after": NOW + timedelta(days=31)}, "the end is not the planned one"),
        ({"subject": agent_subject(cluster_name("edge2"), agent_id("bcdfg"))}, "the subject is not the planned one"),
        ({"dns_names": ("hub.example",)}, "the DNS names are not the planned ones"),
        ({"ip_addresses": ("127.0.0.1",)}, "the IP addresses are not the planned ones"),
    ]
    for change, finding in rows:
        plan = replace(PLAN, **change)  # type: ignore[arg-type]
        assert finding in lint_certificate(GOOD, plan, AUTHORITY.facts), (change, finding)


def named(name: x509.GeneralName) -> x509.Certificate:
    return signed((x509.SubjectAlternativeName([name]), False))


TITLE = x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.TITLE, "of another")])
OTHER_AKI = x509.AuthorityKeyIdentifier.from_issuer_public_key(OTHER_KEY)
ODD = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")
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
    "another's AKI": (signed((OTHER_AKI, False)), "the authority key identifier is not the CA's"),
    "names that nobody planned": (named(x509.DNSName("hub.example")), "it has alternative names that were not planned"),
    "an e-mail address": (named(x509.RFC822Name("a@b.example")), "it has extensions that none of ours has: 2.5.29.17"),
    "an extension of a request": (signed((ODD, False)), "it has extensions that none of ours has: 1.3.6.1.4.1.99999.1"),
    "one more attribute": (signed(subject=x509.Name([*GOOD.subject.rdns, TITLE])), "is not encoded as planned, or has more"),
    "another order": (signed(subject=x509.Name([*reversed(GOOD.subject.rdns)])), "is not encoded as planned, or has more"),
    "another key": (signed(key=OTHER_KEY), "the key is not the planned one"),
    "another digest": (signed(digest=hashes.SHA384()), "it is not signed with SHA-256"),
}


def test_weak_serials_and_keys_are_refused_before_the_signature() -> None:
    for bits in (1, 8, 64):
        found = lint_plan(replace(PLAN, serial=SerialNumber(1 << (bits - 1))), AUTHORITY.facts)
        assert found == ["the serial is so short that it can be guessed"], bits
    keys = [key.public_key().public_bytes(DER, SPKI) for key, _ in UNUSABLE]
    rows = [(key, r"keys: use ECDSA|an RSA key must have") for key in keys]
    check_refusals(InvalidError, lambda key: lint_plan(replace(PLAN, public_key=key), AUTHORITY.facts), rows)
    check_refusal(InvalidError, AUTHORITY.sign, replace(PLAN, public_key=b"no key"), match="the public key cannot be read")


PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
UNUSABLE: list[tuple[PrivateKey, str]] = [
    (ed25519.Ed25519PrivateKey.generate(), "gRPC's TLS cannot use Ed25519"),
    (ec.generate_private_key(ec.SECP521R1()), "gRPC's TLS cannot use ECDSA P-521"),
    (ec.generate_private_key(ec.SECP256K1()), "gRPC's TLS cannot use ECDSA secp256k1"),
    (rsa.generate_private_key(65537, 1024), "2048"),  # noqa: S505 - too weak on purpose
]


def test_signed_certificate_is_as_planned_and_issued_by_this_ca_alone() -> None:
    signed = AUTHORITY.sign(PLAN)
    facts = pki.parse_certificate(signed)
    assert (facts.subject, facts.serial, facts.public_key) == (PLAN.subject, PLAN.serial, PLAN.public_key)
    assert (facts.not_before, facts.not_after) == (PLAN.not_before, PLAN.not_after)
    assert (facts.client_auth, facts.server_auth, facts.is_ca) == (True, False, False)
    assert facts.authority_key_id == AUTHORITY.facts.subject_key_id
    assert pki.is_issued_by(signed, AUTHORITY.certificate)
    assert not pki.is_issued_by(AUTHORITY.sign(PLAN), authority(pki.generate_key()).certificate)


def test_plan_that_breaks_a_rule_is_never_signed() -> None:
    rows: list[tuple[dict[str, object], str]] = [
        ({"not_after": NOW + timedelta(days=4000)}, "outlives the CA"),
        ({"not_before": NOW - timedelta(days=3)}, "begins before the CA"),
        ({"not_after": NOW - timedelta(days=1)}, "ends before it begins"),
        ({"serial": SerialNumber(0)}, "serial"),
        ({"subject": CertificateSubject("")}, "no CN"),
        ({"usage": pki.Usage.SERVER}, "alternative names"),
    ]
    check_refusals(RuntimeError, lambda change: AUTHORITY.sign(replace(PLAN, **change)), rows)


def test_authority_needs_a_matching_ca_pair_and_hides_key_material() -> None:
    check_refusal(InvalidError, pki.CertificateAuthority, AUTHORITY.certificate, pki.generate_key(), match="does not belong to")
    key = pki.generate_key()
    with pytest.raises(InvalidError, match="not one of a certificate authority"):
        pki.CertificateAuthority(AUTHORITY.sign(replace(PLAN, public_key=pki.public_key_of(key))), key)
    broken = pki.generate_key().replace(b"M", b"N")
    refused = present(refusal(InvalidError, pki.public_key_of, broken))
    assert all(line not in str(refused).encode() for line in broken.splitlines()[1:-1])


STOLEN = RevokedSerial(SerialNumber(2**158 + 7), NOW - timedelta(hours=1), "keyCompromise")
PLAIN = RevokedSerial(SerialNumber(5), NOW - timedelta(hours=2))
LIST = RevocationList(7, NOW, NOW + timedelta(days=1), (STOLEN, PLAIN))


def test_revocation_list_is_signed_with_times_and_reasons_and_round_trips() -> None:
    der = AUTHORITY.sign_list(LIST)
    found, ca = x509.load_der_x509_crl(der), x509.load_pem_x509_certificate(AUTHORITY.certificate)
    key = ca.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert found.is_signature_valid(key)
    assert (found.issuer, found.last_update_utc, found.next_update_utc) == (ca.subject, LIST.this_update, LIST.next_update)
    own_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == own_id
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == LIST.number

    stolen = present(found.get_revoked_certificate_by_serial_number(STOLEN.serial))
    plain = present(found.get_revoked_certificate_by_serial_number(PLAIN.serial))
    assert stolen.revocation_date_utc == STOLEN.at
    assert stolen.extensions.get_extension_for_class(x509.CRLReason).value.reason is x509.ReasonFlags.key_compromise
    assert (list(plain.extensions), found.get_revoked_certificate_by_serial_number(6)) == ([], None)

    assert pki.parse_list(der) == replace(LIST, entries=(PLAIN, STOLEN), issuer="CN=muster-ca-1")
    entries = tuple(RevokedSerial(SerialNumber(place + 1), NOW, reason) for place, reason in enumerate(pki.REASONS))
    assert pki.parse_list(AUTHORITY.sign_list(replace(LIST, entries=entries))).entries == entries
    assert "unspecified" not in pki.REASONS  # an entry of no particular reason has no extension for it (RFC 5280, 5.3.1)
    assert x509.load_pem_x509_crl(pki.list_to_pem(der)) == x509.load_der_x509_crl(der)
    check_refusal(InvalidError, pki.parse_list, b"no list", match="cannot be read")


REQUESTED = CertificateSubject("cn", frozenset(("o",)))
REQUEST = pki.build_request(REQUESTED, pki.generate_key(), ("a.example",))
REQUEST_DER = base64.b64decode(b"".join(REQUEST.splitlines()[1:-1]))
CN_ONLY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cn")])


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE REQUEST-----\n"


def signed_by(key: PrivateKey, name: x509.Name = CN_ONLY) -> bytes:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, algorithm)
    return request.public_bytes(serialization.Encoding.PEM)


def test_request_is_one_well_formed_csr_signed_by_its_own_key() -> None:
    facts = pki.check_request(REQUEST)
    assert (facts.subject, facts.signature_valid, facts.dns_names) == (REQUESTED, True, ("a.example",))

    malformed = {
        "empty": b"",
        "not PEM": b"hello",
        "two requests": REQUEST + REQUEST,
        "text before it": b"hello\n" + REQUEST,
        "a certificate's block": REQUEST.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"),
        "the old block type": REQUEST.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
        "cut off": pem(REQUEST_DER[:-5]),
        "more after it": pem(REQUEST_DER + b"\x00"),
        "bad base64": REQUEST.replace(b"\n-----END", b"=A=\n-----END"),
    }
    for case, request in malformed.items():
        assert present(refusal(InvalidError, pki.check_request, request)).causes[0].field == "spec.request", case

    check_refusal(TooLargeError, pki.parse_request, b"\n" * (pki.MAX_REQUEST_BYTES + 1), match="16384")

    other = bytearray(REQUEST_DER)
    other[other.index(b"a.example")] = ord("b")
    forged = pem(bytes(other))
    facts = pki.parse_request(forged)
    assert (facts.dns_names, facts.signature_valid) == (("b.example",), False)
    check_refusal(InvalidError, pki.check_request, forged, match="signature")


def test_only_keys_that_grpc_can_use_are_accepted() -> None:
    rows = (*UNUSABLE, (rsa.generate_private_key(3, 2048), "an exponent from 65537 on"))
    check_refusals(InvalidError, lambda key: pki.check_request(signed_by(key)), rows)
    numbers = rsa.generate_private_key(65537, 2048).public_key().public_numbers()
    for exponent, refused in ((2**32 - 1, False), (2**32 + 1, True)):
        assert bool(key_refusal(rsa.RSAPublicNumbers(exponent, numbers.n).public_key())) is refused, exponent
    fine: list[PrivateKey] = [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]
    assert [key for key in fine if pki.check_request(signed_by(key)).key_refusal is not None] == []


@examples(400, 20_000)
@given(position=st.integers(0, len(REQUEST_DER) - 1), value=st.integers(0, 255), cut=st.integers(0, 8))
def test_a_mutated_request_is_read_or_refused_and_never_worse(position: int, value: int, cut: int) -> None:
    mutated = bytearray(REQUEST_DER)
    mutated[position] = value
    try:
        facts = pki.parse_request(pem(bytes(mutated[: len(mutated) - cut])))
    except InvalidError:
        pass
    else:  # a mutation may change neither of the two: it can call the last bits of the signature unused if they are 0
        read, signed = map(x509.load_der_x509_csr, (bytes(mutated), REQUEST_DER))
        unchanged = (read.tbs_certrequest_bytes, read.signature) == (signed.tbs_certrequest_bytes, signed.signature)
        assert facts.signature_valid in ({True} if bytes(mutated) == REQUEST_DER else {False, unchanged})


@examples(200, 10_000)
@given(st.binary(max_size=600))
def test_random_bytes_are_refused(junk: bytes) -> None:
    for candidate in (junk, pem(junk)):
        check_refusal(InvalidError, pki.parse_request, candidate)


def test_subjects_round_trip_as_go_encodes_them() -> None:
    for name in (str(UUID(int=7)), "c" * 63, "edge1"):
        subject = agent_subject(cluster_name(name), agent_id("bcdfg"))
        assert pki.check_request(pki.build_request(subject, pki.generate_key())).subject == subject, name

    subject = CertificateSubject("cn", frozenset(("a", "b")), frozenset(("unit",)))
    request = x509.load_pem_x509_csr(pki.build_request(subject, pki.generate_key()))
    kinds = [[part.oid for part in relative] for relative in request.subject.rdns]
    assert kinds == [[NameOID.ORGANIZATION_NAME] * 2, [NameOID.ORGANIZATIONAL_UNIT_NAME], [NameOID.COMMON_NAME]]

    subject = CertificateSubject("zürich@*", frozenset(("gruppe_ä",)))
    assert pki.parse_request(pki.build_request(subject, pki.generate_key())).subject == subject

    two = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.COMMON_NAME, "b")])
    with pytest.raises(InvalidError, match="more than one CN"):
        pki.parse_request(signed_by(ec.generate_private_key(ec.SECP256R1()), two))


def test_reading_names_on_many_threads_leaves_the_warning_filters_alone() -> None:
    request = pki.build_request(agent_subject(cluster_name("c" * 63), agent_id("a")), pki.generate_key())
    before = list(warnings.filters)
    with ThreadPoolExecutor(8) as threads:
        assert len({facts.subject for facts in threads.map(pki.parse_request, [request] * 200)}) == 1
    assert list(warnings.filters) == before
