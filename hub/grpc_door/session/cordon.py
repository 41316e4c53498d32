"""Whether this replica takes sessions: an operator may want it to have none.

A drain is no end: every session that is open is told to leave, at a bounded rate; its agent opens the next one first, wherever
the load balancer leads it, and beats here until that carries a beat. Who has not gone after `grace` is ended. New sessions are
told to try again. The process is unready meanwhile, so that load balancers lead elsewhere; calls of registration and the HTTPS
door are served on.
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
"""Agents leave at a random moment within this."""
SPREAD = 0.5
"""Of the grace: within it all are told, when they are very many."""

log = structlog.get_logger(__name__)


class Cordon:
    """`sessions`: those that are open; `grace`: how long one may stay after it was told to leave."""

    def __init__(self, grace: timedelta = timedelta(minutes=5), sessions: Callable[[], Sequence[OpenSession]] = tuple) -> None:
        self._grace = grace
        self._sessions = sessions
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def order(self, closed: bool) -> None:  # noqa: FBT001 - what is ordered
        """Takes an order, or the end of one. Idempotent."""
        if closed != self._closed:
            self._closed = closed
            log.info("replica is drained" if closed else "replica takes sessions again", sessions=len(self._sessions()))
            self._changed.set()

    def check(self) -> None:
        """Raises UnavailableError while no session may open here."""
        if self._closed:
            raise UnavailableError("this replica of the hub is drained: try again, another one answers", retry_after=RETRY)

    async def ready(self) -> None:
        """The health check. Raises RuntimeError."""
        if self._closed:
            raise RuntimeError("an operator drains this replica (hubctl uncordon replica)")

    async def run(self) -> None:
        """Tells sessions to leave whenever that is ordered, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._closed:
                await self._drain()

    async def _drain(self) -> None:
        """Ends early when the order does."""
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
        """Waits so long, or until the order is taken back; whether it was. One that is given anew at once counts anew."""
        try:
            async with asyncio.timeout(time.total_seconds()):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True
