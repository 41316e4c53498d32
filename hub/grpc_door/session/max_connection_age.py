"""How old a session gets: after a while its agent is asked to come anew, so that agents spread over the replicas there are.

A load balancer places connections, and only new ones: without this a replica that was added would stay empty. The agent opens
its next session before it leaves this one, so no beat is lost; each draws its own moment, so that a fleet that came at once
does not move at once. The connection itself may get older than any session, and ends then too, whatever it is used for.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Protocol

from machinery.errors import MusterError, UnavailableError

JITTER = 0.2
"""Of its age a session may miss so much."""
LONGEST_HINT = timedelta(seconds=10)
BACKSTOP = 1.25
"""A connection ends by itself at so many ages, and gRPC shifts that by a tenth in either direction."""


@dataclass(frozen=True, slots=True)
class Age:
    """`limit` 0: sessions stay for as long as they please. `grace`: how long the agent has to come anew."""

    limit: timedelta = timedelta(hours=1)
    grace: timedelta = timedelta(minutes=5)

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """Of the gRPC server."""
        if not self.limit:
            return ()
        connection = self.limit * BACKSTOP + self.grace
        return (
            ("grpc.max_connection_age_ms", _milliseconds(connection)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(self.grace)),
        )

    def drawn(self, random: Random) -> timedelta:
        """When a session that begins now is asked to leave."""
        return self.limit * (1 - JITTER * random.random())


class Leaving(Protocol):
    """A session, as far as its age goes."""

    def drain(self, reconnect_after: timedelta, reason: str = ...) -> None: ...

    def end(self, error: MusterError) -> None: ...


class Aging:
    """The timers of one session; made when it begins, cancelled when it ends."""

    def __init__(self, age: Age, session: Leaving, random: Random | None = None) -> None:
        self._age = age
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if age.limit:
            drawn = age.drawn(random or _RANDOM)
            self._timer = self._loop.call_later(drawn.total_seconds(), self._ask)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        self._session.drain(min(self._age.grace / 2, LONGEST_HINT), "this session is old: open the next one")
        self._timer = self._loop.call_later(self._age.grace.total_seconds(), self._end)

    def _end(self) -> None:
        self._session.end(UnavailableError("this session has become too old", retry_after=timedelta(seconds=1)))


_RANDOM = Random()  # noqa: S311 - spreads load, guards nothing


def _milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
