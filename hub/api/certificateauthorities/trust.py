"""The CAs that an agent trusts and the certificate that it holds, as a CA rotation needs them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from machinery.errors import BadRequestError
from machinery.identity import AgentId, ClusterName, SerialNumber

MOST = 32
"""Largest number of CA certificates in an agent's report."""
HEX = frozenset("0123456789abcdef")
LENGTH = 64


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """An agent's last report, in a session or on standby. `since`: database time at which this state began."""

    cluster: ClusterName
    agent: AgentId
    trusted: frozenset[str] | None
    """Hex SHA-256 of the DER of each CA certificate; None if the agent, of an earlier release, does not report them."""
    serial: SerialNumber
    issued_at: datetime
    not_after: datetime
    signed_by: str | None
    """As in the certificate's record. None: signed by the hub's first CA before signers were recorded."""
    since: datetime

    def trusts(self, fingerprint: str) -> bool:
        return self.trusted is not None and fingerprint in self.trusted

    def is_as(self, other: "AgentTrust | None") -> bool:
        """Whether both have the same content, except `since`."""
        return other is not None and (self.trusted, self.serial) == (other.trusted, other.serial)


def told(fingerprints: Iterable[str]) -> frozenset[str] | None:
    """The reported fingerprints; None if the agent reports none. Raises BadRequestError for invalid fingerprints."""
    said = frozenset(fingerprints)
    if len(said) > MOST or any(len(each) != LENGTH or not HEX.issuperset(each) for each in said):
        raise BadRequestError(f"trusted_authorities: at most {MOST} hex SHA-256 of CA certificates in DER, in lower case")
    return said or None
