"""A start that does not hang: each step that waits for something outside has a name and an end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import structlog

from machinery.errors import UnavailableError
from machinery.lifecycle.server import StartError
from machinery.runtime.backoff import Backoff

T = TypeVar("T")
FIRST, LONGEST = timedelta(milliseconds=100), timedelta(seconds=2)

log = structlog.get_logger(__name__)


async def in_time(what: str, work: Awaitable[T], limit: timedelta, *, then: str = "") -> T:
    """What `work` returns. Raises StartError, which names `what` and says what to do (`then`), once `limit` is over."""
    try:
        async with asyncio.timeout(limit.total_seconds()) as bound:
            return await work
    except TimeoutError:
        if not bound.expired():
            raise
        raise StartError(_too_long(what, limit, then)) from None


class StartupRetry:
    """Steps of a start that need something which may be away now and back in a moment.

    A step that raises UnavailableError is made again, so it has to be safe to make twice. `stop`: set when the start is to be
    given up.
    """

    def __init__(self, limit: timedelta, *, then: str, stop: asyncio.Event) -> None:
        """`limit`: for each step, all its attempts together; `then`: what to do when it is over."""
        self._limit = limit
        self._then = then
        self._stop = stop

    async def __call__(self, what: str, step: Callable[[], Awaitable[T]]) -> T:
        """What `step` returns. Raises StartError, which names `what` and why it failed last, in time or when it is to stop."""
        pauses, last = Backoff(FIRST, LONGEST), ""
        try:
            async with asyncio.timeout(self._limit.total_seconds()) as bound:
                while not self._stop.is_set():
                    try:
                        return await step()
                    except UnavailableError as error:
                        last = error.message
                    pause = pauses.next()
                    log.warning("the start waits", for_what=what, error=last, retry_in=round(pause.total_seconds(), 3))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause.total_seconds()):
                            await self._stop.wait()
        except TimeoutError:
            if not bound.expired():
                raise
            raise StartError(_too_long(what, self._limit, self._then, last)) from None
        raise StartError(f"told to stop while it waited for {what}" + (f": {last}" if last else ""))


def _too_long(what: str, limit: timedelta, then: str, why: str = "") -> str:
    return ": ".join(part for part in (f"{what} did not finish within {limit.total_seconds():g} s", why, then) if part)
