"""Use cases about certificates: a record for every serial before a signature leaves."""

from functools import lru_cache
from hashlib import sha256
from secrets import randbits

from hub.api.certificates.certificate import (
    AGENTS_PURPOSES,
    CertificateHolder,
    CertificateRecord,
    IssuedCertificate,
    Profile,
    Purpose,
)
from hub.api.certificates.profile import refusals
from hub.ports import Issuer, Transaction
from machinery import pki
from machinery.identity import ClusterName, SerialNumber


def sign(tx: Transaction, issuer: Issuer, profile: Profile, holder: CertificateHolder) -> IssuedCertificate:
    """Signs `profile` with a fresh serial and records it: the signature leaves with the transaction, or not at all.

    Raises RuntimeError for a profile that does not fit its purpose, InvalidError for a key that cannot be used.
    """
    if found := refusals(profile, holder, tx.now):
        raise RuntimeError(f"refusing to issue a certificate: {'; '.join(found)}")
    serial = SerialNumber(randbits(158) | 1 << 158)
    issued = issuer.issue(profile, serial, tx.now)
    record = CertificateRecord(
        serial=serial,
        purpose=profile.purpose,
        user=profile.subject.common_name,
        groups=tuple(sorted(profile.subject.organizations)),
        not_before=profile.not_before,
        not_after=issued.not_after or profile.not_after,
        key_hash=key_hash(profile.public_key),
        issued_at=tx.now,
        cluster=holder.cluster,
        agent=holder.agent,
        addon=holder.addon,
        credential=holder.credential,
        request_uid=holder.request_uid,
        signed_by=issued.signed_by or None,
    )
    tx.certificates.add(record)
    return issued


@lru_cache(maxsize=1024)
def checked_request(request: bytes) -> pki.CSRFacts:
    """What a CSR says, when a certificate can be made of it; each is parsed once, though it is looked at thrice.

    Raises TooLargeError, InvalidError.
    """
    return pki.check_request(request)


def key_hash(public_key: bytes) -> str:
    """Hex SHA-256 of a DER SubjectPublicKeyInfo."""
    return sha256(public_key).hexdigest()


def resolve(tx: Transaction, serial: SerialNumber) -> CertificateRecord | None:
    """The record of a certificate; None: this hub never signed it, so it opens nothing."""
    return tx.certificates.by_serial(serial)


def has_agent(tx: Transaction, cluster: ClusterName) -> bool:
    """Whether an agent of the cluster holds a certificate that neither has ended nor is revoked."""
    return any(record.purpose is Purpose.AGENT and record.is_open(tx.now) for record in tx.certificates.of_cluster(cluster))


def revoke_cluster(tx: Transaction, cluster: ClusterName, reason: str) -> int:
    """Revokes what the cluster and its add-ons hold and is not revoked yet; returns how many. Not its bootstrap credential."""
    records = tx.certificates.of_cluster(cluster)
    serials = [record.serial for record in records if record.revoked_at is None and record.purpose in AGENTS_PURPOSES]
    if serials:
        tx.certificates.revoke(serials, tx.now, reason)
    return len(serials)
