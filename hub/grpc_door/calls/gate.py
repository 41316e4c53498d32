"""Counts the calls in flight and turns new ones away once it is closed.

`grpc.aio` answers calls that it has received and not yet started with CANCELLED when the server stops. So the gate is closed
first, everything still on its way is answered UNAVAILABLE, and the server stops when nothing has come for a moment.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from machinery.errors import UnavailableError
from machinery.runtime.clock import Clock

QUIET = timedelta(milliseconds=250)
STEP = 0.05
"""Seconds between looks at whether that moment is over."""
RETRY = timedelta(seconds=1)


class Gate:
    """One for all calls of a server but health. `moment`: how long nothing has to come before it counts as quiet."""

    def __init__(self, clock: Clock, moment: timedelta = QUIET) -> None:
        self._clock = clock
        self._moment = moment.total_seconds()
        self._in_flight = 0
        self._last = self._last_arrival = clock.monotonic()
        self._closed = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A block around one call. Raises UnavailableError when the gate is closed."""
        self._last = self._last_arrival = self._clock.monotonic()
        self.check()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._last = self._clock.monotonic()

    def check(self) -> None:
        """Raises UnavailableError when the gate is closed."""
        if self._closed:
            raise UnavailableError("this hub is shutting down: try again", retry_after=RETRY)

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self._last = self._last_arrival = self._clock.monotonic()

    async def still(self, within: timedelta) -> None:
        """Returns when nothing has come for a moment, or when `within` is over; what is in flight may go on."""
        end = self._clock.monotonic() + within.total_seconds()
        while (rest := min(self._last_arrival + self._moment, end) - self._clock.monotonic()) > 0:
            await self._pass(rest)

    async def quiet(self) -> None:
        """Returns when nothing is in flight and nothing has come or gone for a moment."""
        while True:
            rest = self._moment - (self._clock.monotonic() - self._last)
            if self._in_flight == 0 and rest <= 0:
                return
            await self._pass(max(rest, 0.01))

    async def _pass(self, seconds: float) -> None:
        """Sleeps for so long or a step. Where that took much longer this process was not let run, and nothing could come."""
        step, began = min(seconds, STEP), self._clock.monotonic()
        await asyncio.sleep(step)
        now = self._clock.monotonic()
        late = now - began - step
        if late > STEP:
            self._last, self._last_arrival = min(self._last + late, now), min(self._last_arrival + late, now)
