"""Parses certificates and revocation lists (RFC 5280) into plain values. Signs revocation lists."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from machinery.errors import InvalidError
from machinery.identity import CertificateSubject, SerialNumber
from machinery.pki import keys, names

DER_SEQUENCE = b"\x30"

E = TypeVar("E", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The content of one certificate. Instants are aware, in UTC."""

    subject: CertificateSubject
    issuer: CertificateSubject
    serial: SerialNumber
    not_before: datetime
    not_after: datetime
    public_key: bytes
    """The public key (DER SubjectPublicKeyInfo)."""
    key_hash: str
    fingerprint: str
    """Hex SHA-256 of the DER certificate."""
    is_ca: bool
    subject_key_id: bytes | None = None
    authority_key_id: bytes | None = None
    client_auth: bool = False
    server_auth: bool = False
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


class Usage(StrEnum):
    """Extended key usage of a certificate."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Plan:
    """All fields of a certificate to issue."""

    subject: CertificateSubject
    public_key: bytes
    """The public key (DER SubjectPublicKeyInfo)."""
    serial: SerialNumber
    not_before: datetime
    not_after: datetime
    usage: Usage = Usage.CLIENT
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()


def parse_certificate(encoded: bytes) -> CertificateFacts:
    """Parse a certificate in DER, or the first certificate in PEM. Raises InvalidError."""
    return facts_of(load_certificate(encoded))


def end_of(encoded: bytes) -> datetime:
    """Return the end of a certificate (DER, or the first in PEM) without parsing all its fields. Raises InvalidError."""
    return load_certificate(encoded).not_valid_after_utc


def parse_chain(pem: bytes) -> tuple[CertificateFacts, ...]:
    """Parse all certificates of a PEM file in order, at least one. Raises InvalidError."""
    return tuple(facts_of(certificate) for certificate in load_chain(pem))


def split_bundle(pem: bytes) -> tuple[bytes, ...]:
    """Split a PEM file into single certificates in order, at least one. Raises InvalidError."""
    return tuple(certificate.public_bytes(serialization.Encoding.PEM) for certificate in load_chain(pem))


def key_matches(certificate: bytes, key: bytes) -> bool:
    """Whether the first certificate (DER or PEM) has the public key of `key` (PEM). Raises InvalidError if unreadable."""
    return parse_certificate(certificate).public_key == keys.public_key_of(key)


def is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Whether the CA `authority` is the named issuer of `certificate` and has signed it. Each: DER, or the first one in PEM."""
    issued, issuer = load_certificate(certificate), load_certificate(authority)
    try:
        names.verify_issuer(issued, issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def load_certificate(encoded: bytes) -> x509.Certificate:
    """Load a certificate in DER, or the first certificate in PEM, for this package. Raises InvalidError."""
    try:
        if encoded.startswith(DER_SEQUENCE):
            return x509.load_der_x509_certificate(encoded)
        return x509.load_pem_x509_certificate(encoded)
    except names.UNREADABLE:
        raise InvalidError("the certificate cannot be read: expected PEM or DER") from None


def load_chain(pem: bytes) -> list[x509.Certificate]:
    """Load all certificates of a PEM file, for this package. Raises InvalidError."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except names.UNREADABLE:
        raise InvalidError("no certificate can be read: expected PEM blocks of type CERTIFICATE") from None


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    """Return the content of a certificate, for this package. Raises InvalidError."""
    try:
        key = keys.encode_public_key(certificate.public_key())
        extensions = Extensions(certificate)
        subject, issuer = names.names_of(certificate)
        usages, constraints = extensions.of(x509.ExtendedKeyUsage), extensions.of(x509.BasicConstraints)
        alternatives = extensions.of(x509.SubjectAlternativeName)
        own_id, authority_id = extensions.of(x509.SubjectKeyIdentifier), extensions.of(x509.AuthorityKeyIdentifier)
        return CertificateFacts(
            subject=subject,
            issuer=issuer,
            serial=SerialNumber(certificate.serial_number),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            public_key=key,
            key_hash=keys.key_hash(key),
            fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
            is_ca=constraints is not None and constraints.ca,
            subject_key_id=own_id.digest if own_id else None,
            authority_key_id=authority_id.key_identifier if authority_id else None,
            client_auth=usages is not None and ExtendedKeyUsageOID.CLIENT_AUTH in usages,
            server_auth=usages is not None and ExtendedKeyUsageOID.SERVER_AUTH in usages,
            dns_names=tuple(alternatives.get_values_for_type(x509.DNSName)) if alternatives else (),
            ip_addresses=tuple(str(ip) for ip in alternatives.get_values_for_type(x509.IPAddress)) if alternatives else (),
        )
    except names.UNREADABLE:
        raise InvalidError("the certificate cannot be decoded") from None


class Extensions:
    """A certificate's extensions by class, for this package. The library itself searches all extensions on each access."""

    def __init__(self, certificate: x509.Certificate) -> None:
        self._by_class = {type(extension.value): extension for extension in certificate.extensions}

    def of(self, kind: type[E]) -> E | None:
        found: x509.Extension[Any] | None = self._by_class.get(kind)
        return None if found is None else found.value

    def is_critical(self, kind: type[x509.ExtensionType]) -> bool:
        """Whether the extension is present and critical."""
        found = self._by_class.get(kind)
        return found is not None and found.critical


_NO_WORDS = (x509.ReasonFlags.unspecified, x509.ReasonFlags.remove_from_crl)
REASONS = tuple(flag.value for flag in x509.ReasonFlags if flag not in _NO_WORDS)
"""Reason codes of RFC 5280: keyCompromise, privilegeWithdrawn, ... An entry may also have no reason code."""


@dataclass(frozen=True, slots=True, order=True)
class RevokedSerial:
    """One entry of a revocation list. `at`: the time of the revocation. `reason`: one of REASONS, or empty."""

    serial: SerialNumber
    at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Content of a revocation list. Instants have a precision of one second."""

    number: int
    """The CRL number. It is higher than in every earlier list of the same CA."""
    this_update: datetime
    next_update: datetime
    entries: tuple[RevokedSerial, ...] = ()
    issuer: str = ""
    """The issuer of a parsed list, in the notation of RFC 4514."""


def sign_list(
    content: RevocationList,
    issuer: x509.Name,
    own_id: x509.SubjectKeyIdentifier,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
) -> bytes:
    """Sign a revocation list with `key`, the key of the CA `issuer`. Return DER."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer)
        .last_update(content.this_update)
        .next_update(content.next_update)
        .add_extension(x509.CRLNumber(content.number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False)
    )
    for entry in sorted(content.entries):
        revoked = x509.RevokedCertificateBuilder().serial_number(entry.serial).revocation_date(entry.at)
        if entry.reason:
            revoked = revoked.add_extension(x509.CRLReason(x509.ReasonFlags(entry.reason)), critical=False)
        builder = builder.add_revoked_certificate(revoked.build())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def parse_list(encoded: bytes) -> RevocationList:
    """Parse a revocation list (DER or PEM) without verifying its signature. Raises InvalidError."""
    found = _load(encoded)
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    entries = []
    for each in found:
        try:
            reason = each.extensions.get_extension_for_class(x509.CRLReason).value.reason.value
        except x509.ExtensionNotFound:
            reason = ""
        entries.append(RevokedSerial(SerialNumber(each.serial_number), each.revocation_date_utc, reason))
    ends = found.next_update_utc or found.last_update_utc
    return RevocationList(number, found.last_update_utc, ends, tuple(entries), found.issuer.rfc4514_string())


def is_list_of(encoded: bytes, authority: bytes) -> bool:
    """Whether the CA (PEM) has signed this revocation list (DER or PEM). Raises InvalidError for unreadable input."""
    key = load_certificate(authority).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return False
    return _load(encoded).is_signature_valid(key)


def list_to_pem(der: bytes) -> bytes:
    """Convert a revocation list from DER to PEM. Raises InvalidError."""
    return _load(der).public_bytes(serialization.Encoding.PEM)


def _load(encoded: bytes) -> x509.CertificateRevocationList:
    try:
        return x509.load_der_x509_crl(encoded) if encoded.startswith(DER_SEQUENCE) else x509.load_pem_x509_crl(encoded)
    except ValueError:
        raise InvalidError("the revocation list cannot be read") from None
