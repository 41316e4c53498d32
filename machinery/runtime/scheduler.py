"""Periodic and timed wake-ups, on APScheduler 3. A job only enqueues a key; the work is done and awaited elsewhere.

Why so thin: the library cancels running coroutine jobs when it shuts down, skips jobs that are a second late, lengthens the
period by its jitter, and pickles for its stores. Here jobs are plain calls that return at once, are never skipped, are drawn
early and never late, and live in memory: what must outlive the process is in the database.

The library goes by the wall clock. Where that is set back, all wake-ups move with it: they come when as much time has passed as
there was until then. It looks once a minute at least, so that an instant is not missed by more where the clock is set forward,
or the machine slept.
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

LOOK = timedelta(minutes=1)
SET_BACK = timedelta(seconds=1)
"""Less is not worth moving the jobs for: it is moved together."""

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
Enqueue = Callable[[], object]


class Timetable(Protocol):
    """What a part needs of the scheduler: to be woken."""

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        """Calls `enqueue` each period, shortened each time by up to `jitter` (0…1) of it. The same name replaces."""

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        """Calls `enqueue` once, at `instant`; at once when that is past. The same name replaces the instant.

        Where the wall clock is set back meanwhile, it is called when as much time has passed as there was until then.
        """

    def drop(self, name: str) -> None:
        """Forgets a wake-up, if there is one."""


class Scheduler(Timetable):
    """An `async with` block in which wake-ups happen on the running event loop."""

    def __init__(self, *, random: Random | None = None) -> None:
        self._random = random or Random()  # noqa: S311 - spreads load, guards nothing
        following = _Following()
        self._follow_clock = following.follow_clock
        self._scheduler: AsyncIOScheduler = following

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._scheduler.start()
        self.every(LOOK, lambda: None, name="look")
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
        self._follow_clock()  # what is added now is already by the clock as it is
        # not from inside the library's own loop: `enqueue` may change the timetable
        self._scheduler.add_job(lambda: self._loop.call_soon(enqueue), trigger, id=name, replace_existing=True)


class _Following(AsyncIOScheduler):
    """Jobs keep their distance from now where the wall clock is set back."""

    _behind: timedelta | None = None
    """How far the loop's time was behind the wall clock's, at most, since the jobs were moved."""

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
    """Intervals drawn from [period * (1 - jitter), period]: the library's own jitter makes periods longer than asked."""

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
        # after a pause or a jump of the clock: once, then in step again
        return min(due, now + drawn) if due > now - self._period else now
