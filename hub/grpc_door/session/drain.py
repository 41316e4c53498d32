"""Asks agents to reconnect: all agents when an operator drains this replica, and each agent when its session is old.

A drain asks the agent of every open session to leave, at a bounded rate. The agent first opens the next session, at a replica
that the load balancer selects, and sends beats here until the first beat of the next session is acknowledged. Sessions that
remain after `grace` are ended. Agents that try to open a session here get UNAVAILABLE and retry. The process is unready during
the cordon, so that load balancers avoid it. Registration and the HTTPS door continue.

A load balancer distributes only new connections, so without a maximum age a new replica would stay empty. Each session ends at
a random age, so that agents that connected together do not reconnect together. gRPC ends a connection that is older than the
maximum age of a session, even if the connection is in use.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from random import Random

import structlog

from hub.grpc_door.session.sessions import OpenSession
from machinery.errors import UnavailableError
from machinery.runtime.event_loop import LEAST_RATE, drain_rate, paced

log = structlog.get_logger(__name__)

RETRY = timedelta(seconds=1)
RECONNECT_WITHIN = timedelta(seconds=2)
"""An agent opens its next session at a random moment within this time after the message Drain."""
SPREAD = 0.5
"""Share of `Cordon`'s `grace` in which the hub asks all sessions to leave, regardless of their number."""


class Cordon:
    """The cordon of this replica. `sessions` returns open sessions. `grace`: time from the last Drain to their end."""

    def __init__(self, grace: timedelta = timedelta(minutes=5), sessions: Callable[[], Sequence[OpenSession]] = tuple) -> None:
        self._grace = grace
        self._sessions = sessions
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def order(self, closed: bool) -> None:  # noqa: FBT001 - what is ordered
        """Begins the cordon if `closed` is true; else ends the cordon. Idempotent."""
        if closed != self._closed:
            self._closed = closed
            log.info("replica is drained" if closed else "replica takes sessions again", sessions=len(self._sessions()))
            self._changed.set()

    def check(self) -> None:
        """Raises UnavailableError while the replica is cordoned."""
        if self._closed:
            raise UnavailableError("this replica of the hub is drained: try again, another one answers", retry_after=RETRY)

    async def ready(self) -> None:
        """Raises RuntimeError while the replica is cordoned, so that /readyz fails."""
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
            session.drain(RECONNECT_WITHIN, "this replica of the hub is drained: open the next session elsewhere")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._grace.total_seconds()):
                await self._changed.wait()
                return  # the order has changed; a cordon that begins again immediately starts over
        left = [session for session in sessions if session in self._sessions()]
        log.info("sessions that did not leave are ended", count=len(left))
        async for session in paced(left, LEAST_RATE):
            if not self._closed:
                return
            session.end(UnavailableError("this replica of the hub is drained", retry_after=RETRY))


JITTER = 0.2
"""Sessions may end earlier than at the maximum age, by up to this share of the maximum age."""
MAX_RECONNECT_WITHIN = timedelta(seconds=10)
BACKSTOP = 1.25
"""gRPC ends a connection after this multiple of `Age.limit`, plus `Age.grace`. gRPC varies this time by a tenth."""


@dataclass(frozen=True, slots=True)
class Age:
    """The maximum age of sessions. `limit` 0: no maximum. `grace`: time from the message Drain to the end of an old session."""

    limit: timedelta = timedelta(hours=1)
    grace: timedelta = timedelta(minutes=5)

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """Options with which the gRPC server enforces the maximum age."""
        if not self.limit:
            return ()
        connection, millisecond = self.limit * BACKSTOP + self.grace, timedelta(milliseconds=1)
        return (
            ("grpc.max_connection_age_ms", connection // millisecond),
            ("grpc.max_connection_age_grace_ms", self.grace // millisecond),
        )

    def drawn(self, random: Random) -> timedelta:
        """Returns a random age, 80 to 100 % of `limit`, at which a new session is asked to leave."""
        return self.limit * (1 - JITTER * random.random())


_RANDOM = Random()  # noqa: S311 - spreads load, guards nothing


@dataclass(slots=True)
class Aging:
    """Context manager of a session: asks the agent to leave when the session is old, and ends the session after `age.grace`."""

    age: Age
    session: OpenSession
    _timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self.age.limit:
            self._call_after(self.age.drawn(_RANDOM), self._ask)

    def __exit__(self, *_error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self.session.drain(min(self.age.grace / 2, MAX_RECONNECT_WITHIN), "this session is old: open the next one")
        old = UnavailableError("this session has become too old", retry_after=RETRY)
        self._call_after(self.age.grace, partial(self.session.end, old))

    def _call_after(self, delay: timedelta, call: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay.total_seconds(), call)
