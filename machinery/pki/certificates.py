"""Parsing of certificates into plain values; the library's certificate objects stay in this package."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
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
    """DER SubjectPublicKeyInfo."""
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


def parse_certificate(encoded: bytes) -> CertificateFacts:
    """Parse a certificate in DER, or the first one in PEM. Raises InvalidError."""
    return facts_of(load_certificate(encoded))


def parse_chain(pem: bytes) -> tuple[CertificateFacts, ...]:
    """Parse all certificates of a PEM file in order, at least one. Raises InvalidError."""
    return tuple(facts_of(certificate) for certificate in load_chain(pem))


def split_bundle(pem: bytes) -> tuple[bytes, ...]:
    """Split a PEM file into single certificates in order, at least one. Raises InvalidError."""
    return tuple(certificate.public_bytes(serialization.Encoding.PEM) for certificate in load_chain(pem))


def key_matches(certificate: bytes, key: bytes) -> bool:
    """Whether the (first) certificate belongs to this private key (PEM). Raises InvalidError for unreadable input."""
    return parse_certificate(certificate).public_key == keys.public_key_of(key)


def is_issued_by(certificate: bytes, authority: bytes) -> bool:
    """Whether `certificate` names `authority` as its issuer and has its signature (the first certificate of each)."""
    return is_issued(load_certificate(certificate), load_certificate(authority))


def encode_pem(der: bytes) -> bytes:
    """Convert a certificate from DER to PEM. Raises InvalidError."""
    return load_certificate(der).public_bytes(serialization.Encoding.PEM)


def load_certificate(encoded: bytes) -> x509.Certificate:
    """For this package."""
    try:
        if encoded.startswith(DER_SEQUENCE):
            return x509.load_der_x509_certificate(encoded)
        return x509.load_pem_x509_certificate(encoded)
    except names.UNREADABLE:
        raise InvalidError("the certificate cannot be read: expected PEM or DER") from None


def load_chain(pem: bytes) -> list[x509.Certificate]:
    """For this package."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except names.UNREADABLE:
        raise InvalidError("no certificate can be read: expected PEM blocks of type CERTIFICATE") from None


def is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """For this package."""
    try:
        names.verify_issuer(certificate, authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    """For this package."""
    try:
        return _facts(certificate)
    except names.UNREADABLE:
        raise InvalidError("the certificate cannot be decoded") from None


def _facts(certificate: x509.Certificate) -> CertificateFacts:
    key = keys.encode_public_key(certificate.public_key())
    extensions = extensions_of(certificate)
    usages, constraints = extensions.of(x509.ExtendedKeyUsage), extensions.of(x509.BasicConstraints)
    alternatives = extensions.of(x509.SubjectAlternativeName)
    own_id, authority_id = extensions.of(x509.SubjectKeyIdentifier), extensions.of(x509.AuthorityKeyIdentifier)
    subject, issuer = names.names_of(certificate)
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


class Extensions:
    """For this package: a certificate's extensions by class. The library searches all of them on each access."""

    def __init__(self, extensions: x509.Extensions) -> None:
        self._by_class = {type(extension.value): extension for extension in extensions}

    def of(self, kind: type[E]) -> E | None:
        found: x509.Extension[Any] | None = self._by_class.get(kind)
        return None if found is None else found.value

    def is_critical(self, kind: type[x509.ExtensionType]) -> bool:
        """Whether the extension is present and critical."""
        found = self._by_class.get(kind)
        return found is not None and found.critical


def extensions_of(certificate: x509.Certificate) -> Extensions:
    """For this package."""
    return Extensions(certificate.extensions)
