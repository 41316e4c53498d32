"""Event loops whose time jumps to the next timer as soon as nothing else is to be done, and schedulers on them."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import wraps
from heapq import heappop
from typing import Any, TypeVar

from machinery.runtime.clock import Clock
from machinery.runtime.scheduler import Enqueue, Scheduler

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
TURNS = 20_000  # of a loop, without a moment of time. More are a defect: the loop ends then, where a test would never.


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for each other, and for nothing else."""

    def __init__(self) -> None:
        self._passed = 0.0
        self._turns = 0
        super().__init__()

    def time(self) -> float:
        return self._passed

    def stand_still(self, seconds: float) -> None:
        """Time passes in which the process does not run: a SIGSTOP."""
        self._passed += seconds

    async def shutdown_default_executor(self, *_limit: object) -> None:
        """Without the limit of Python 3.12 and newer: it would pass at once."""
        await super().shutdown_default_executor()

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():  # the loop itself would wait in real time for the one behind it
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heappop(scheduled)._scheduled = False
        if not ready and scheduled:
            self._turns *= scheduled[0].when() <= self._passed
            self._passed = max(self._passed, scheduled[0].when())
        self._turns += 1
        if self._turns > TURNS:
            self._turns = 0
            raise RuntimeError(f"no time has passed for {TURNS} turns of the loop")
        super()._run_once()  # type: ignore[misc]


class LoopClock(Clock):
    """The loop's time, as both kinds of time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_the_loops_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Has an async test run in virtual time, on a loop of its own."""

    @wraps(test)
    def played(*args: Any, **named: Any) -> None:
        in_virtual_time(test(*args, **named))

    return played


QUIET = 0.01  # real seconds without anything on a socket or from a thread before time jumps


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait: when every socket is quiet, time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(QUIET)
        if not found:
            self.now += timeout
        return found


class SocketLoop(asyncio.SelectorEventLoop):
    """An event loop on the time of its selector."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time_with_sockets(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, on a loop of its own."""
    with asyncio.Runner(loop_factory=SocketLoop) as runner:
        return runner.run(work)


def virtual(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Makes a test that runs a story without arguments in virtual time."""

    def test() -> None:
        in_virtual_time_with_sockets(story())

    return test


class ManualScheduler(Scheduler):
    """Remembers who wants to be woken, by name."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[[], object]] = {}
        self.instants: dict[str, datetime] = {}

    def every(self, period: timedelta, enqueue: Enqueue, *, name: str, jitter: float = 0.0, at_once: bool = False) -> None:
        del jitter, period
        self.jobs[name] = enqueue
        if at_once:
            enqueue()

    def at(self, instant: datetime, enqueue: Enqueue, *, name: str) -> None:
        self.jobs[name] = enqueue
        self.instants[name] = instant

    def drop(self, name: str) -> None:
        self.jobs.pop(name, None)
        self.instants.pop(name, None)

    def wake(self, name: str) -> None:
        """The time has come."""
        self.jobs[name]()


class LoopScheduler(Scheduler):
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
