"""How much a process logs while it runs: as it was started, unless others order more or less, or SIGUSR2 asks it to tell all.

SIGUSR2 works for one process and without anything else that works: the first asks for `debug`, the second takes that back.
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
    """The level of one process. `started`: as its settings say. `apply`: makes it so."""

    def __init__(self, started: str, apply: Callable[[str], None] = logs.set_level) -> None:
        self._started = started
        self._apply = apply
        self._ordered: str | None = None
        self._everything = False
        self._level = started

    @property
    def level(self) -> str:
        """What is logged at least, now."""
        return self._level

    @property
    def started(self) -> str:
        return self._started

    def order(self, level: str | None) -> None:
        """What somebody orders who may; None: nobody does any more."""
        if level != self._ordered:
            self._ordered = level
            self._renew("ordered")

    def toggle(self) -> None:
        """Everything, whatever is ordered; and back."""
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
    """A `with` block in which SIGUSR2 toggles `verbosity`, on the event loop."""

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
        """Nothing but a word to the loop: whatever was interrupted may be in the middle of a line of the log."""
        self._loop.call_soon_threadsafe(self._verbosity.toggle)
