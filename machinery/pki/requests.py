"""Certificate signing requests: built by agents and hubctl, parsed strictly by the hub."""

import base64
import binascii
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization

from machinery.errors import Cause, InvalidError, TooLargeError
from machinery.identity import CertificateSubject
from machinery.pki import keys, names

MAX_REQUEST_BYTES = 16 * 1024
FIELD = "spec.request"

_ONE_BLOCK = re.compile(
    rb"\s*-----BEGIN CERTIFICATE REQUEST-----\r?\n(?P<body>[A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE REQUEST-----\s*"
)


@dataclass(frozen=True, slots=True)
class CSRFacts:
    """Content of a certificate signing request. The signature proves only possession of the key; other fields are claims."""

    subject: CertificateSubject
    public_key: bytes
    """The public key (DER SubjectPublicKeyInfo)."""
    key_refusal: str | None
    """Why peers could not use a certificate with this key; None if the key is usable."""
    signature_valid: bool
    """Whether the signature proves that the requester holds the private key."""
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    other_names: int = 0
    """Number of requested alternative names of other kinds (e-mail, URI, ...)."""
    other_attributes: tuple[str, ...] = ()
    """OIDs of subject attributes other than CN, O and OU."""

    @property
    def key_hash(self) -> str:
        return keys.key_hash(self.public_key)


def build_request(subject: CertificateSubject, key: bytes, dns_names: tuple[str, ...] = ()) -> bytes:
    """Build a CSR in PEM for `subject`, signed with `key` (PEM). Raises InvalidError for an unreadable key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(names.build(subject))
    if dns_names:
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in dns_names])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(keys.load_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def parse_request(pem: bytes) -> CSRFacts:
    """Parse a CSR. Raises TooLargeError, InvalidError with a cause for `spec.request`."""
    if len(pem) > MAX_REQUEST_BYTES:
        raise TooLargeError(f"the certificate signing request has {len(pem)} bytes, {MAX_REQUEST_BYTES} are allowed")
    block = _ONE_BLOCK.fullmatch(pem)
    if block is None:
        raise _invalid("it is not exactly one PEM block of type CERTIFICATE REQUEST")
    try:
        der = base64.b64decode(b"".join(block["body"].split()), validate=True)
        request = x509.load_der_x509_csr(der)
        return _facts(request)
    except binascii.Error:
        raise _invalid("its PEM block is not base64") from None
    except names.UNREADABLE as error:
        # The decoder's message may quote the input, so only its first line is used.
        raise _invalid(f"it cannot be decoded ({str(error).splitlines()[0][:120] if str(error) else 'no detail'})") from None


def check_request(pem: bytes) -> CSRFacts:
    """Parse a CSR and require a usable key and a valid signature. Raises TooLargeError, InvalidError."""
    facts = parse_request(pem)
    if facts.key_refusal is not None:
        raise _invalid(facts.key_refusal)
    if not facts.signature_valid:
        raise _invalid("its signature does not match its key: the requester has not shown that it holds the private key")
    return facts


def _facts(request: x509.CertificateSigningRequest) -> CSRFacts:
    key = request.public_key()
    extensions = [each.value for each in request.extensions]
    alternatives = [name for each in extensions if isinstance(each, x509.SubjectAlternativeName) for name in each]
    dns_names = tuple(name.value for name in alternatives if isinstance(name, x509.DNSName))
    ip_addresses = tuple(str(name.value) for name in alternatives if isinstance(name, x509.IPAddress))
    refusal = keys.key_refusal(key)
    subject, other_attributes = names.requested_subject(request)
    return CSRFacts(
        subject=subject,
        public_key=keys.encode_public_key(key),
        key_refusal=refusal,
        # The check is expensive for a huge RSA key, and unnecessary if the key is refused.
        signature_valid=refusal is None and _is_signature_valid(request),
        dns_names=dns_names,
        ip_addresses=ip_addresses,
        other_names=len(alternatives) - len(dns_names) - len(ip_addresses),
        other_attributes=other_attributes,
    )


def _is_signature_valid(request: x509.CertificateSigningRequest) -> bool:
    try:
        return request.is_signature_valid
    except (UnsupportedAlgorithm, ValueError, TypeError):
        return False


def _invalid(what: str) -> InvalidError:
    message = f"the certificate signing request is not valid: {what}"
    return InvalidError(message, causes=[Cause(reason="FieldValueInvalid", message=what, field=FIELD)])
