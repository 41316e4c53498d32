"""X.509 names above the length limit: OCM's CN and O may hold a UUID or a 63-character cluster name, over RFC 5280's 64.

Kubernetes and OCM issue such names, and every TLS stack reads them. `cryptography` refuses to build such a name and warns when
it reads one. Only this module handles names; it suppresses this warning, and only during these calls.

Names have the form of Go: one relative name with every O, one with every OU, then the CN; PrintableString if the characters
allow this, otherwise UTF8String. Names are parsed by attribute type, never by position.
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
"""All exceptions of the library for undecodable input."""
_KNOWN = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
LONGEST_CN = 64
"""Longest CN in bytes that the library accepts without a warning. It limits no other attribute."""
_PRINTABLE = re.compile(r"[A-Za-z0-9 '()+,\-./:=?]*")
_filters = Lock()
"""`warnings.catch_warnings` is not thread-safe: two concurrent uses may leave filters behind."""


@lru_cache(maxsize=64)
def build(subject: CertificateSubject) -> x509.Name:
    """Return the X.509 name of `subject`. Cached, because the check after the signature needs the name again."""
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
    """Return CN, O and OU of subject and issuer. Raises ValueError if they are undecodable or have more than one CN."""
    with _long_names():
        subject, issuer = certificate.subject, certificate.issuer
    return _read(subject), _read(issuer)


def requested_subject(request: x509.CertificateSigningRequest) -> tuple[CertificateSubject, tuple[str, ...]]:
    """Return the subject's CN, O and OU, and the dotted types of other attributes. Raises ValueError like `names_of`."""
    subject = raw_subject_of(request)
    return _read(subject), tuple(sorted({part.oid.dotted_string for part in subject if part.oid not in _KNOWN}))


def is_exactly(certificate: x509.Certificate, subject: CertificateSubject) -> bool:
    """Whether the certificate's subject equals `build(subject)` byte for byte: attributes, order and encoding."""
    return raw_subject_of(certificate).public_bytes() == build(subject).public_bytes()


def raw_subject_of(encoded: x509.Certificate | x509.CertificateSigningRequest) -> x509.Name:
    """Return the encoded subject. A certificate's issuer must equal the encoded subject of its CA."""
    with _long_names():
        return encoded.subject


def verify_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """`verify_directly_issued_by`, which compares names. Raises ValueError, TypeError, InvalidSignature."""
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
