"""Certificate revocation lists (RFC 5280, section 5), for verifiers that cannot query the hub."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from machinery.errors import InvalidError
from machinery.identity import SerialNumber
from machinery.pki.certificates import DER_SEQUENCE, load_certificate

_NO_WORDS = (x509.ReasonFlags.unspecified, x509.ReasonFlags.remove_from_crl)
REASONS = tuple(flag.value for flag in x509.ReasonFlags if flag not in _NO_WORDS)
"""Reason codes of RFC 5280: keyCompromise, privilegeWithdrawn, ... An entry without one has no specific reason."""


@dataclass(frozen=True, slots=True, order=True)
class RevokedSerial:
    """One entry of a list. `reason`: one of REASONS, or empty."""

    serial: SerialNumber
    at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Content of a list without its issuer. Instants have a precision of one second."""

    number: int
    """Higher than the number of every earlier list of the same CA."""
    this_update: datetime
    next_update: datetime
    entries: tuple[RevokedSerial, ...] = ()


@dataclass(frozen=True, slots=True)
class SignedList:
    """A parsed list. `issuer`: RFC 4514."""

    issuer: str
    content: RevocationList


def sign_list(
    content: RevocationList,
    issuer: x509.Name,
    own_id: x509.SubjectKeyIdentifier,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> bytes:
    """Sign the list with the key of the CA `issuer`; return DER."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer)
        .last_update(content.this_update)
        .next_update(content.next_update)
        .add_extension(x509.CRLNumber(content.number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False)
    )
    for entry in sorted(content.entries):
        builder = builder.add_revoked_certificate(_entry(entry))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def parse_list(encoded: bytes) -> SignedList:
    """Parse a list (DER or PEM) without verifying its signature. Raises InvalidError."""
    found = _load(encoded)
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    ends = found.next_update_utc or found.last_update_utc
    content = RevocationList(number, found.last_update_utc, ends, tuple(_read(found)))
    return SignedList(found.issuer.rfc4514_string(), content)


def is_list_of(encoded: bytes, authority: bytes) -> bool:
    """Whether the CA (PEM) has signed this list (DER or PEM). Raises InvalidError for unreadable input."""
    key = load_certificate(authority).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return False
    return _load(encoded).is_signature_valid(key)


def list_to_pem(der: bytes) -> bytes:
    """Convert a list from DER to PEM. Raises InvalidError."""
    return _load(der).public_bytes(serialization.Encoding.PEM)


def _load(encoded: bytes) -> x509.CertificateRevocationList:
    try:
        return x509.load_der_x509_crl(encoded) if encoded.startswith(DER_SEQUENCE) else x509.load_pem_x509_crl(encoded)
    except ValueError:
        raise InvalidError("the revocation list cannot be read") from None


def _entry(entry: RevokedSerial) -> x509.RevokedCertificate:
    builder = x509.RevokedCertificateBuilder().serial_number(entry.serial).revocation_date(entry.at)
    if entry.reason:
        builder = builder.add_extension(x509.CRLReason(x509.ReasonFlags(entry.reason)), critical=False)
    return builder.build()


def _read(found: x509.CertificateRevocationList) -> Iterable[RevokedSerial]:
    for each in found:
        try:
            reason = each.extensions.get_extension_for_class(x509.CRLReason).value.reason.value
        except x509.ExtensionNotFound:
            reason = ""
        yield RevokedSerial(SerialNumber(each.serial_number), each.revocation_date_utc, reason)
