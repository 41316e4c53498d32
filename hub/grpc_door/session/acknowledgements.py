"""Beat intervals of agents, and the acknowledgements of a session's beats.

The interval is the hub's setting for few agents, and longer if so many would keep a replica busy. So the load of beats on a
replica is bounded. No decision waits for a beat: an agent sends a new verdict at once, and a cluster is silent only after five
leases.

An acknowledgement names the newest stored beat and covers all before it; writing it is most of the cost of a beat (ADR 0015).
So a session that beats faster than `spacing` gets one acknowledgement for several beats. A beat after a longer pause, the first
beat of a session and one that ends a silence are acknowledged as soon as they are stored.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from math import ceil, inf

from machinery.wire.session.v1 import session_pb2 as wire

INTERVAL_STEP = timedelta(seconds=5)
"""Longer intervals are multiples of it, so that not every new session changes the interval of all agents."""
INTERVALS_PER_LEASE = 2
"""Intervals grow at most to this part of the lease: an agent is ready while a beat was acknowledged within its lease."""


@dataclass(frozen=True, slots=True)
class BeatRate:
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
    shortest, steps = min(interval, lease_duration), ceil(wanted / INTERVAL_STEP.total_seconds())
    return (
        max(shortest, min(steps * INTERVAL_STEP, lease_duration / INTERVALS_PER_LEASE))
        if wanted > shortest.total_seconds()
        else shortest
    )


PATIENCE, MOST_PATIENT = timedelta(seconds=5), timedelta(seconds=10)
"""After how long without an acknowledgement an agent considers its hub silent: the shortest time, and the longest that is used
if an agent says that it waits longer, which counts only if it beats more often than every PATIENCE."""
SLACK = timedelta(seconds=0.5)
PER_LEASE = 4
"""An agent is ready while a beat was acknowledged within its lease, so it gets several acknowledgements per lease."""
TICK = 0.25
MAX_ACKS = 10_000
_ACKS: dict[int, bytes] = {}


def encoded_ack(sequence: int, next_interval: timedelta | None = None) -> bytes:
    """Returns the encoded message, cached for all sessions. `next_interval`: the agent's beat interval from now on."""
    if next_interval is not None:
        return _encoded(sequence, next_interval)
    raw = _ACKS.get(sequence)
    if raw is None:
        if len(_ACKS) >= MAX_ACKS:
            _ACKS.clear()
        raw = _ACKS[sequence] = _encoded(sequence)
    return raw


def _encoded(sequence: int, next_interval: timedelta | None = None) -> bytes:
    ack = wire.BeatAck(sequence=sequence)
    if next_interval is not None:
        ack.next_interval.FromTimedelta(next_interval)
    return wire.HubMessage(beat_ack=ack).SerializeToString()


def spacing(lease_duration: timedelta, interval: timedelta, ack_timeout: timedelta = PATIENCE) -> float:
    """Returns the seconds between acknowledgements; with the flush window well below the time that the agent waits.

    `interval`: the beat interval; `ack_timeout`: how long the agent says that it waits.
    """
    patience = min(max(ack_timeout, PATIENCE), MOST_PATIENT) if interval < PATIENCE else PATIENCE
    return min(patience / 2 - SLACK, lease_duration / PER_LEASE).total_seconds()


class Deferred:
    """Delayed calls. Calls within one tick share a timer, because there are thousands of them."""

    def __init__(self) -> None:
        self._due: dict[int, list[Callable[[], None]]] = {}

    def call_at(self, when: float, tell: Callable[[], None]) -> None:
        """Calls `tell` at `when` by the event loop's clock, or up to a tick later."""
        tick = ceil(when / TICK)
        waiting = self._due.get(tick)
        if waiting is None:
            waiting = self._due[tick] = []
            asyncio.get_running_loop().call_at(tick * TICK, self._sweep, tick)
        waiting.append(tell)

    def _sweep(self, tick: int) -> None:
        for tell in self._due.pop(tick):
            tell()


class Acknowledgements:
    """Acknowledgements of one session. `now`: the event loop's time; `write_soon`: schedules a write of `due_ack`."""

    def __init__(self, tempo: BeatRate, deferred: Deferred, now: Callable[[], float], write_soon: Callable[[], None]) -> None:
        self._tempo = tempo
        self._deferred = deferred
        self._now = now
        self._write_soon = write_soon
        self._stored = self._told = 0
        self._told_at = -inf
        self._waits = False
        self._lease = self._interval = self._patience = timedelta()
        self._spacing = 0.0

    def begin(self, patience: timedelta) -> None:
        """`patience`: how long the agent says that it waits for an acknowledgement, if it beats often."""
        self._patience = patience

    def lease(self, lease_duration: timedelta) -> bool:
        """Sets the cluster's lease duration. Returns whether the agent's beat interval has changed."""
        self._lease, before = lease_duration, self._interval
        self._beats_every(self._tempo.of(lease_duration))
        return self._interval != before

    @property
    def interval(self) -> timedelta:
        """The agent's beat interval."""
        return self._interval

    def again(self) -> bytes:
        """Returns the newest acknowledgement again, with the interval."""
        return encoded_ack(self._told, self._interval)

    def stored(self, sequence: int, *, at_once: bool) -> None:
        """Records that this beat and all before it are durable."""
        if sequence <= self._stored:
            return
        self._stored = sequence
        due = self._told_at + self._spacing
        if at_once or self._now() >= due:
            self._write_soon()
        elif not self._waits:
            self._waits = True
            self._deferred.call_at(due, self.flush)

    def flush(self) -> None:
        """Schedules an acknowledgement of beats that are stored and not acknowledged."""
        self._waits = False
        if self._told < self._stored:
            self._write_soon()

    def due_ack(self) -> bytes | None:
        """Returns the acknowledgement that is due, or None; with the interval if the number of agents has changed it."""
        if self._told >= self._stored:
            return None
        self._told, self._told_at = self._stored, self._now()
        interval = self._tempo.of(self._lease)
        if interval == self._interval:
            return encoded_ack(self._told, None)
        self._beats_every(interval)
        return encoded_ack(self._told, interval)

    def _beats_every(self, interval: timedelta) -> None:
        self._interval = interval
        if interval >= PATIENCE:
            self._patience = PATIENCE  # permanently: the agent may have chosen how long it waits by this interval
        self._spacing = spacing(self._lease, interval, self._patience)
