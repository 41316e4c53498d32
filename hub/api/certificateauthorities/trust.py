"""What an agent trusts this hub by, and which certificate it holds: what a change of the hub's CA waits for."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from machinery.errors import BadRequestError
from machinery.identity import AgentId, ClusterName, SerialNumber

MOST = 32
"""CA certificates that an agent may say it trusts."""
HEX = frozenset("0123456789abcdef")
LENGTH = 64


@dataclass(frozen=True, slots=True)
class AgentTrust:
    """What one agent said last, in its session or standing by. `since`: from when on it has been so, in database time."""

    cluster: ClusterName
    agent: AgentId
    trusted: frozenset[str] | None
    """Hex SHA-256 of the DER of each CA certificate; None: it does not say, as earlier releases do not."""
    serial: SerialNumber
    issued_at: datetime
    not_after: datetime
    signed_by: str | None
    """As in the certificate's record. None: signed before that was recorded, by the hub's first CA."""
    since: datetime

    def trusts(self, fingerprint: str) -> bool:
        return self.trusted is not None and fingerprint in self.trusted

    def is_as(self, other: "AgentTrust | None") -> bool:
        """Whether both say the same, since whenever."""
        return other is not None and (self.trusted, self.serial) == (other.trusted, other.serial)


def told(fingerprints: Iterable[str]) -> frozenset[str] | None:
    """What an agent says that it trusts; None: it does not say. Raises BadRequestError for what is no list of fingerprints."""
    said = frozenset(fingerprints)
    if len(said) > MOST or any(len(each) != LENGTH or not HEX.issuperset(each) for each in said):
        raise BadRequestError(f"trusted_authorities: at most {MOST} hex SHA-256 of CA certificates in DER, in lower case")
    return said or None
