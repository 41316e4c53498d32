"""Wake-ups that happen when a test says so."""

from collections.abc import Callable
from datetime import datetime, timedelta

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
