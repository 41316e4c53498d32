"""Signals to a process (SIGTERM, SIGINT and SIGUSR2), and a deadline for a start or stop that hangs.

The first stop signal requests a graceful stop; the second ends the process immediately with code 1.

The log level comes from the settings. An operator can order another level, which overrides the settings. SIGUSR2 overrides
both: the first signal sets `debug`, the second one resets it. The signal works as long as the event loop runs.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from types import FrameType
from typing import NoReturn

import structlog

from machinery.observability import logs

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_LINE = timedelta(seconds=1)
"""How long the end of a process waits for its last log line, in case that nobody reads the log."""


def _exit_at_once() -> NoReturn:
    os._exit(1)  # without a flush, which waits while nobody reads the log


@contextmanager
def stop_signals(at_once: Callable[[], object] = _exit_at_once) -> Iterator[asyncio.Event]:
    """A block in which the first stop signal sets the yielded event, and the second calls `at_once`.

    It uses `signal.signal` and not `loop.add_signal_handler`, because the second signal must work while the event loop hangs.
    """
    requested, loop, received = asyncio.Event(), asyncio.get_running_loop(), count(1)

    def stop(_number: int, _frame: FrameType | None) -> None:
        if next(received) > 1:
            at_once()
        else:
            loop.call_soon_threadsafe(requested.set)

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LastResort:
    """Ends a process with code 1 if its start or end takes too long. It uses a thread, so it works while the loop hangs."""

    def __init__(self, at_once: Callable[[], object] = _exit_at_once) -> None:
        self._at_once = at_once
        self._timer: threading.Timer | None = None

    def arm(self, limit: timedelta, why: str) -> None:
        """End the process after `limit`, with `why` as the last log line. `disarm` or the next `arm` cancels this."""
        self.disarm()

        def end() -> None:
            line = partial(log.critical, why, limit_seconds=limit.total_seconds())
            writer = threading.Thread(target=line, daemon=True)
            writer.start()
            writer.join(LAST_LINE.total_seconds())
            self._at_once()

        self._timer = threading.Timer(limit.total_seconds(), end)
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Verbosity:
    """The log level of one process. `started`: the level of its settings; `apply`: sets the level."""

    def __init__(self, started: str, apply: Callable[[str], None] = logs.set_level) -> None:
        self.started = started
        self.level = started
        self._apply = apply
        self._ordered: str | None = None
        self._debugs = False

    def order(self, level: str | None) -> None:
        """Set the level that an operator requires; None: no operator requires a level, so `started` applies."""
        if level != self._ordered:
            self._ordered = level
            self._renew("ordered")

    def toggle(self) -> None:
        """Switch to `debug`, which overrides the level of `order`. The next call ends this override."""
        self._debugs = not self._debugs
        self._renew("SIGUSR2")

    def _renew(self, because: str) -> None:
        level = "debug" if self._debugs else self._ordered or self.started
        if level == self.level:
            return
        before, self.level = self.level, level
        self._apply(min(before, level, key=logs.LEVELS.index))
        log.warning("log level changed", log_level=level, before=before, because=because)
        self._apply(level)


@contextmanager
def verbosity_signal(verbosity: Verbosity) -> Iterator[None]:
    """A block in which SIGUSR2 calls `verbosity.toggle` on the event loop, because a signal may interrupt a log call."""
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGUSR2, lambda _number, _frame: loop.call_soon_threadsafe(verbosity.toggle))
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)
