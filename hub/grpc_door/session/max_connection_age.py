"""Maximum age of sessions: agents reconnect after a while, so that they spread over all replicas.

A load balancer places only new connections, so a new replica would stay empty without this. The agent opens its next session
before it leaves this one, so no beat is lost. Each session draws its own moment, so that a fleet that came at once does not
move at once. A connection may become older than a session; gRPC ends it then, whatever it is used for.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Protocol

from machinery.errors import MusterError, UnavailableError

JITTER = 0.2
"""Sessions may end earlier than the maximum age by up to this share of it."""
LONGEST_HINT = timedelta(seconds=10)
BACKSTOP = 1.25
"""gRPC ends a connection after this multiple of the maximum age (and the grace), varied by a tenth."""


@dataclass(frozen=True, slots=True)
class Age:
    """`limit` 0: no maximum age. `grace`: how long the agent has to reconnect."""

    limit: timedelta = timedelta(hours=1)
    grace: timedelta = timedelta(minutes=5)

    @property
    def options(self) -> tuple[tuple[str, int], ...]:
        """Options of the gRPC server."""
        if not self.limit:
            return ()
        connection = self.limit * BACKSTOP + self.grace
        return (
            ("grpc.max_connection_age_ms", _milliseconds(connection)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(self.grace)),
        )

    def drawn(self, random: Random) -> timedelta:
        """Returns when a session that begins now is asked to leave."""
        return self.limit * (1 - JITTER * random.random())


class Leaving(Protocol):
    """A session, as this module uses it."""

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
