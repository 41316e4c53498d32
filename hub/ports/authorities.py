"""The hub's certificate authorities: what is kept of them, and who follows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Follower, HeldCertificate
from hub.api.certificates.certificate import Purpose
from machinery.identity import ClusterName


class AuthorityRecords(Protocol):
    """Every CA that the hub ever had. A key is here only when it is sealed with one that is not in the database."""

    def all(self) -> Sequence[AuthorityRecord]:
        """In the order of their creation."""

    def put(self, authority: AuthorityRecord) -> None:
        """Adds or replaces it, and rings: whoever is told of revocations looks for this, too. A sealed key stays."""

    def sealed_key(self, authority: AuthorityId) -> bytes | None: ...

    def keep_key(self, authority: AuthorityId, sealed: bytes | None) -> None:
        """Of a CA that is there. None: forgets it."""

    def followers(self) -> Sequence[Follower]:
        """What each replica acts upon, the ones that have ended included."""

    def follow(self, replica: str, known: Sequence[Follower]) -> None:
        """In place of what the replica said before."""

    def signed(self, now: datetime) -> Mapping[tuple[str | None, Purpose], int]:
        """How many certificates of each signer and purpose have neither ended nor been revoked."""

    def held(self, purpose: Purpose, now: datetime) -> Sequence[HeldCertificate]:
        """The newest certificate of that purpose of each agent, of those that have neither ended nor been revoked."""

    def bereft(self, signed_by: Sequence[str | None], reason: str, now: datetime) -> Sequence[ClusterName]:
        """Clusters that had an agent's certificate of these signers, revoked for this reason, and have none that is open."""

    def name_signer(self, signer: str) -> None:
        """Writes it into the records that name no signer: those from before that was kept."""

    def revoke_signed(self, signed_by: Sequence[str | None], at: datetime, reason: str) -> int:
        """Revokes what these signers signed and has not ended; returns how many. What is revoked already keeps its reason."""
