"""SIGTERM and SIGINT: the first asks for a graceful stop, the second ends the process at once with code 1."""

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar, NoReturn, Self

from machinery import logs

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _exit_at_once() -> NoReturn:
    logs.flush()
    os._exit(1)


class StopSignals:
    """A `with` block in which the stop signals set `requested`. Only one may be open in a process.

    Plain signal functions, not the event loop's: the second signal must work when the loop hangs.
    """

    _installed: ClassVar[bool] = False

    def __init__(self, at_once: Callable[[], object] = _exit_at_once) -> None:
        self.requested = asyncio.Event()
        self._at_once = at_once
        self._seen = 0
        self._before: dict[signal.Signals, Any] = {}
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        if StopSignals._installed:
            raise RuntimeError("the stop signals of this process are taken already")
        StopSignals._installed = True
        self._before = {number: signal.signal(number, self._received) for number in STOP_SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        StopSignals._installed = False

    def request(self) -> None:
        """Asks for a graceful stop without a signal."""
        self.requested.set()

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen > 1:
            self._at_once()
        else:
            self._loop.call_soon_threadsafe(self.requested.set)
