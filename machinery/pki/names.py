"""X.509 names, which may be longer than RFC 5280 allows.

OCM's CN and O can contain a UUID or a cluster name of 63 characters, and so exceed RFC 5280's limit of 64. Kubernetes and OCM
issue such names, and every TLS stack reads them. But `cryptography` refuses to build such a name, and warns when it reads one.
Only this module handles names. It suppresses the warning while it reads a name.

Names have the form that Go produces: one relative name with all O, one with all OU, then the CN. The type is PrintableString if
the characters allow this, otherwise UTF8String. Names are parsed by attribute type, not by position.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from threading import Lock

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

from machinery.identity import CertificateSubject

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""All exceptions that the library raises for undecodable input."""
_KNOWN = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
LONGEST_CN = 64
"""Longest CN in bytes that the library accepts without a warning. Other attributes have no limit."""
_PRINTABLE = re.compile(r"[A-Za-z0-9 '()+,\-./:=?]*")
_filters = Lock()
"""`warnings.catch_warnings` is not thread-safe: after two concurrent uses, filters may remain."""


@lru_cache(maxsize=64)
def build(subject: CertificateSubject) -> x509.Name:
    """Return the X.509 name of `subject`. It is cached: the check of the signed certificate needs it."""
    with _long_names() if len(subject.common_name.encode()) > LONGEST_CN else nullcontext():
        parts = [
            x509.RelativeDistinguishedName([_attribute(kind, value) for value in sorted(values)])
            for kind, values in (
                (NameOID.ORGANIZATION_NAME, subject.organizations),
                (NameOID.ORGANIZATIONAL_UNIT_NAME, subject.units),
                (NameOID.COMMON_NAME, [subject.common_name] if subject.common_name else []),
            )
            if values
        ]
    return x509.Name(parts)


def names_of(certificate: x509.Certificate) -> tuple[CertificateSubject, CertificateSubject]:
    """Return CN, O and OU of subject and issuer. Raises ValueError if one of them is undecodable or has more than one CN."""
    with _long_names():
        subject, issuer = certificate.subject, certificate.issuer
    return _read(subject), _read(issuer)


def requested_subject(request: x509.CertificateSigningRequest) -> tuple[CertificateSubject, tuple[str, ...]]:
    """Return the subject's CN, O and OU, and the OIDs of its other attributes. Raises ValueError like `names_of`."""
    subject = raw_subject_of(request)
    return _read(subject), tuple(sorted({part.oid.dotted_string for part in subject if part.oid not in _KNOWN}))


def is_exactly(certificate: x509.Certificate, subject: CertificateSubject) -> bool:
    """Whether the certificate's subject equals `build(subject)` byte for byte: attributes, order and encoding."""
    return raw_subject_of(certificate).public_bytes() == build(subject).public_bytes()


def raw_subject_of(encoded: x509.Certificate | x509.CertificateSigningRequest) -> x509.Name:
    """Return the subject as encoded. The issuer of a certificate must equal the encoded subject of its CA."""
    with _long_names():
        return encoded.subject


def verify_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Verify name and signature of the issuer. Raises ValueError, TypeError, InvalidSignature."""
    with _long_names():
        certificate.verify_directly_issued_by(authority)


def _read(name: x509.Name) -> CertificateSubject:
    found: dict[ObjectIdentifier, list[str]] = {kind: [] for kind in _KNOWN}
    for part in name:
        if part.oid in found:
            found[part.oid].append(str(part.value))
    common_names, organizations, units = found.values()
    if len(common_names) > 1:
        raise ValueError("the subject has more than one CN")
    return CertificateSubject(common_names[0] if common_names else "", frozenset(organizations), frozenset(units))


def _attribute(kind: ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    encoding = _ASN1Type.PrintableString if _PRINTABLE.fullmatch(value) else _ASN1Type.UTF8String
    return x509.NameAttribute(kind, value, encoding, _validate=False)


@contextmanager
def _long_names() -> Iterator[None]:
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attribute's length must be", category=UserWarning)
        yield
