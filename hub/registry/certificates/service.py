"""Use cases about certificates: each serial number is recorded before its certificate is returned."""

from functools import lru_cache
from hashlib import sha256
from secrets import randbits

from hub.api.certificates import (
    AGENTS_PURPOSES,
    CertificateHolder,
    CertificateRecord,
    IssuedCertificate,
    Lifetimes,
    Profile,
    Purpose,
    refusals,
)
from hub.ports import Issuer, Transaction
from machinery import pki
from machinery.identity import OPERATOR_GROUP, CertificateSubject, ClusterName, SerialNumber


def sign(tx: Transaction, issuer: Issuer, profile: Profile, holder: CertificateHolder) -> IssuedCertificate:
    """Sign `profile` with a fresh serial number and record it; the certificate exists only if the transaction commits.

    Raises RuntimeError for a profile that does not fit its purpose, InvalidError for an unusable key.
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
    """Content of a valid CSR; cached, since one CSR is read several times. Raises TooLargeError, InvalidError."""
    return pki.check_request(request)


def key_hash(public_key: bytes) -> str:
    """Hex SHA-256 of a DER SubjectPublicKeyInfo."""
    return sha256(public_key).hexdigest()


def resolve(tx: Transaction, serial: SerialNumber) -> CertificateRecord | None:
    """The record of a certificate; None: this hub never signed it, so it authorizes nothing."""
    return tx.certificates.by_serial(serial)


def has_agent(tx: Transaction, cluster: ClusterName) -> bool:
    """Whether an agent of the cluster has a certificate that has neither expired nor been revoked."""
    return any(record.purpose is Purpose.AGENT and record.is_open(tx.now) for record in tx.certificates.of_cluster(cluster))


def revoke_cluster(tx: Transaction, cluster: ClusterName, reason: str) -> int:
    """Revoke all certificates of the cluster and its add-ons and return their number. Not its bootstrap credential."""
    records = tx.certificates.of_cluster(cluster)
    serials = [record.serial for record in records if record.revoked_at is None and record.purpose in AGENTS_PURPOSES]
    if serials:
        tx.certificates.revoke(serials, tx.now, reason)
    return len(serials)


def admit_operator(tx: Transaction, user: str, public_key: bytes, issuer: Issuer, lifetimes: Lifetimes) -> IssuedCertificate:
    """Record and sign an operator's client certificate over `public_key` (DER SubjectPublicKeyInfo)."""
    profile = Profile(
        purpose=Purpose.OPERATOR,
        subject=CertificateSubject(user, frozenset((OPERATOR_GROUP,))),
        public_key=public_key,
        not_before=tx.now - lifetimes.backdate,
        not_after=tx.now + lifetimes.operator,
    )
    return sign(tx, issuer, profile, CertificateHolder())
