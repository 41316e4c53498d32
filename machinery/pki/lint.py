"""Checks of a certificate before and after its signature. Each check returns findings, or none for a correct certificate.

Sources of the rules: RFC 5280, RFC 5480, and requirements of the TLS stacks of Python and gRPC.
"""

from datetime import timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, ObjectIdentifier

from machinery.errors import InvalidError
from machinery.pki import certificates, keys, names
from machinery.pki.certificates import CertificateFacts, Extensions, Plan, Usage

MAX_SERIAL_BITS = 159
MIN_SERIAL_BITS = 64
_SECOND = timedelta(seconds=1)
_ALWAYS = (
    ExtensionOID.BASIC_CONSTRAINTS,
    ExtensionOID.KEY_USAGE,
    ExtensionOID.EXTENDED_KEY_USAGE,
    ExtensionOID.SUBJECT_KEY_IDENTIFIER,
    ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
)
_OTHER_USAGES = "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"


def lint_plan(plan: Plan, authority: CertificateFacts) -> list[str]:
    """Return the findings about a planned certificate. Raises InvalidError if its key is unusable."""
    if (refusal := keys.key_refusal(keys.load_public_key(plan.public_key))) is not None:
        raise InvalidError(refusal)
    named = plan.usage is not Usage.SERVER or bool(plan.dns_names or plan.ip_addresses)
    return _broken(
        (bool(plan.subject.common_name), "the subject has no CN"),
        (0 < plan.serial < 1 << MAX_SERIAL_BITS, "the serial is not a positive number of at most 20 bytes"),
        (plan.serial.bit_length() > MIN_SERIAL_BITS, "the serial is so short that it can be guessed"),
        (plan.not_before < plan.not_after, "it ends before it begins"),
        (plan.not_after <= authority.not_after, "it outlives the CA"),
        (plan.not_before >= authority.not_before, "it begins before the CA"),
        (named, "a serving certificate needs alternative names"),
    )


def lint_certificate(signed: x509.Certificate, plan: Plan, authority: CertificateFacts) -> list[str]:
    """Return the findings about a signed certificate. It does not verify the signature, because the caller has just made it.

    Each extension or name that was not planned is a finding: nothing from a request may get into the certificate unplanned.
    """
    facts, extensions = certificates.facts_of(signed), Extensions(signed)
    own_id = x509.SubjectKeyIdentifier.from_public_key(signed.public_key()).digest
    usage, extended = extensions.of(x509.KeyUsage), extensions.of(x509.ExtendedKeyUsage)
    constraints = extensions.of(x509.BasicConstraints)
    wanted = ExtendedKeyUsageOID.SERVER_AUTH if plan.usage is Usage.SERVER else ExtendedKeyUsageOID.CLIENT_AUTH
    signs = usage is not None and (usage.key_cert_sign or usage.crl_sign)
    expected: set[ObjectIdentifier] = {*_ALWAYS}
    if authority.subject_key_id is None:
        expected.discard(ExtensionOID.AUTHORITY_KEY_IDENTIFIER)  # an old external CA may have no key identifier
    if plan.dns_names or plan.ip_addresses:
        expected.add(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
    found = {extension.oid for extension in signed.extensions}
    alternatives: Any = extensions.of(x509.SubjectAlternativeName) or ()
    planned_names = len(plan.dns_names) + len(plan.ip_addresses)
    return _broken(
        (facts.subject == plan.subject, "the subject is not the planned one"),
        (names.is_exactly(signed, plan.subject), "the subject is not encoded as planned, or has more"),
        (facts.public_key == plan.public_key, "the key is not the planned one"),
        (facts.serial == plan.serial, "the serial is not the planned one"),
        (abs(facts.not_before - plan.not_before) < _SECOND, "the beginning is not the planned one"),
        (abs(facts.not_after - plan.not_after) < _SECOND, "the end is not the planned one"),
        (facts.dns_names == plan.dns_names, "the DNS names are not the planned ones"),
        (facts.ip_addresses == plan.ip_addresses, "the IP addresses are not the planned ones"),
        (signed.version is x509.Version.v3, "it is not of version 3"),
        (isinstance(signed.signature_hash_algorithm, hashes.SHA256), "it is not signed with SHA-256"),
        (facts.subject_key_id == own_id, "the subject key identifier is not its own key's"),
        (facts.authority_key_id == authority.subject_key_id, "the authority key identifier is not the CA's"),
        (facts.issuer == authority.subject, "the issuer is not the CA"),
        (constraints is not None and not constraints.ca, "it is a CA, or lacks the statement that it is none"),
        (extensions.is_critical(x509.BasicConstraints), "BasicConstraints is not critical"),
        (extensions.is_critical(x509.KeyUsage), "KeyUsage is not critical"),
        (usage is not None and usage.digital_signature, "KeyUsage lacks digitalSignature"),
        (not signs, "KeyUsage allows signing certificates"),
        (usage is None or not any(getattr(usage, other) for other in _OTHER_USAGES), "KeyUsage allows more than signatures"),
        (extended is not None and list(extended) == [wanted], "the extended usage does not fit"),
        (found <= expected, f"it has extensions that none of ours has: {_dotted(found - expected)}"),
        (expected <= found, f"it lacks extensions: {_dotted(expected - found)}"),
        (len(list(alternatives)) == planned_names, "it has alternative names that were not planned"),
    )


def _dotted(identifiers: set[ObjectIdentifier]) -> str:
    return ", ".join(sorted(identifier.dotted_string for identifier in identifiers))


def _broken(*rules: tuple[bool, str]) -> list[str]:
    return [finding for fine, finding in rules if not fine]
