"""A certificate authority: its creation, and the signing of certificates, cross-signed CAs and revocation lists.

`machinery.pki.lint` checks the planned certificate before the signature, and the certificate after it. A finding is a defect of
this program: `sign` raises RuntimeError, and the certificate is discarded.
"""

from datetime import datetime
from ipaddress import ip_address
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from machinery.errors import InvalidError
from machinery.identity import CertificateSubject, SerialNumber
from machinery.pki import certificates, keys, names
from machinery.pki.certificates import Plan, RevocationList, Usage, sign_list
from machinery.pki.lint import lint_certificate, lint_plan


class CertificateAuthority:
    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Raises InvalidError if key or certificate is unreadable, if they do not match, or if the certificate is not a CA."""
        self._certificate = certificates.load_certificate(certificate)
        self.facts = certificates.facts_of(self._certificate)
        self._key = keys.load_signing_key(key)
        if keys.encode_public_key(self._key.public_key()) != self.facts.public_key:
            raise InvalidError("the CA key does not belong to the CA certificate")
        if not self.facts.is_ca:
            raise InvalidError("the certificate is not one of a certificate authority")
        self._name = names.raw_subject_of(self._certificate)
        self._begun = {usage: _begun(self._name, usage, self.facts.subject_key_id) for usage in Usage}

    @property
    def certificate(self) -> bytes:
        """The certificate of the CA (PEM)."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, plan: Plan) -> bytes:
        """Sign a certificate and return it (PEM). Raises InvalidError for an unreadable or unusable key in the plan."""
        _refuse(lint_plan(plan, self.facts))
        key: Any = keys.load_public_key(plan.public_key)
        builder = (
            self._begun[plan.usage]
            .subject_name(names.build(plan.subject))
            .public_key(key)
            .serial_number(plan.serial)
            .not_valid_before(plan.not_before)
            .not_valid_after(plan.not_after)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        alternatives = [*map(x509.DNSName, plan.dns_names), *(x509.IPAddress(ip_address(each)) for each in plan.ip_addresses)]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        _refuse(lint_certificate(signed, plan, self.facts))
        return signed.public_bytes(serialization.Encoding.PEM)

    def cross_sign(self, other: bytes, serial: SerialNumber) -> bytes:
        """Return a cross-signed certificate (PEM) of another CA. With it, clients that trust only this CA trust the other CA.

        It is valid while both CAs are valid. Raises InvalidError if `other` (PEM) is no CA, or is this CA, or if their
        validities do not overlap.
        """
        certificate = certificates.load_certificate(other)
        facts = certificates.facts_of(certificate)
        begins, ends = max(facts.not_before, self.facts.not_before), min(facts.not_after, self.facts.not_after)
        if not facts.is_ca or facts.key_hash == self.facts.key_hash or begins >= ends:
            raise InvalidError("only another CA can be cross-signed, and while both are valid")
        key = certificate.public_key()
        own_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        crossed = (
            _for_authority(names.raw_subject_of(certificate), key)
            .issuer_name(self._name)
            .serial_number(serial)
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return crossed.public_bytes(serialization.Encoding.PEM)

    def sign_list(self, content: RevocationList) -> bytes:
        """Sign a revocation list. Return it in DER."""
        own_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        if self.facts.subject_key_id is not None:
            own_id = x509.SubjectKeyIdentifier(self.facts.subject_key_id)
        return sign_list(content, self._name, own_id, self._key)


def _begun(issuer: x509.Name, usage: Usage, own_id: bytes | None) -> x509.CertificateBuilder:
    """Return the common part of all certificates of one usage. It is cached. `own_id` None: the CA has no key identifier."""
    extended = ExtendedKeyUsageOID.CLIENT_AUTH if usage is Usage.CLIENT else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([extended]), critical=False)
    )
    if own_id is None:
        return builder
    identifier = x509.AuthorityKeyIdentifier(own_id, authority_cert_issuer=None, authority_cert_serial_number=None)
    return builder.add_extension(identifier, critical=False)


def create_authority(
    subject: CertificateSubject, key: bytes, serial: SerialNumber, not_before: datetime, not_after: datetime
) -> CertificateAuthority:
    """Create a self-signed CA with `key` (PEM). Raises InvalidError for an unreadable key."""
    private = keys.load_key(key)
    name = names.build(subject)
    own_id = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    certificate = (
        _for_authority(name, private.public_key())
        .issuer_name(name)
        .serial_number(serial)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False)
        .sign(private, hashes.SHA256())
    )
    return CertificateAuthority(certificate.public_bytes(serialization.Encoding.PEM), key)


def _for_authority(subject: x509.Name, key: CertificatePublicKeyTypes) -> x509.CertificateBuilder:
    """Return the common part of all certificates for a CA's key, whichever CA signs them."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def random_serial() -> SerialNumber:
    """Return a random positive serial number of 159 bits, within the bounds of RFC 5280."""
    return SerialNumber(x509.random_serial_number())


def _refuse(findings: list[str]) -> None:
    if findings:
        raise RuntimeError(f"refusing to issue a certificate: {'; '.join(findings)}")


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
