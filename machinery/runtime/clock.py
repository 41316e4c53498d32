"""Clocks. Only this module reads the time of day; rules take time as an argument, edges take a `Clock`."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time for stored or displayed instants, monotonic time for durations."""

    def now(self) -> datetime:
        """Wall clock time, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""

    def boottime(self) -> float:
        """Like `monotonic`, but also counts the time in which the machine is suspended, if the system supports this."""
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
    """Wall time of another clock, computed from `clock`: the hub's time, which an agent reads in its session.

    After `set_time` it advances with `clock.boottime()`, so later changes of this machine's wall clock do not affect it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: datetime | None = None
        """The other clock's time at which `boottime()` was 0."""

    @property
    def offset(self) -> timedelta | None:
        """How far the other clock is ahead of this machine's wall clock; None before the first `set_time`."""
        return None if self._began is None else self.now() - self._clock.now()

    def set_time(self, theirs: datetime) -> None:
        """Record `theirs` as the current time of the other clock."""
        self._began = theirs - timedelta(seconds=self._clock.boottime())

    def forget(self) -> None:
        """Discard the learned time, for example because the next session is with another hub."""
        self._began = None

    def now(self) -> datetime:
        if self._began is None:
            return self._clock.now()
        return self._began + timedelta(seconds=self._clock.boottime())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def boottime(self) -> float:
        return self._clock.boottime()
