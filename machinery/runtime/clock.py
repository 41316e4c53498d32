"""Clocks. Except for the ticks of `event_loop`, only this module reads the wall clock.

Pure functions take the time as an argument; other code takes a `Clock`.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time, for instants that are stored or displayed, and monotonic time, for durations."""

    def now(self) -> datetime:
        """Return the wall time, aware, in UTC."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. The value never decreases."""

    def boottime(self) -> float:
        """Like `monotonic`, but it also counts the time in which the machine is suspended, if the system supports this."""
        return self.monotonic()


class SystemClock(Clock):
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOTTIME)


class ManualClock(Clock):
    """A clock for tests that advances only by `advance` and `set_forward`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: timedelta) -> None:
        self._now += by
        self._monotonic += by.total_seconds()

    def set_forward(self, by: timedelta) -> None:
        """Change the wall clock by `by`, which may be negative. The monotonic time does not change."""
        self._now += by


class OffsetClock(Clock):
    """The wall time of another machine. An agent uses it for the hub's time, which its session reports.

    Before `set_time`, it is this machine's wall time. Afterwards it advances with `clock.boottime()`, so later changes of this
    machine's wall clock do not affect it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: datetime | None = None
        """The time of the other clock when `boottime()` was 0."""

    @property
    def offset(self) -> timedelta | None:
        """How far the other clock is ahead of this machine's wall clock; None if `set_time` was not called yet."""
        return None if self._began is None else self.now() - self._clock.now()

    def set_time(self, theirs: datetime) -> None:
        """Record `theirs` as the current time of the other clock."""
        self._began = theirs - timedelta(seconds=self._clock.boottime())

    def forget(self) -> None:
        """Discard the time of `set_time`, for example because the next session is with another hub."""
        self._began = None

    def now(self) -> datetime:
        if self._began is None:
            return self._clock.now()
        return self._began + timedelta(seconds=self._clock.boottime())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def boottime(self) -> float:
        return self._clock.boottime()
