"""The hub's certificate authorities and their phases.

Distributing -> Issuing -> Outgoing -> Retiring -> Retired.

A *distributing* CA is announced to agents and signs nothing. The *issuing* CA signs all certificates. An *outgoing* CA signs
nothing, but its certificates keep their rights. A *retiring* CA is in no trust bundle, and its certificates are accepted only
for `Recover`, until the last recovery certificate has expired. Certificates of a *retired* CA are not accepted. A compromised
CA becomes *retired* from any phase.

Operators only record an `AuthorityOrder`; the leader performs the steps, each in one transaction.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from machinery.errors import BadRequestError
from machinery.identity import AgentId, ClusterName, SerialNumber

AuthorityId = NewType("AuthorityId", str)
"""The first 16 hex digits of the SHA-256 of the CA's public key."""

OWN = "hub/"
"""Prefix of the names of the hub's own CAs in `signed_by` of records."""


class Phase(StrEnum):
    DISTRIBUTING = "Distributing"
    ISSUING = "Issuing"
    OUTGOING = "Outgoing"
    RETIRING = "Retiring"
    RETIRED = "Retired"


BUNDLED = frozenset((Phase.DISTRIBUTING, Phase.ISSUING, Phase.OUTGOING))
"""Phases of the CAs in the trust bundle. The certificates of these CAs have the rights in the certificates' records."""
RECOVERING = frozenset((Phase.RETIRING,))
"""Phases of the CAs whose certificates are accepted for `Recover` only."""
ADMITTED = BUNDLED | RECOVERING
"""Phases of the CAs whose certificates the servers' TLS accepts."""


class AuthorityOrder(StrEnum):
    """An operator's order about a CA. The leader executes it and then removes it."""

    ROTATE = "Rotate"
    """For the issuing CA: replace it by another CA."""
    COMPROMISED = "Compromised"
    """For any CA: stop accepting its certificates as soon as another CA can sign and the wait for agents has ended."""
    PROCEED = "Proceed"
    """For a CA in a rotation: take the next step now, without waiting for agents."""


@dataclass(frozen=True, slots=True)
class AuthorityRecord:
    """One CA, without its key."""

    id: AuthorityId
    certificate: bytes
    """The CA's self-signed certificate in PEM."""
    phase: Phase
    created_at: datetime
    since: datetime
    """Time at which the CA's current phase began."""
    cross_signed: bytes | None = None
    """Certificate (PEM) for the same subject and key, signed by the previous CA, for agents that trust only that CA."""
    ends_at: datetime | None = None
    """Retiring CA: latest time at which it becomes retired. Compromised CA: end of the wait for agents; None: no wait."""
    within: timedelta | None = None
    """Compromised CA: how long agents have in each of two phases: to trust the next CA, and to renew."""
    order: AuthorityOrder | None = None
    ordered_by: str | None = None
    compromised: bool = False

    @property
    def signer(self) -> str:
        """The CA's name in `signed_by` of records."""
        return OWN + self.id

    @property
    def is_given_up(self) -> bool:
        """Whether an operator has declared the CA compromised."""
        return self.compromised or self.order is AuthorityOrder.COMPROMISED

    def moved(self, phase: Phase, now: datetime, ends_at: datetime | None = None) -> "AuthorityRecord":
        """Return a copy in another phase, without its order. An order COMPROMISED stays until the CA is retired."""
        keeps = self.order is AuthorityOrder.COMPROMISED and phase is not Phase.RETIRED
        order, ordered_by = (self.order, self.ordered_by) if keeps else (None, None)
        return replace(self, phase=phase, since=now, ends_at=ends_at, order=order, ordered_by=ordered_by)


@dataclass(frozen=True, slots=True)
class Follower:
    """State of a CA on one replica: the phase that the replica applies, and whether it has the key."""

    replica: str
    authority: AuthorityId
    phase: Phase
    has_key: bool


@dataclass(frozen=True, slots=True)
class HeldCertificate:
    """An agent's newest certificate of one purpose that has neither expired nor been revoked."""

    cluster: ClusterName
    agent: AgentId
    signed_by: str
    issued_at: datetime


def signer_of(signed_by: str, authorities: Iterable[AuthorityRecord]) -> AuthorityRecord | None:
    """Return the CA that a record names in `signed_by`; None if it is not a CA of the hub."""
    return next((each for each in authorities if each.signer == signed_by), None)


def issuing(authorities: Iterable[AuthorityRecord]) -> AuthorityRecord | None:
    return next((each for each in authorities if each.phase is Phase.ISSUING), None)


def bundled(authorities: Iterable[AuthorityRecord]) -> tuple[AuthorityRecord, ...]:
    """Return the CAs of the trust bundle, the issuing CA first. It contains a compromised CA only until another CA issues."""
    chosen = [each for each in authorities if each.phase in BUNDLED and not (each.phase is Phase.OUTGOING and each.is_given_up)]
    return tuple(sorted(chosen, key=lambda each: (each.phase is not Phase.ISSUING, each.created_at)))


def admitted(authorities: Iterable[AuthorityRecord]) -> tuple[AuthorityRecord, ...]:
    """Return the CAs whose certificates the servers' TLS accepts."""
    return tuple(each for each in authorities if each.phase in ADMITTED)


MAX_FINGERPRINTS = 32
"""Largest number of CA certificates in an agent's report."""
_FINGERPRINT = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """An agent's trusted CAs and certificate, as last reported in a session or on standby. `since`: time of the last change."""

    cluster: ClusterName
    agent: AgentId
    trusted: frozenset[str] | None
    """Hex SHA-256 of the DER of each CA certificate; None if the agent does not report its CAs."""
    serial: SerialNumber
    issued_at: datetime
    not_after: datetime
    signed_by: str
    since: datetime

    def trusts(self, fingerprint: str) -> bool:
        return self.trusted is not None and fingerprint in self.trusted

    def is_as(self, other: "AgentTrust | None") -> bool:
        """Return whether `other` has the same trusted CAs and the same certificate."""
        return other is not None and (self.trusted, self.serial) == (other.trusted, other.serial)


def checked_fingerprints(fingerprints: Iterable[str]) -> frozenset[str] | None:
    """Return the reported fingerprints; None if the agent reports none. Raises BadRequestError for invalid fingerprints."""
    reported = frozenset(fingerprints)
    if len(reported) > MAX_FINGERPRINTS or not all(map(_FINGERPRINT.fullmatch, reported)):
        raise BadRequestError(
            f"trusted_authorities: at most {MAX_FINGERPRINTS} hex SHA-256 of CA certificates in DER, in lower case"
        )
    return reported or None
