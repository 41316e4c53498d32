"""Issuers whose certificates are readable words, or that skip the check of the profile."""

from hub.api.certificates import CertificateHolder, CertificateRecord, IssuedCertificate, Profile
from hub.ports import Issuer, Transaction
from hub.registry.certificates.service import key_hash
from machinery import pki
from machinery.identity import SerialNumber


class WordIssuer(Issuer):
    """Signs by writing down what it was told, and remembers it; `failure` is raised instead."""

    def __init__(self) -> None:
        self.issued: list[tuple[Profile, SerialNumber]] = []
        self.failure: Exception | None = None

    def issue(self, profile: Profile, serial: SerialNumber, now: object) -> IssuedCertificate:  # noqa: ARG002 - signs at once
        if self.failure is not None:
            raise self.failure
        self.issued.append((profile, serial))
        return IssuedCertificate(serial, f"{profile.purpose} {profile.subject.common_name}\n".encode())

    @property
    def trust_bundle(self) -> bytes:
        return b"trust\n"


def sign_anything(tx: Transaction, issuer: Issuer, profile: Profile, holder: CertificateHolder) -> IssuedCertificate:
    """As `hub.registry.certificates.service.sign`, without its look at the profile."""
    serial = SerialNumber(pki.random_serial())
    issued = issuer.issue(profile, serial, tx.now)
    tx.certificates.add(
        CertificateRecord(
            serial=serial,
            purpose=profile.purpose,
            user=profile.subject.common_name,
            groups=tuple(sorted(profile.subject.organizations)),
            not_before=profile.not_before,
            not_after=profile.not_after,
            key_hash=key_hash(profile.public_key),
            issued_at=tx.now,
            cluster=holder.cluster,
            agent=holder.agent,
            addon=holder.addon,
            credential=holder.credential,
            signed_by=issued.signed_by or None,
        )
    )
    return issued
