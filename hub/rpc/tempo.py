"""How often agents beat: at the hub's interval while there are few, and more seldom where so many would keep a replica busy.

What a replica spends on beats is bounded by that and does not grow with the fleet. Nothing waits for a beat: a new verdict is
told at once, whatever the interval, and a cluster is called silent after five leases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
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
        shortest = min(self.interval, lease_duration)
        if not self.beats_per_second:
            return shortest
        wanted = timedelta(seconds=self.sessions() / self.beats_per_second)
        if wanted <= shortest:
            return shortest
        return max(shortest, min(ceil(wanted / STEP) * STEP, lease_duration / PER_LEASE))
