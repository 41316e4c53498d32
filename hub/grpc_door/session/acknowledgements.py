"""Beat intervals of agents, and the acknowledgements of a session's beats.

If there are many agents, the interval is longer than the hub's setting, so that the load of beats on a replica is bounded. A
longer interval delays no decision: an agent sends a new verdict immediately, and a cluster is silent only after five lease
durations.

An acknowledgement names the newest stored beat and covers all earlier beats. Acknowledgements are most of the cost of beats
(ADR 0015). So a session that beats faster than `spacing` gets one acknowledgement for several beats. A beat after a longer
pause, the first beat of a session and a beat that ends a silence are acknowledged as soon as they are stored.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import ceil, inf

from machinery.wire.session.v1 import session_pb2 as wire

INTERVAL_STEP = timedelta(seconds=5)
"""Intervals longer than the setting are multiples of this, so that a new session rarely changes the interval of all agents."""
INTERVALS_PER_LEASE = 2
"""The longest interval is the lease duration divided by this: an agent is ready only if a beat was acknowledged within its
lease."""


@dataclass(frozen=True, slots=True)
class BeatRate:
    """Computes beat intervals. `interval`: the setting. `beats_per_second`: limit for this replica; 0: no limit.

    `sessions`: returns the number of open sessions.
    """

    interval: timedelta
    beats_per_second: float
    sessions: Callable[[], int]

    def of(self, lease_duration: timedelta) -> timedelta:
        """Returns the current beat interval for a cluster with this lease duration. It is never longer than the lease."""
        needed = self.sessions() / self.beats_per_second if self.beats_per_second else 0.0
        return _interval(self.interval, lease_duration, needed)


@lru_cache(maxsize=64)
def _interval(interval: timedelta, lease_duration: timedelta, needed: float) -> timedelta:
    """Return the interval: at least `needed` seconds, if the lease allows this. Cached, because it is called often."""
    shortest, steps = min(interval, lease_duration), ceil(needed / INTERVAL_STEP.total_seconds())
    if needed <= shortest.total_seconds():
        return shortest
    return max(shortest, min(steps * INTERVAL_STEP, lease_duration / INTERVALS_PER_LEASE))


ACK_TIMEOUT, MAX_ACK_TIMEOUT = timedelta(seconds=5), timedelta(seconds=10)
"""An agent considers its hub silent after this time without an acknowledgement (defaults). ACK_TIMEOUT applies to beat
intervals of ACK_TIMEOUT or longer, MAX_ACK_TIMEOUT to shorter intervals."""
ACK_MARGIN = timedelta(seconds=0.5)
PER_LEASE = 4
"""Acknowledgements per lease: an agent is ready only if a beat was acknowledged within its lease."""
TICK = 0.25


@lru_cache(maxsize=10_000)
def encoded_ack(sequence: int, next_interval: timedelta | None = None) -> bytes:
    """Returns the encoded BeatAck, cached for all sessions. `next_interval`: the agent's beat interval from now on."""
    ack = wire.BeatAck(sequence=sequence)
    if next_interval is not None:
        ack.next_interval.FromTimedelta(next_interval)
    return wire.HubMessage(beat_ack=ack).SerializeToString()


def spacing(lease_duration: timedelta, interval: timedelta, ack_timeout: timedelta = timedelta()) -> float:
    """Returns the least seconds between acknowledgements. Spacing plus flush window is well below the agent's time-out.

    `interval`: the beat interval. `ack_timeout`: the time-out that the agent reports. It applies to intervals shorter than
    ACK_TIMEOUT; half of it applies to longer intervals. Zero: the agent reports none.
    """
    often, rarely = (ack_timeout, ack_timeout / 2) if ack_timeout else (ACK_TIMEOUT, ACK_TIMEOUT)
    timeout = min(often, MAX_ACK_TIMEOUT) if interval < ACK_TIMEOUT else min(rarely, ACK_TIMEOUT)
    return max(min(timeout / 2 - ACK_MARGIN, lease_duration / PER_LEASE).total_seconds(), 0.0)


class Deferred:
    """Delays calls. Calls within one TICK share a timer, because there are thousands of calls; equal calls are made once."""

    def __init__(self) -> None:
        self._due: dict[int, dict[Callable[[], None], None]] = {}

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Makes the call at `when` by the event loop's clock, or up to a tick later."""
        tick = ceil(when / TICK)
        if tick not in self._due:
            self._due[tick] = {}
            asyncio.get_running_loop().call_at(tick * TICK, self._sweep, tick)
        self._due[tick][call] = None

    def _sweep(self, tick: int) -> None:
        for call in self._due.pop(tick):
            call()


class Acknowledgements:
    """Computes the acknowledgements of one session and when they are due. `ack_timeout`: see `spacing`."""

    def __init__(self, rate: BeatRate, ack_timeout: timedelta) -> None:
        self.interval = timedelta()
        """The agent's beat interval."""
        self._rate = rate
        self.ack_timeout = ack_timeout
        self._longest_interval = timedelta()
        """The longest interval so far: the agent may have derived its time-out from an earlier interval."""
        self._lease = timedelta()
        self._spacing = 0.0
        self._stored = self._sent = 0
        self._sent_at = -inf

    def set_lease(self, lease_duration: timedelta) -> bool:
        """Sets the cluster's lease duration. Returns whether the agent's beat interval has changed."""
        self._lease, before = lease_duration, self.interval
        self._set_interval(self._rate.of(lease_duration))
        return self.interval != before

    def stored(self, sequence: int) -> float | None:
        """Records that this beat and all before it are durable. Returns when the acknowledgement is due.

        The time is in seconds of the event loop's clock. None: this beat, or a later one, was recorded before.
        """
        if sequence <= self._stored:
            return None
        self._stored = sequence
        return self._sent_at + self._spacing

    def due_ack(self, now: float) -> bytes | None:
        """Returns the encoded acknowledgement that is due, or None. It contains the beat interval if this has changed."""
        if self._sent >= self._stored:
            return None
        self._sent, self._sent_at = self._stored, now
        interval = self._rate.of(self._lease)
        if interval == self.interval:
            return encoded_ack(self._sent)
        self._set_interval(interval)
        return self.last_ack()

    def last_ack(self) -> bytes:
        """Returns the newest acknowledgement again, with the interval."""
        return encoded_ack(self._sent, self.interval)

    def _set_interval(self, interval: timedelta) -> None:
        self.interval = interval
        self._longest_interval = max(self._longest_interval, interval)
        self._spacing = spacing(self._lease, self._longest_interval, self.ack_timeout)
