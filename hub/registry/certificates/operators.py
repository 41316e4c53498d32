"""Use case: certificates of operators, who have all rights at the HTTPS door."""

from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.ports import Issuer, Transaction
from hub.registry.certificates import service as certificates
from machinery.identity import OPERATOR_GROUP, CertificateSubject


def admit(tx: Transaction, user: str, public_key: bytes, issuer: Issuer, lifetimes: Lifetimes) -> IssuedCertificate:
    """Record and sign an operator's client certificate over `public_key` (DER SubjectPublicKeyInfo)."""
    profile = Profile(
        purpose=Purpose.OPERATOR,
        subject=CertificateSubject(user, frozenset((OPERATOR_GROUP,))),
        public_key=public_key,
        not_before=tx.now - lifetimes.backdate,
        not_after=tx.now + lifetimes.operator,
    )
    return certificates.sign(tx, issuer, profile, CertificateHolder())
