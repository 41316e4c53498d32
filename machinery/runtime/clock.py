"""The only place where the time of day is read. Rules take time as an argument; edges get a `Clock` in their constructor."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_LASTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time for what is stored or shown, monotonic time for what is measured."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never jumps."""

    def lasting(self) -> float:
        """The same, and it goes on while the machine sleeps, where the system tells that."""
        return self.monotonic()


class SystemClock(Clock):
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def lasting(self) -> float:
        return time.clock_gettime(_LASTING)


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

    def set_forward(self, by: timedelta) -> None:
        """Somebody sets the clock on the wall, back where `by` is negative; no time passes."""
        self._now += by


class OffsetClock(Clock):
    """Another clock's wall time, seen through `clock`: the hub's time as an agent knows it from its session.

    Once it was told it goes on by itself, whatever our own wall clock is set to.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: datetime | None = None
        """Their time when our lasting one began."""

    @property
    def offset(self) -> timedelta | None:
        """How far the other clock is ahead of ours; None until it was ever told."""
        return None if self._began is None else self.now() - self._clock.now()

    def learn(self, theirs: datetime) -> None:
        """Takes `theirs` as the other clock's present."""
        self._began = theirs - timedelta(seconds=self._clock.lasting())

    def forget(self) -> None:
        """What is asked next is another clock."""
        self._began = None

    def now(self) -> datetime:
        if self._began is None:
            return self._clock.now()
        return self._began + timedelta(seconds=self._clock.lasting())

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def lasting(self) -> float:
        return self._clock.lasting()
