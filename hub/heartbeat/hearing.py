"""Since when every beat that an agent sent could be stored: only that time counts as an agent's silence.

Time does not count in which this process was not up, stood still (stopped, starved, or its machine suspended), or could not
write to the database; nor does a jump of the database's clock. After each of these everybody has a full grace again.
"""

import asyncio
from datetime import datetime, timedelta
from threading import Lock

import structlog

from hub.heartbeat.buffer import BeatBuffer
from machinery.clock import Clock

PULSE = timedelta(seconds=1)
STANDSTILL = timedelta(seconds=4)
"""Without a pulse for so long, this process was not listening."""
JUMP = timedelta(seconds=2)
"""The database's clock and our monotonic one drift by less between two looks."""

log = structlog.get_logger(__name__)


class Hearing:
    """`started`: the database's time when this process began. `run` must be running."""

    def __init__(self, clock: Clock, beats: BeatBuffer, started: datetime) -> None:
        self._clock = clock
        self._beats = beats
        self._since = started
        self._pulsed = clock.monotonic()
        self._stood_still = False
        self._began: datetime | None = None
        self._asking = Lock()

    async def run(self) -> None:
        """Pulses for ever."""
        while True:
            self.pulse()
            await asyncio.sleep(PULSE.total_seconds())

    def pulse(self) -> None:
        """Says that the event loop turns."""
        self._stood_still = self._stood_still or self._is_standing()
        self._pulsed = self._clock.monotonic()

    def since(self, now: datetime) -> datetime | None:
        """The instant in database time, which is `now`; None: beats cannot be stored at the moment.

        Called on threads of the store, inside the transactions that judge, several at once.
        """
        if not self._beats.storing:
            return None
        with self._asking:
            if why := self._gap(now):
                log.warning("silences are counted anew", because=why)
                self._since = now
        return max(self._since, self._beats.storing_since or self._since)

    def _gap(self, now: datetime) -> str | None:
        before, self._began = self._began, now - timedelta(seconds=self._clock.monotonic())
        if self._stood_still or self._is_standing():
            self._stood_still = False
            return "this process stood still"
        if before is not None and abs(self._began - before) > JUMP:
            return "the database's clock has jumped"
        return None

    def _is_standing(self) -> bool:
        return self._clock.monotonic() - self._pulsed > STANDSTILL.total_seconds()
