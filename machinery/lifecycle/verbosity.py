"""Log level of a running process: its setting, overridden by an order, overridden by SIGUSR2 for `debug`.

SIGUSR2 affects one process and works without any other part: the first signal sets `debug`, the second resets it.
"""

import asyncio
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

import structlog

from machinery.observability import logs

EVERYTHING = "debug"

log = structlog.get_logger(__name__)


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
