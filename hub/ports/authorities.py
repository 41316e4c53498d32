"""Database access for the hub's certificate authorities."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Follower, HeldCertificate
from hub.api.certificates import Purpose
from machinery.identity import ClusterName


class AuthorityRecords(Protocol):
    """Records of all CAs that the hub ever had. A private key is stored only if an external key has sealed it."""

    def all(self) -> Sequence[AuthorityRecord]:
        """All records, in order of creation."""

    def put(self, authority: AuthorityRecord) -> None:
        """Add or replace a record, and wake up listeners of revocations on all replicas. A sealed key is kept."""

    def sealed_key(self, authority: AuthorityId) -> bytes | None: ...

    def keep_key(self, authority: AuthorityId, sealed: bytes | None) -> None:
        """Store the sealed key of an existing CA; None deletes it."""

    def followers(self) -> Sequence[Follower]:
        """The CA states that each replica uses, including replicas that have ended."""

    def follow(self, replica: str, known: Sequence[Follower]) -> None:
        """Replace the CA states that a replica uses."""

    def signed(self, now: datetime) -> Mapping[tuple[str | None, Purpose], int]:
        """Number of certificates per signer and purpose that have neither expired nor been revoked."""

    def held(self, purpose: Purpose, now: datetime) -> Sequence[HeldCertificate]:
        """The newest certificate of this purpose of each agent, without expired and revoked certificates."""

    def bereft(self, signed_by: Sequence[str | None], reason: str, now: datetime) -> Sequence[ClusterName]:
        """Clusters whose agent certificates of these signers were revoked for `reason`, and that have no valid one."""

    def name_signer(self, signer: str) -> None:
        """Set the signer of the certificate records that have none: records of releases that did not store it."""

    def revoke_signed(self, signed_by: Sequence[str | None], at: datetime, reason: str) -> int:
        """Revoke all unexpired certificates of these signers; return their number. Earlier revocations keep their reason."""
