"""X.509 names longer than X.509 allows: OCM's CN and O may hold a UUID or a 63-character cluster name, over the 64 of RFC 5280.

Kubernetes and OCM issue them all the same, and every TLS stack reads them. `cryptography` refuses to build and warns when it
reads one, so this module is the only one that touches names; it silences exactly that warning, for exactly that long.

Names are built as Go builds them: one relative name that holds every O, one that holds every OU, then the CN; PrintableString
where the letters allow it, UTF8String else. Meaning is read by attribute type and never from position.
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
"""Everything that the library raises over what it cannot decode."""
_KNOWN = (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME)
LONGEST_CN = 64
"""Bytes that the library takes without a word; other values it takes at any length."""
_PRINTABLE = re.compile(r"[A-Za-z0-9 '()+,\-./:=?]*")
_filters = Lock()
"""`warnings.catch_warnings` is not safe for threads: two at once may leave each other's filters behind."""


@lru_cache(maxsize=64)
def build(subject: CertificateSubject) -> x509.Name:
    """The X.509 name of `subject`, which is asked for more than once: it is written, and what was signed is held against it."""
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
    """CN, O and OU of the subject and of the issuer. Raises ValueError: undecodable, or a name holds more than one CN."""
    with _long_names():
        subject, issuer = certificate.subject, certificate.issuer
    return _read(subject), _read(issuer)


def asked_of(request: x509.CertificateSigningRequest) -> tuple[CertificateSubject, tuple[str, ...]]:
    """The subject's CN, O and OU, and the dotted types of its other attributes. Raises ValueError as `names_of` does."""
    with _long_names():
        subject = request.subject
    return _read(subject), tuple(sorted({part.oid.dotted_string for part in subject if part.oid not in _KNOWN}))


def is_exactly(certificate: x509.Certificate, subject: CertificateSubject) -> bool:
    """Whether the subject is `subject` as `build` writes it, to the last byte: no other attribute, order or spelling."""
    with _long_names():
        found = certificate.subject
    return found.public_bytes() == build(subject).public_bytes()


def raw_subject_of(certificate: x509.Certificate) -> x509.Name:
    """The subject as it stands in the certificate: what a certificate signed by it must name as its issuer."""
    with _long_names():
        return certificate.subject


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
        raise ValueError("the subject holds more than one CN")
    return CertificateSubject(common_names[0] if common_names else "", frozenset(organizations), frozenset(units))


def _attribute(kind: ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    encoding = _ASN1Type.PrintableString if _PRINTABLE.fullmatch(value) else _ASN1Type.UTF8String
    return x509.NameAttribute(kind, value, encoding, _validate=False)


@contextmanager
def _long_names() -> Iterator[None]:
    with _filters, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attribute's length must be", category=UserWarning)
        yield
