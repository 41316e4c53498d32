"""Periodic and timed wake-ups, with APScheduler 3. A job only enqueues a key; a controller does the work.

This module wraps the library, because the library cancels running coroutine jobs at shutdown, skips jobs that are a second
late, lengthens periods by its jitter, and pickles jobs. Here, jobs are plain calls that do not block. They are never skipped,
jitter makes them early but never late, and they exist only in memory. State that must survive the process is in the database.

The library uses the wall clock. When the wall clock is set back, all jobs keep their remaining time. When it is set forward, or
the machine was suspended, a job is at most one minute late, because the library wakes up at least once a minute.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from types import TracebackType
from typing import Protocol, Self, cast

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.date import DateTrigger

from machinery.runtime.clock import SystemClock

WAKE_INTERVAL = timedelta(minutes=1)
SET_BACK = timedelta(seconds=1)
"""Jobs are moved only when the clock has been set back by this much. Smaller changes are added up."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
Enqueue = Callable[[], object]


class Scheduler(Protocol):
    """Calls functions periodically or at an instant. Each registered function is a job with a name."""

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        """Call `enqueue` every `period`, each time reduced by a random share of up to `jitter` (0…1).

        Replaces a job with the same name. `at_once`: make the first call now.
        """

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        """Call `enqueue` once, at `instant`, or now if this is in the past. Replaces a job with the same name.

        If the wall clock is set back meanwhile, the remaining time does not change.
        """

    def drop(self, name: str) -> None:
        """Remove a job, if it exists."""


class SystemScheduler(Scheduler):
    """The scheduler on the running event loop. Jobs run during its `async with` block."""

    def __init__(self) -> None:
        self._random = Random()  # noqa: S311 - spreads load, guards nothing
        following = _Following()
        self._follow_clock = following.follow_clock
        self._scheduler: AsyncIOScheduler = following

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._scheduler.start()
        self.every(WAKE_INTERVAL, lambda: None, name="wake")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scheduler.pause()
        self._scheduler.shutdown(wait=False)

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        self._add(_Every(period, jitter, self._random, at_once=at_once), enqueue, name)

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        self._add(DateTrigger(instant), enqueue, name)

    def drop(self, name: str) -> None:
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def _add(self, trigger: BaseTrigger, enqueue: Enqueue, name: str) -> None:
        self._follow_clock()  # before the addition, because the new job already uses the changed clock
        # call_soon, because `enqueue` may change the scheduler, and the library's own loop does not allow this
        self._scheduler.add_job(lambda: self._loop.call_soon(enqueue), trigger, id=name, replace_existing=True)


class _Following(AsyncIOScheduler):
    """Moves jobs if the wall clock is set back, so that they keep their remaining time."""

    _behind: timedelta | None = None
    """Largest difference between wall clock and loop time since jobs were last moved."""

    def __init__(self) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            timezone="UTC",
            executors={"default": DebugExecutor()},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    def wakeup(self) -> None:
        self.follow_clock()
        super().wakeup()

    def follow_clock(self) -> None:
        if not self.running:
            return
        behind = SystemClock().now() - _BEGINNING - timedelta(seconds=asyncio.get_running_loop().time())
        set_back = max(self._behind or behind, behind) - behind
        self._behind = behind + set_back
        if set_back >= SET_BACK:
            self._behind, jobs = behind, cast("AsyncIOScheduler", self)
            for job in jobs.get_jobs():
                jobs.modify_job(job.id, next_run_time=job.next_run_time - set_back)


class _Every(BaseTrigger):
    """A trigger with intervals drawn from [period * (1 - jitter), period]. The library's own jitter would lengthen periods."""

    def __init__(self, period: timedelta, jitter: float, random: Random, *, at_once: bool) -> None:
        self._period = period
        self._jitter = jitter
        self._random = random
        self._at_once = at_once

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        if previous is None and self._at_once:
            return now
        drawn = self._period * (1 - self._jitter * self._random.random())
        due = (previous or now) + drawn
        # after a pause or a jump of the clock, the job runs once and then again at its regular times
        return min(due, now + drawn) if due > now - self._period else now
