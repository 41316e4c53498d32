"""How often agents beat: at the hub's interval while there are few, and more seldom where so many would keep a replica busy.

What a replica spends on beats is bounded by that and does not grow with the fleet. Nothing waits for a beat: a new verdict is
told at once, whatever the interval, and a cluster is called silent after five leases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import ceil

STEP = timedelta(seconds=5)
"""Longer intervals are whole multiples of it, so that not every session that opens changes what all are told."""
PER_LEASE = 2
"""No interval is lengthened beyond this part of the lease: an agent is ready while a beat was acknowledged within its lease."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """`interval`: of the hub's settings. `beats_per_second`: of all sessions of this replica together; 0: however many come."""

    interval: timedelta
    beats_per_second: float
    sessions: Callable[[], int]

    def of(self, lease_duration: timedelta) -> timedelta:
        """The interval that a session of a cluster with this lease is told now; never longer than the lease."""
        if not self.beats_per_second:
            return min(self.interval, lease_duration)
        return _interval(self.interval, lease_duration, self.sessions() / self.beats_per_second)


@lru_cache(maxsize=64)
def _interval(interval: timedelta, lease_duration: timedelta, wanted: float) -> timedelta:
    """Asked with every acknowledgement, nearly always about the same. `wanted`: seconds."""
    shortest, steps = min(interval, lease_duration), ceil(wanted / STEP.total_seconds())
    return max(shortest, min(steps * STEP, lease_duration / PER_LEASE)) if wanted > shortest.total_seconds() else shortest
