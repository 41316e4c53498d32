"""The only place where the time of day is read. Rules take time as an argument; edges get a `Clock` in their constructor."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored or shown, monotonic time for what is measured."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never jumps."""


class SystemClock(Clock):
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock(Clock):
    """A clock that stands still until it is told to go on: for tests."""

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


class OffsetClock(Clock):
    """Another clock's wall time, seen through `clock`: the hub's time as an agent knows it from its session."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: timedelta | None = None

    @property
    def offset(self) -> timedelta | None:
        """How far the other clock is ahead of ours; None until it was ever told."""
        return self._offset

    def learn(self, theirs: datetime) -> None:
        """Takes `theirs` as the other clock's present."""
        self._offset = theirs - self._clock.now()

    def now(self) -> datetime:
        return self._clock.now() + (self._offset or timedelta())

    def monotonic(self) -> float:
        return self._clock.monotonic()
