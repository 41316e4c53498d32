"""The timings of an election, and the interface of its lock. A lock is one LockRecord, which conditional writes change."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Protocol

from machinery.durations import format_duration
from machinery.errors import InvalidError

JITTER = 1.2
"""Upper bound of the delay before a retry, as a multiple of the retry period. Kubernetes uses the same value."""
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Timings:
    """Timings. Defaults are Kubernetes', except `poll`. `lease`: how long a lock is held without renewal. Raises InvalidError.

    If each read returns the current lock, there is no leader for at most `poll` after a clean release, and for at most `lease`
    + `poll` after the leader was killed, frozen or cut off; docs/reference/leadership.md lists all causes. A leader survives an
    outage of the lock up to `longest_outage`. Clocks may run at different rates, up to a difference of `lease` -
    `renew_deadline` per lease.
    """

    lease: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    """A leader that has not renewed the lock for this time stops leading."""
    retry: timedelta = timedelta(seconds=2)
    """Period of renewals, and of retries after a failure."""
    poll: timedelta = timedelta(milliseconds=250)
    """Interval at which a waiting candidate checks whether the lock was released."""

    def __post_init__(self) -> None:
        shown = {name: format_duration(getattr(self, name)) for name in ("lease", "renew_deadline", "retry", "poll")}
        if min(self.lease, self.renew_deadline, self.retry, self.poll) < MILLISECOND:
            raise InvalidError(f"every time of the election must be 1ms or longer, not {shown}")
        if self.lease <= self.renew_deadline:
            raise InvalidError(
                f"the lease ({shown['lease']}) must be longer than the renew deadline ({shown['renew_deadline']}): "
                "a leader must know that it lost the lease before another may take it"
            )
        if self.renew_deadline <= JITTER * self.retry:
            raise InvalidError(
                f"the renew deadline ({shown['renew_deadline']}) must be longer than {JITTER} times the retry period "
                f"({shown['retry']}): otherwise one slow renewal costs the leadership"
            )

    @property
    def attempt(self) -> timedelta:
        """Time limit of one call to the lock; a leader has time for a second call."""
        return self.renew_deadline / 2

    @property
    def longest_outage(self) -> timedelta:
        """Longest outage of the lock after which a leader still renews in time in every case."""
        return (ceil(self.renew_deadline / self.retry) - 2) * self.retry


KUBERNETES = Timings()
OPENSHIFT = Timings(lease=timedelta(seconds=137), renew_deadline=timedelta(seconds=107), retry=timedelta(seconds=26))
"""Timings for API servers with outages of a minute. A leader survives outages of 78 s. After a crash, another candidate leads
within 137.25 s, or 163.25 s if the lock is a Lease."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate for the lock. `incarnation` differs between successive processes of the same `identity`."""

    identity: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class LockRecord:
    """The content of the lock. A released lock has the holder "" and keeps its term."""

    holder: str
    incarnation: str
    term: int
    """Increases with every `take` and never decreases. A writer with a lower term is outdated."""
    transitions: int
    lease: timedelta
    acquired_at: datetime
    """Time by the lock's clock, for display only. It is not compared with any clock."""
    renewed_at: datetime
    version: str
    status: str = ""
    """The holder's message about its work; "": none."""


class Lock(Protocol):
    """A lock. Methods raise UnavailableError or DeadlineError if it is silent. A cancelled call may have taken effect."""

    async def read(self) -> LockRecord | None:
        """Return the current record; None if the lock was never held."""

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Make `candidate` the holder in a new term. Raises ConflictError if the record differs from `seen`."""

    async def renew(self, held: LockRecord) -> LockRecord:
        """Renew the lease. Raises ConflictError if the holder of `held` no longer holds the lock in this term."""

    async def release(self, held: LockRecord) -> bool:
        """Release the lock. Return whether this holder still held the lock in this term."""
