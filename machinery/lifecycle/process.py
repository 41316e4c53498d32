"""Signals to a process (SIGTERM, SIGINT and SIGUSR2), and a deadline for a start or stop that hangs.

The first stop signal requests a graceful stop, the second ends the process at once with code 1. The log level is that of the
settings, overridden by an order, overridden by SIGUSR2 for `debug`, which works without any other part of the process: the
first signal sets `debug`, the second resets it.
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

log = structlog.get_logger(__name__)


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _exit_at_once() -> NoReturn:
    logs.flush()
    os._exit(1)


class StopSignals:
    """A `with` block in which the stop signals set `requested`. Only one may be open in a process.

    Uses plain signal handlers instead of the event loop's: the second signal must work when the loop hangs.
    """

    _is_open: ClassVar[bool] = False

    def __init__(self, at_once: Callable[[], object] = _exit_at_once) -> None:
        self.requested = asyncio.Event()
        self._at_once = at_once
        self._seen = 0
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        if StopSignals._is_open:
            raise RuntimeError("the stop signals of this process are taken already")
        StopSignals._is_open = True
        self._before = {number: signal.signal(number, self._received) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        StopSignals._is_open = False

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen > 1:
            self._at_once()
        else:
            self._loop.call_soon_threadsafe(self.requested.set)


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


EVERYTHING = "debug"


class Verbosity:
    """The log level of one process. `started`: level of its settings. `apply`: sets the level."""

    def __init__(self, started: str, apply: Callable[[str], None] = logs.set_level) -> None:
        self._started = started
        self._apply = apply
        self._ordered: str | None = None
        self._everything = False
        self._level = started

    @property
    def level(self) -> str:
        """The lowest level that is logged now."""
        return self._level

    @property
    def started(self) -> str:
        return self._started

    def order(self, level: str | None) -> None:
        """Set the level that an operator orders; None: no order."""
        if level != self._ordered:
            self._ordered = level
            self._renew("ordered")

    def toggle(self) -> None:
        """Switch `debug` on, whatever is ordered, or off again."""
        self._everything = not self._everything
        self._renew("SIGUSR2")

    def _renew(self, because: str) -> None:
        level = EVERYTHING if self._everything else self._ordered or self._started
        if level == self._level:
            return
        before, self._level = self._level, level
        self._apply(min(before, level, key=logs.LEVELS.index))
        log.warning("log level changed", log_level=level, before=before, because=because)
        self._apply(level)


class VerbositySignal:
    """A `with` block in which SIGUSR2 toggles `verbosity` on the event loop."""

    def __init__(self, verbosity: Verbosity) -> None:
        self._verbosity = verbosity
        self._loop = asyncio.get_running_loop()
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGUSR2, self._received)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.signal(signal.SIGUSR2, self._before)

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        """Only schedule the toggle: the signal may interrupt the writing of a log line."""
        self._loop.call_soon_threadsafe(self._verbosity.toggle)
