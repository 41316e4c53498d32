"""An event loop whose time jumps to the next timer as soon as nothing else is to be done: hours pass at once."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from heapq import heappop
from typing import Any, TypeVar

from machinery.clock import Clock

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for each other, and for nothing else."""

    def __init__(self) -> None:
        self._passed = 0.0
        super().__init__()

    def time(self) -> float:
        return self._passed

    def stand_still(self, seconds: float) -> None:
        """Time passes in which the process does not run: a SIGSTOP."""
        self._passed += seconds

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():  # the loop itself would wait in real time for the one behind it
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
            heappop(scheduled)._scheduled = False
        if not ready and scheduled:
            self._passed = max(self._passed, scheduled[0].when())
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
