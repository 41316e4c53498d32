"""Use cases about certificates and revocation lists.

Each serial number is recorded before its certificate is returned. Each CA has one revocation list. The hub renews it when its
content has changed or half of its validity has passed. The first replica that needs a new list signs and stores it, so all
replicas publish the same bytes. A revoked certificate stays on the list for LIST_LIFETIME after its expiry (RFC 5280, 3.3).
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from secrets import randbits

import msgspec

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
from hub.api.revocations import listed_reason
from hub.ports import Transaction
from hub.ports.identities import Issuer, ListSigner
from machinery import pki
from machinery.errors import NotFoundError
from machinery.identity import OPERATOR_GROUP, CertificateSubject, ClusterName, SerialNumber
from machinery.pki import RevocationList, RevokedSerial


def sign(tx: Transaction, issuer: Issuer, profile: Profile, holder: CertificateHolder) -> IssuedCertificate:
    """Sign and record a certificate for one profile. For the errors, see `sign_all`."""
    return sign_all(tx, issuer, (profile,), holder)[0]


def sign_all(
    tx: Transaction, issuer: Issuer, profiles: Sequence[Profile], holder: CertificateHolder
) -> list[IssuedCertificate]:
    """Sign and record one certificate for each profile: all or none. They are valid only if the transaction commits.

    Raises RuntimeError for a profile that does not fit its purpose, InvalidError for an unusable key.
    """
    for profile in profiles:
        if found := refusals(profile, holder, tx.now):
            raise RuntimeError(f"refusing to issue a certificate: {'; '.join(found)}")
    serials = [SerialNumber(randbits(158) | 1 << 158) for _ in profiles]
    signed = [issuer.issue(profile, serial, tx.now) for profile, serial in zip(profiles, serials, strict=True)]
    for profile, serial, issued in zip(profiles, serials, signed, strict=True):
        tx.certificates.add(_record(profile, holder, serial, issued, tx.now))
    return signed


def _record(
    profile: Profile, holder: CertificateHolder, serial: SerialNumber, issued: IssuedCertificate, now: datetime
) -> CertificateRecord:
    return CertificateRecord(
        serial=serial,
        purpose=profile.purpose,
        user=profile.subject.common_name,
        groups=tuple(sorted(profile.subject.organizations)),
        not_before=profile.not_before,
        not_after=issued.not_after or profile.not_after,
        key_hash=pki.key_hash(profile.public_key),
        issued_at=now,
        cluster=holder.cluster,
        agent=holder.agent,
        addon=holder.addon,
        credential=holder.credential,
        request_uid=holder.request_uid,
        signed_by=issued.signed_by,
    )


@lru_cache(maxsize=1024)
def checked_request(request: bytes) -> pki.CSRFacts:
    """Return the content of a valid CSR. Cached, because a CSR is read several times. Raises TooLargeError, InvalidError."""
    return pki.check_request(request)


def has_agent(tx: Transaction, cluster: ClusterName) -> bool:
    """Whether an agent of the cluster has a certificate that has neither expired nor been revoked."""
    return any(record.purpose is Purpose.AGENT and record.is_open(tx.now) for record in tx.certificates.of_cluster(cluster))


def revoke_cluster(tx: Transaction, cluster: ClusterName, reason: str) -> int:
    """Revoke all certificates of a cluster and its add-ons, but no bootstrap credential. Returns the number newly revoked."""
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


LIST_LIFETIME = timedelta(days=1)
"""Validity of a revocation list: from thisUpdate to nextUpdate."""


@dataclass(frozen=True, slots=True)
class PublishedList:
    """A revocation list. `der`: the signed list. `digest`: digest of the entries."""

    authority: str
    number: int
    signed_at: datetime
    der: bytes
    digest: str = ""


def current_list(tx: Transaction, signer: ListSigner, authority: str) -> PublishedList | None:
    """Return the CA's stored revocation list; None: `sign_list` must sign a new one. Raises NotFoundError for an unknown CA."""
    stored = _stored_list(tx, authority)
    return stored if _is_current(stored, _list_entries(tx, signer, authority)[1], tx.now) else None


def sign_list(tx: Transaction, signer: ListSigner, authority: str) -> PublishedList:
    """Return the revocation list of a CA; if it is missing or outdated, sign and store a new one. Raises NotFoundError."""
    entries, digest = _list_entries(tx, signer, authority)
    before, now = _stored_list(tx, authority), tx.now.replace(microsecond=0)
    if before is not None and _is_current(before, digest, tx.now):
        return before
    # microseconds: higher than all earlier numbers, and different from a replica that signs at the same time
    number = max(int(tx.now.timestamp() * 1_000_000), 1 + (before.number if before else 0))
    der = signer.sign_list(authority, RevocationList(number, now, now + LIST_LIFETIME, entries))
    stored = {"number": number, "signed": now.timestamp(), "entries": digest, "der": b64encode(der).decode()}
    tx.facts.set(f"revocation-list/{authority}", msgspec.json.encode(stored).decode())
    return PublishedList(authority, number, now, der, digest)


def _is_current(stored: PublishedList | None, digest: str, now: datetime) -> bool:
    return stored is not None and stored.digest == digest and timedelta() <= now - stored.signed_at < LIST_LIFETIME / 2


def _stored_list(tx: Transaction, authority: str) -> PublishedList | None:
    text = tx.facts.get(f"revocation-list/{authority}")
    if text is None:
        return None
    found = msgspec.json.decode(text)
    signed_at = datetime.fromtimestamp(found["signed"], tz=tx.now.tzinfo)
    return PublishedList(authority, int(found["number"]), signed_at, b64decode(found["der"]), found["entries"])


def _list_entries(tx: Transaction, signer: ListSigner, authority: str) -> tuple[tuple[RevokedSerial, ...], str]:
    """The entries of a CA's revocation list and their digest. Raises NotFoundError if there is no such CA."""
    if authority not in signer.authorities:
        raise NotFoundError(f'the hub has no CA "{authority}" that signs lists')
    entries = tuple(
        RevokedSerial(record.serial, record.revoked_at.replace(microsecond=0), listed_reason(record.revoked_reason))
        for record in tx.certificates.revoked(tx.now - LIST_LIFETIME)
        if record.revoked_at is not None and record.signed_by == authority
    )
    lines = "\n".join(f"{each.serial:x} {each.at.isoformat()} {each.reason}" for each in sorted(entries))
    return entries, sha256(lines.encode()).hexdigest()
