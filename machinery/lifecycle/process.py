"""Ends of a process: SIGTERM and SIGINT, a request from inside, and a deadline for a start or stop that hangs.

The first signal requests a graceful stop, the second ends the process at once with code 1.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, ClassVar, NoReturn, Self

import structlog

from machinery.observability import logs

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger(__name__)


def _exit_at_once() -> NoReturn:
    logs.flush()
    os._exit(1)


class StopSignals:
    """A `with` block in which the stop signals set `requested`. Only one may be open in a process.

    Uses plain signal handlers instead of the event loop's: the second signal must work when the loop hangs.
    """

    _open: ClassVar["StopSignals | None"] = None

    def __init__(self, at_once: Callable[[], object] = _exit_at_once) -> None:
        self.requested = asyncio.Event()
        self._at_once = at_once
        self._seen = 0
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        if StopSignals._open is not None:
            raise RuntimeError("the stop signals of this process are taken already")
        StopSignals._open = self
        self._before = {number: signal.signal(number, self._received) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        StopSignals._open = None

    def request(self) -> None:
        """Request a graceful stop without a signal. The next signal then counts as the second."""
        self._seen = max(self._seen, 1)
        self._loop.call_soon_threadsafe(self.requested.set)

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen > 1:
            self._at_once()
        else:
            self._loop.call_soon_threadsafe(self.requested.set)


def request_shutdown() -> bool:
    """Request a graceful stop of this process from any thread. Return False if no StopSignals block is open."""
    taken = StopSignals._open  # noqa: SLF001 - the same module
    if taken is None:
        return False
    taken.request()
    return True


class LastResort:
    """Ends the process with code 1 when a step takes too long. Uses its own thread, so it works while the loop hangs."""

    def __init__(self, at_once: Callable[[], object] = _exit_at_once) -> None:
        self._at_once = at_once
        self._timer: threading.Timer | None = None

    def arm(self, limit: timedelta, why: str) -> None:
        """End the process after `limit` unless `disarm` or `arm` is called before; `why` is then the last log line."""
        self.disarm()
        self._timer = threading.Timer(limit.total_seconds(), self._end, (limit, why))
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, limit: timedelta, why: str) -> None:
        log.critical(why, limit_seconds=limit.total_seconds())
        self._at_once()
