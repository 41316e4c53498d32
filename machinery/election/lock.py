"""The lock that one candidate holds at a time: a record that is changed under condition, and nothing else."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who may lead. `incarnation` differs between two processes of the same `identity`, one after the other."""

    identity: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What the lock says. A released one has no holder (""), and keeps everything else."""

    holder: str
    incarnation: str
    term: int
    """Rises with every taking and never falls: of two writers the one with the lower term is late."""
    transitions: int
    """How often the holder was another one than before."""
    lease: timedelta
    acquired_at: datetime
    """By the lock's clock, for people: nobody compares it with a clock of their own."""
    renewed_at: datetime
    """Likewise."""
    version: str
    """Differs after every write."""
    status: str = ""
    """What the holder reports of its work; "": nothing, or not yet."""


class Lock(Protocol):
    """Everything raises UnavailableError when the lock cannot be reached. A call that is cancelled may have had its effect."""

    async def read(self) -> LockRecord | None:
        """The record as it is now; None: nobody ever held the lock."""

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Makes `candidate` the holder, in a new term. Raises ConflictError when the record is no longer as `seen`."""

    async def renew(self, held: LockRecord) -> LockRecord:
        """Says that the holder lives. Raises ConflictError when the lock is no longer held by it in that term."""

    async def release(self, held: LockRecord) -> bool:
        """Lets go of it; whether it was still held by that holder in that term."""
