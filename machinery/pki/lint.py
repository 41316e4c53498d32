"""Our own checks of a certificate, before it is signed and after: a list of findings, empty when it is as it should be.

Rules (RFC 5280, RFC 5480, and what Python's and gRPC's TLS stacks demand): at least the CN is there; a positive serial of at
most 20 bytes; the end lies after the beginning and both lie within the CA's validity; a key that gRPC can use; a serving
certificate has alternative names. In a signed one besides: it says what the plan said; critical BasicConstraints and KeyUsage
that fit; exactly one extended usage; SKI of its own key, AKI of the CA's; the CA's name as issuer.
"""

from datetime import datetime, timedelta
from typing import Protocol

from cryptography import x509

from machinery.identity import SerialNumber, Subject
from machinery.pki import certificates
from machinery.pki.certificates import CertificateFacts

MAX_SERIAL_BITS = 159


class Planned(Protocol):
    """The fields of `machinery.pki.Plan` that are judged here."""

    @property
    def subject(self) -> Subject: ...
    @property
    def public_key(self) -> bytes: ...
    @property
    def serial(self) -> SerialNumber: ...
    @property
    def not_before(self) -> datetime: ...
    @property
    def not_after(self) -> datetime: ...
    @property
    def dns_names(self) -> tuple[str, ...]: ...
    @property
    def ip_addresses(self) -> tuple[str, ...]: ...


def lint_plan(plan: Planned, authority: CertificateFacts, *, serving: bool) -> list[str]:
    """What is wrong with a certificate to be."""
    alternatives = bool(plan.dns_names or plan.ip_addresses)
    rules = (
        (bool(plan.subject.common_name), "the subject has no CN"),
        (0 < plan.serial < 1 << MAX_SERIAL_BITS, "the serial is not a positive number of at most 20 bytes"),
        (plan.not_before < plan.not_after, "it ends before it begins"),
        (plan.not_after <= authority.not_after, "it outlives the CA"),
        (plan.not_before >= authority.not_before, "it begins before the CA"),
        (not serving or alternatives, "a serving certificate needs alternative names"),
    )
    return [finding for fine, finding in rules if not fine]


def lint_certificate(signed: x509.Certificate, plan: Planned, authority: CertificateFacts, *, serving: bool) -> list[str]:
    """What is wrong with a signed certificate, its signature aside: that the authority's key is the right one is known."""
    facts = certificates.facts_of(signed)
    second = timedelta(seconds=1)
    rules = (
        (facts.subject == plan.subject, "the subject is not the planned one"),
        (facts.public_key == plan.public_key, "the key is not the planned one"),
        (facts.serial == plan.serial, "the serial is not the planned one"),
        (abs(facts.not_before - plan.not_before) < second, "the beginning is not the planned one"),
        (abs(facts.not_after - plan.not_after) < second, "the end is not the planned one"),
        (facts.dns_names == plan.dns_names, "the DNS names are not the planned ones"),
        (facts.ip_addresses == plan.ip_addresses, "the IP addresses are not the planned ones"),
        (not facts.is_ca, "it is a CA"),
        ((facts.client_auth, facts.server_auth) == (not serving, serving), "the extended usage does not fit"),
        (facts.subject_key_id is not None, "it has no subject key identifier"),
        (facts.authority_key_id == authority.subject_key_id, "the authority key identifier is not the CA's"),
        (facts.issuer == authority.subject, "the issuer is not the CA"),
    )
    return [finding for fine, finding in rules if not fine] + _lint_usage(signed)


def _lint_usage(signed: x509.Certificate) -> list[str]:
    extensions = certificates.extensions_of(signed)
    usage = extensions.of(x509.KeyUsage)
    rules = (
        (extensions.is_critical(x509.BasicConstraints), "BasicConstraints is not critical"),
        (extensions.is_critical(x509.KeyUsage), "KeyUsage is not critical"),
        (usage is not None and usage.digital_signature, "KeyUsage lacks digitalSignature"),
        (usage is not None and not usage.key_cert_sign, "KeyUsage allows signing certificates"),
    )
    return [finding for fine, finding in rules if not fine]
