"""The port of the leader's lock: a record that one candidate holds, changed by conditional writes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the lock. `incarnation` differs between successive processes of the same `identity`."""

    identity: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The content of the lock. A released lock has the holder "" and keeps everything else."""

    holder: str
    incarnation: str
    term: int
    """Increases with every `take` and never decreases: of two writers, the one with the lower term is late."""
    transitions: int
    """Number of changes of the holder."""
    lease: timedelta
    acquired_at: datetime
    """By the lock's clock, for display only; it is not compared with any clock."""
    renewed_at: datetime
    """As `acquired_at`."""
    version: str
    """Changes with every write."""
    status: str = ""
    """The holder's report about its work; "": none."""


class Lock(Protocol):
    """All methods raise UnavailableError when the lock cannot be reached. A cancelled call may have taken effect."""

    async def read(self) -> LockRecord | None:
        """The current record; None: the lock was never held."""

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Make `candidate` the holder in a new term. Raises ConflictError when the record differs from `seen`."""

    async def renew(self, held: LockRecord) -> LockRecord:
        """Renew the lease. Raises ConflictError when `held` is no longer the holder in that term."""

    async def release(self, held: LockRecord) -> bool:
        """Release the lock. Return whether it was still held by that holder in that term."""
