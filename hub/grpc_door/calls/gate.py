"""Counts calls in progress and refuses new ones after it is closed.

When the server stops, `grpc.aio` ends calls that it has received and not started with CANCELLED. So the gate is closed first,
remaining calls get UNAVAILABLE, and the server stops when no call has arrived for `QUIET`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from machinery.errors import UnavailableError
from machinery.runtime.clock import Clock

QUIET = timedelta(milliseconds=250)
STEP = 0.05
"""Seconds between checks of that time."""
RETRY = timedelta(seconds=1)


class Gate:
    """Counts all calls of a server except health. `moment`: how long no call must arrive until the gate counts as quiet."""

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
        """Counts a call while the block runs. Raises UnavailableError if the gate is closed."""
        self._last = self._last_arrival = self._clock.monotonic()
        self.check()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._last = self._clock.monotonic()

    def check(self) -> None:
        """Raises UnavailableError if the gate is closed."""
        if self._closed:
            raise UnavailableError("this hub is shutting down: try again", retry_after=RETRY)

    def close(self) -> None:
        """Refuses calls from now on. Idempotent."""
        if not self._closed:
            self._closed = True
            self._last = self._last_arrival = self._clock.monotonic()

    async def still(self, within: timedelta) -> None:
        """Returns when no call has arrived for `moment`, or after `within`. Calls may still be in progress."""
        end = self._clock.monotonic() + within.total_seconds()
        while (rest := min(self._last_arrival + self._moment, end) - self._clock.monotonic()) > 0:
            await self._pass(rest)

    async def quiet(self) -> None:
        """Returns when no call is in progress and none has arrived or ended for `moment`."""
        while True:
            rest = self._moment - (self._clock.monotonic() - self._last)
            if self._in_flight == 0 and rest <= 0:
                return
            await self._pass(max(rest, 0.01))

    async def _pass(self, seconds: float) -> None:
        """Sleeps for at most a step. If the process was suspended, that time does not count as quiet: no call could arrive."""
        step, began = min(seconds, STEP), self._clock.monotonic()
        await asyncio.sleep(step)
        now = self._clock.monotonic()
        late = now - began - step
        if late > STEP:
            self._last, self._last_arrival = min(self._last + late, now), min(self._last_arrival + late, now)
