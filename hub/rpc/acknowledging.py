"""How often a session is told which of its beats are durable.

An acknowledgement names the newest stored beat and speaks for all before it, and writing it is most of what a beat costs (ADR
0011). So a session that beats faster than `spacing` hears of several beats at once. A beat that comes after a longer pause, the
first one of a session and one that ends a silence are acknowledged as soon as they are stored.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from math import ceil

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


def encoded_ack(sequence: int) -> bytes:
    """Encoded once for all sessions: they count alike."""
    raw = _ACKS.get(sequence)
    if raw is None:
        if len(_ACKS) >= MAX_ACKS:
            _ACKS.clear()
        raw = _ACKS[sequence] = wire.HubMessage(beat_ack=wire.BeatAck(sequence=sequence)).SerializeToString()
    return raw


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
