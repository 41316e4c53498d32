"""Certificate signing requests: what is refused, and why. Nothing that arrives makes the reader fall."""

import base64
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from machinery import pki
from machinery.errors import InvalidError, TooLargeError
from machinery.identity import Subject
from tests.trials import examples

SUBJECT = Subject("cn", frozenset(("o",)))
GOOD = pki.build_request(SUBJECT, pki.generate_key(), ("a.example",))
DER = base64.b64decode(b"".join(GOOD.splitlines()[1:-1]))


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE REQUEST-----\n"


def signed_by(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cn")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, algorithm)
    return request.public_bytes(serialization.Encoding.PEM)


def test_a_good_request_says_what_it_is() -> None:
    facts = pki.check_request(GOOD)
    assert (facts.subject, facts.key_kind, facts.key_size, facts.signature_valid) == (SUBJECT, "ECDSA P-256", 256, True)
    assert facts.dns_names == ("a.example",)
    assert facts.pem_size == len(GOOD)


@dataclass(frozen=True)
class Malformed:
    case: str
    pem: bytes


@pytest.mark.parametrize(
    "row",
    [
        Malformed("empty", b""),
        Malformed("not PEM", b"hello"),
        Malformed("two requests", GOOD + GOOD),
        Malformed("text before it", b"hello\n" + GOOD),
        Malformed("a certificate's block", GOOD.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE")),
        Malformed("the old block type", GOOD.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST")),
        Malformed("cut off", pem(DER[:-5])),
        Malformed("more after it", pem(DER + b"\x00")),
        Malformed("bad base64", GOOD.replace(b"\n-----END", b"=A=\n-----END")),
    ],
    ids=lambda row: row.case,
)
def test_what_is_not_exactly_one_request_is_refused(row: Malformed) -> None:
    with pytest.raises(InvalidError) as refused:
        pki.check_request(row.pem)
    assert refused.value.causes[0].field == "spec.request"


def test_an_oversized_request_is_refused_before_it_is_read() -> None:
    with pytest.raises(TooLargeError, match="16384"):
        pki.parse_request(b"\n" * (pki.MAX_REQUEST_BYTES + 1))


def test_a_request_signed_by_another_key_is_refused() -> None:
    one, other = (pki.build_request(SUBJECT, pki.generate_key()) for _ in range(2))
    ders = [bytearray(base64.b64decode(b"".join(each.splitlines()[1:-1]))) for each in (one, other)]
    forged = next(
        forged for cut in range(60, 80) if (forged := pem(bytes(ders[0][:-cut] + ders[1][-cut:]))) and _parses(forged)
    )
    facts = pki.parse_request(forged)
    assert not facts.signature_valid
    with pytest.raises(InvalidError, match="signature"):
        pki.check_request(forged)


def _parses(request: bytes) -> bool:
    try:
        pki.parse_request(request)
    except InvalidError:
        return False
    return True


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (ed25519.Ed25519PrivateKey.generate(), "gRPC's TLS cannot use Ed25519"),
        (ec.generate_private_key(ec.SECP521R1()), "gRPC's TLS cannot use ECDSA P-521"),
        (ec.generate_private_key(ec.SECP256K1()), "gRPC's TLS cannot use ECDSA secp256k1"),
        (rsa.generate_private_key(65537, 1024), "2048"),  # noqa: S505 - too weak on purpose
    ],
    ids=["Ed25519", "P-521", "secp256k1", "RSA 1024"],
)
def test_keys_that_grpc_cannot_use_are_refused_with_that_reason(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey, why: str
) -> None:
    with pytest.raises(InvalidError, match=why):
        pki.check_request(signed_by(key))


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)])
def test_other_keys_that_grpc_can_use_are_taken(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    assert pki.check_request(signed_by(key)).key_refusal is None


@examples(400, 20_000)
@given(position=st.integers(0, len(DER) - 1), value=st.integers(0, 255), cut=st.integers(0, 8))
def test_a_mutated_request_is_read_or_refused_and_never_worse(position: int, value: int, cut: int) -> None:
    mutated = bytearray(DER)
    mutated[position] = value
    try:
        facts = pki.parse_request(pem(bytes(mutated[: len(mutated) - cut])))
    except InvalidError:
        pass
    else:
        assert facts.signature_valid is (bytes(mutated) == DER and cut == 0)


@examples(200, 10_000)
@given(st.binary(max_size=600))
def test_random_bytes_are_refused(junk: bytes) -> None:
    for candidate in (junk, pem(junk)):
        with pytest.raises(InvalidError):
            pki.parse_request(candidate)
