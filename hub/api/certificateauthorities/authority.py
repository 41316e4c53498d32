"""The hub's certificate authorities and their life: one signs, one may be on its way in, others on their way out.

    Distributing -> Issuing -> Outgoing -> Retiring -> Retired

Of one that is *distributing* agents learn, and it signs nothing. The *issuing* one signs everything. An *outgoing* one signs
nothing any more, and what it signed opens what it did. One that is *retiring* is in nobody's bundle any more, and what it
signed opens `Recover` alone, until the last recovery certificate has ended. A *retired* one opens nothing. After a compromise
a CA goes from wherever it is to *retired*.

An operator only writes down what he wants (`Wish`); the leader makes the steps, each in one transaction.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from machinery.identity import AgentId, ClusterName

AuthorityId = NewType("AuthorityId", str)
"""The first 16 hex digits of the SHA-256 of the CA's public key."""

OWN = "hub/"
"""What the names of the hub's own CAs begin with, where records say who signed."""


class Phase(StrEnum):
    """Where in its life a CA is."""

    DISTRIBUTING = "Distributing"
    ISSUING = "Issuing"
    OUTGOING = "Outgoing"
    RETIRING = "Retiring"
    RETIRED = "Retired"


BUNDLED = frozenset((Phase.DISTRIBUTING, Phase.ISSUING, Phase.OUTGOING))
"""Peers are told to trust these, and what these signed opens what its record says."""
RECOVERING = frozenset((Phase.RETIRING,))
"""What these signed opens `Recover` alone."""
ADMITTED = BUNDLED | RECOVERING
"""The doors' TLS lets certificates of these in."""


class AuthorityOrder(StrEnum):
    """What an operator wants of a CA. The leader sees to it, and takes the wish back when it is done."""

    ROTATE = "Rotate"
    """Of the issuing one: another is to take its place."""
    COMPROMISED = "Compromised"
    """Of any: it is to be worth nothing as soon as another can sign."""
    PROCEED = "Proceed"
    """Of one in the middle of a rotation: the next step is to be made now, whoever has not moved."""


@dataclass(frozen=True, slots=True)
class AuthorityRecord:
    """One CA. Its key is not here."""

    id: AuthorityId
    certificate: bytes
    """PEM, self-signed."""
    phase: Phase
    created_at: datetime
    since: datetime
    """When the phase began."""
    cross_signed: bytes | None = None
    """The same subject and key, signed by the CA that issued before it (PEM): who trusts only that one believes this one."""
    ends_at: datetime | None = None
    """Of one that is retiring: when it is retired at the latest. Of one that is given up: when agents were waited for long
    enough in its present phase; None: at once."""
    within: timedelta | None = None
    """Of one that is given up: for how long each of two phases waits for agents: trusting the next CA, and renewing."""
    wish: AuthorityOrder | None = None
    wished_by: str | None = None
    compromised: bool = False

    @property
    def signer(self) -> str:
        """How records name it."""
        return OWN + self.id

    @property
    def is_given_up(self) -> bool:
        """Somebody else may have its key."""
        return self.compromised or self.wish is AuthorityOrder.COMPROMISED

    def moved(self, phase: Phase, now: datetime, ends_at: datetime | None = None) -> "AuthorityRecord":
        """In its next phase, with nothing wished of it any more but that it goes, where it is compromised."""
        wish = self.wish if self.wish is AuthorityOrder.COMPROMISED and phase is not Phase.RETIRED else None
        return replace(self, phase=phase, since=now, ends_at=ends_at, wish=wish, wished_by=self.wished_by if wish else None)


@dataclass(frozen=True, slots=True)
class Follower:
    """What a replica knew of a CA when it last looked: the phase that it acts upon, and whether it has the key."""

    replica: str
    authority: AuthorityId
    phase: Phase
    has_key: bool


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """The newest certificate of its purpose that an agent holds and that has neither ended nor been revoked."""

    cluster: ClusterName
    agent: AgentId
    signed_by: str | None
    issued_at: datetime


def signer_of(signed_by: str | None, authorities: Sequence[AuthorityRecord]) -> AuthorityRecord | None:
    """The CA of a record; None: not one of the hub's own. Records from before that was kept are the first CA's."""
    if signed_by is None:
        return min(authorities, key=lambda each: each.created_at, default=None)
    return next((each for each in authorities if each.signer == signed_by), None)


def issuing(authorities: Iterable[AuthorityRecord]) -> AuthorityRecord | None:
    """The one that signs."""
    return next((each for each in authorities if each.phase is Phase.ISSUING), None)


def bundled(authorities: Iterable[AuthorityRecord]) -> tuple[AuthorityRecord, ...]:
    """Those that peers should trust, the one that signs first. One that is compromised leaves as soon as another signs."""
    chosen = [each for each in authorities if each.phase in BUNDLED and not (each.phase is Phase.OUTGOING and each.is_given_up)]
    return tuple(sorted(chosen, key=lambda each: (each.phase is not Phase.ISSUING, each.created_at)))


def admitted(authorities: Iterable[AuthorityRecord]) -> tuple[AuthorityRecord, ...]:
    """Those whose certificates the doors' TLS lets in."""
    return tuple(each for each in authorities if each.phase in ADMITTED)
