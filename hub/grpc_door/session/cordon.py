"""Cordon and drain of this replica by an operator.

A drain asks every open session to leave, at a bounded rate. Its agent opens the next session first, wherever the load balancer
leads it, and beats here until that one carries a beat. Sessions that remain after `grace` are ended. New sessions get
UNAVAILABLE and retry. The process is unready meanwhile, so that load balancers avoid it; registration and the HTTPS door
continue.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import structlog

from hub.grpc_door.session.sessions import OpenSession
from machinery.errors import UnavailableError
from machinery.runtime.rate_limit import LEAST_RATE, drain_rate, paced

RETRY = timedelta(seconds=1)
HINT = timedelta(seconds=2)
"""Agents leave at a random moment within this time."""
SPREAD = 0.5
"""Share of the grace within which even a large number of sessions is asked to leave."""

log = structlog.get_logger(__name__)


class Cordon:
    """`sessions`: returns the open ones; `grace`: how long a session may stay after it was asked to leave."""

    def __init__(self, grace: timedelta = timedelta(minutes=5), sessions: Callable[[], Sequence[OpenSession]] = tuple) -> None:
        self._grace = grace
        self._sessions = sessions
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def order(self, closed: bool) -> None:  # noqa: FBT001 - what is ordered
        """Begins or ends the cordon. Idempotent."""
        if closed != self._closed:
            self._closed = closed
            log.info("replica is drained" if closed else "replica takes sessions again", sessions=len(self._sessions()))
            self._changed.set()

    def check(self) -> None:
        """Raises UnavailableError while the replica is cordoned."""
        if self._closed:
            raise UnavailableError("this replica of the hub is drained: try again, another one answers", retry_after=RETRY)

    async def ready(self) -> None:
        """Health check. Raises RuntimeError while the replica is cordoned."""
        if self._closed:
            raise RuntimeError("an operator drains this replica (hubctl uncordon replica)")

    async def run(self) -> None:
        """Drains sessions whenever a cordon begins, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._closed:
                await self._drain()

    async def _drain(self) -> None:
        """Asks sessions to leave and ends the rest; stops when the cordon ends."""
        sessions = self._sessions()
        rate = drain_rate(len(sessions), self._grace * SPREAD)
        async for session in paced(sessions, rate):
            if not self._closed:
                return
            session.drain(HINT, "this replica of the hub is drained: open the next session elsewhere")
        if await self._told_otherwise_within(self._grace):
            return
        left = [session for session in sessions if session in self._sessions()]
        log.info("sessions that did not leave are ended", count=len(left))
        async for session in paced(left, LEAST_RATE):
            if not self._closed:
                return
            session.end(UnavailableError("this replica of the hub is drained", retry_after=RETRY))

    async def _told_otherwise_within(self, time: timedelta) -> bool:
        """Waits for this time. Returns True at once if the order changes; a cordon that begins again at once starts over."""
        try:
            async with asyncio.timeout(time.total_seconds()):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
