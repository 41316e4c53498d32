"""Wake-ups that happen when a test says so, or when the event loop's time has come, be it virtual."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from machinery.clock import Clock
from machinery.scheduler import Enqueue, Timetable


class ManualTimetable(Timetable):
    """Remembers who wants to be woken, by name."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[[], object]] = {}
        self.periods: dict[str, timedelta] = {}
        self.instants: dict[str, datetime] = {}

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        del jitter
        self.jobs[name] = enqueue
        self.periods[name] = period
        if at_once:
            enqueue()

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        self.jobs[name] = enqueue
        self.instants[name] = instant

    def drop(self, name: str) -> None:
        for known in (self.jobs, self.periods, self.instants):
            known.pop(name, None)

    def wake(self, name: str) -> None:
        """The time has come."""
        self.jobs[name]()


class LoopTimetable(Timetable):
    """Wakes by the event loop; `clock` says how far an instant is away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        def due() -> None:
            enqueue()
            self.every(period, enqueue, name=name, jitter=jitter)

        if at_once:
            enqueue()
        self._arm(name, period, due)

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        self._arm(name, instant - self._clock.now(), enqueue)

    def drop(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        for name in tuple(self._timers):
            self.drop(name)

    def _arm(self, name: str, after: timedelta, due: Callable[[], object]) -> None:
        self.drop(name)
        self._timers[name] = asyncio.get_running_loop().call_later(max(0.0, after.total_seconds()), due)
