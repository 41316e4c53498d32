"""Time limits and retries for the steps of a start that wait for other systems."""

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
    """Await `work`. After `limit` raises StartError, which names `what` and the remedy `then`."""
    try:
        async with asyncio.timeout(limit.total_seconds()) as bound:
            return await work
    except TimeoutError:
        if not bound.expired():
            raise
        raise StartError(_too_long(what, limit, then)) from None


class StartupRetry:
    """Retries steps of a start whose dependency may be unavailable for a moment.

    A step that raises UnavailableError is repeated, so it must be safe to repeat. `stop`: set to abandon the start.
    """

    def __init__(self, limit: timedelta, *, then: str, stop: asyncio.Event) -> None:
        """`limit`: for each step, all attempts together; `then`: the remedy to state when it is exceeded."""
        self._limit = limit
        self._then = then
        self._stop = stop

    async def __call__(self, what: str, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `step`. Raises StartError with `what` and the last failure, after the limit or on a stop."""
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
