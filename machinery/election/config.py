"""How patient an election is. What does not fit together is refused when it is put together, never in the loop."""

from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from machinery.durations import format_duration
from machinery.errors import InvalidError

JITTER = 1.2
"""A retry may come this much later than asked: Kubernetes' factor."""
MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Timings:
    """Kubernetes' own numbers; raises InvalidError. `lease`: how long a lock stands without being renewed.

    Nobody leads for at most `poll` after a clean release, and `lease` + `poll` after the leader was killed, frozen or cut off,
    where every look sees the lock as it is (docs/reference/leadership.md has all causes). The leader bears an outage of the
    lock of `borne`, and clocks that run apart by `lease` - `renew_deadline` within one lease.
    """

    lease: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    """A leader that could not renew for so long leads no more."""
    retry: timedelta = timedelta(seconds=2)
    """How often a leader renews, and anybody tries again after a failure."""
    poll: timedelta = timedelta(milliseconds=250)
    """How often who waits looks whether the lock was released."""

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
        """The longest that one question to the lock may take: a leader has time for a second one."""
        return self.renew_deadline / 2

    @property
    def borne(self) -> timedelta:
        """The longest outage of the lock that costs nothing whenever it begins: a renewal in time comes after it."""
        return (ceil(self.renew_deadline / self.retry) - 2) * self.retry


KUBERNETES = Timings()
OPENSHIFT = Timings(lease=timedelta(seconds=137), renew_deadline=timedelta(seconds=107), retry=timedelta(seconds=26))
"""For API servers that are away for a minute now and then: bears 78 s of that; after a crash another leads in 137.25 s, or in
163.25 s where the lock is a Lease."""
