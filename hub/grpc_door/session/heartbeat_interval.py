"""Beat interval of agents: the hub's setting for few agents, longer if so many would keep a replica busy.

So the load of beats on a replica is bounded. No decision waits for a beat: an agent sends a new verdict at once, whatever the
interval, and a cluster is silent only after five leases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import ceil

STEP = timedelta(seconds=5)
"""Longer intervals are multiples of it, so that not every new session changes the interval of all agents."""
PER_LEASE = 2
"""Intervals grow at most to this part of the lease: an agent is ready while a beat was acknowledged within its lease."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """`interval`: the hub's setting. `beats_per_second`: limit for all sessions of this replica together; 0: no limit."""

    interval: timedelta
    beats_per_second: float
    sessions: Callable[[], int]

    def of(self, lease_duration: timedelta) -> timedelta:
        """Returns the current interval for a cluster with this lease duration; never longer than the lease."""
        if not self.beats_per_second:
            return min(self.interval, lease_duration)
        return _interval(self.interval, lease_duration, self.sessions() / self.beats_per_second)


@lru_cache(maxsize=64)
def _interval(interval: timedelta, lease_duration: timedelta, wanted: float) -> timedelta:
    """Cached, because it is called for each acknowledgement with few different values. `wanted`: seconds."""
    shortest, steps = min(interval, lease_duration), ceil(wanted / STEP.total_seconds())
    return max(shortest, min(steps * STEP, lease_duration / PER_LEASE)) if wanted > shortest.total_seconds() else shortest
