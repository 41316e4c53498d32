"""How often a session is told which of its beats are durable.

An acknowledgement names the newest stored beat and speaks for all before it, and writing it is most of what a beat costs (ADR
0015). So a session that beats faster than `spacing` hears of several beats at once. A beat that comes after a longer pause, the
first one of a session and one that ends a silence are acknowledged as soon as they are stored.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from math import ceil, inf

from hub.grpc_door.session.heartbeat_interval import Tempo
from machinery.wire.session.v1 import session_pb2 as wire

PATIENCE, MOST_PATIENT = timedelta(seconds=5), timedelta(seconds=10)
"""After how long an agent calls its hub silent: the least, and the most that is made use of where an agent says that it waits
longer. It does so only where its beats come more often than every PATIENCE."""
SLACK = timedelta(seconds=0.5)
PER_LEASE = 4
"""An agent is ready while a beat was acknowledged within its lease: it hears often enough to stay so."""
TICK = 0.25
MAX_ACKS = 10_000
_ACKS: dict[int, bytes] = {}


def encoded_ack(sequence: int, next_interval: timedelta | None = None) -> bytes:
    """Encoded once for all sessions: they count alike. `next_interval`: at which the agent is to beat from now on."""
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


def spacing(lease_duration: timedelta, interval: timedelta, told: timedelta = PATIENCE) -> float:
    """Seconds from one acknowledgement to the next: with the flush window, well below what the agent waits.

    `interval`: at which it beats; `told`: how long it says that it waits.
    """
    patience = min(max(told, PATIENCE), MOST_PATIENT) if interval < PATIENCE else PATIENCE
    return min(patience / 2 - SLACK, lease_duration / PER_LEASE).total_seconds()


class Deferred:
    """What is to be called a little later. Calls that fall into one tick share a timer: there are thousands of them."""

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
    """What one agent is told of its beats. `now`: the event loop's time; `write_soon`: `due_ack` will be asked for."""

    def __init__(self, tempo: Tempo, deferred: Deferred, now: Callable[[], float], write_soon: Callable[[], None]) -> None:
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
        """`patience`: for how long the agent says that it waits for an acknowledgement, where it beats often."""
        self._patience = patience

    def lease(self, lease_duration: timedelta) -> bool:
        """The cluster's lease, as a session begins and when it may be another: whether the agent is to beat at another pace."""
        self._lease, before = lease_duration, self._interval
        self._beats_every(self._tempo.of(lease_duration))
        return self._interval != before

    @property
    def interval(self) -> timedelta:
        """At which the agent is to beat."""
        return self._interval

    def again(self) -> bytes:
        """The newest acknowledgement once more, with the interval."""
        return encoded_ack(self._told, self._interval)

    def stored(self, sequence: int, *, at_once: bool) -> None:
        """This beat and all before it are durable."""
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
        """Tells what is not told yet."""
        self._waits = False
        if self._told < self._stored:
            self._write_soon()

    def due_ack(self) -> bytes | None:
        """What is to be written now, if anything; with the interval where there are more or fewer agents by now."""
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
            self._patience = PATIENCE  # for good: the agent may have chosen by this interval how long it waits
        self._spacing = spacing(self._lease, interval, self._patience)
