"""An event loop for servers of many small messages: it takes what comes thick and fast together.

Waking up costs more than what a heartbeat asks for: a system call to wait, one to read, and a round of the loop, for each of
thousands a second. So when wakes come more often than `BUSY` says, the loop pauses a few milliseconds between two of them, as
network cards do with interrupts. A quiet loop never pauses, and nobody waits longer than `PAUSE`.

gRPC announces each finished operation with one byte on a socket and takes only one of them per wake, so pauses would pile
bytes up. Its reader is recognised and given all but one of them at once; where it is not, the loop does not pause.
"""

import asyncio
import functools
import selectors
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.005
WINDOW = 0.1
BUSY, CALM = 50, 12
"""Wakes per window from which on pauses begin, and below which they end; with pauses there can be 20 at most."""
GRPC_READER = "_handle_events"
MANY = 4096


class PausingSelector(selectors.DefaultSelector):
    """Waits a moment before it looks, while it is busy and `pausing` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.pausing = False
        self._busy = False
        self._woken = 0
        self._window_ends = 0.0
        self._last = 0.0

    @property
    def busy(self) -> bool:
        return self._busy

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not self.pausing or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        now = time.monotonic()
        self._count(now)
        left = self._last + PAUSE - now
        if self._busy and left > 0:
            time.sleep(left if timeout is None else min(left, timeout))
            timeout = None if timeout is None else max(0.0, timeout - left)
        found = super().select(timeout)
        self._last = time.monotonic()
        return found

    def _count(self, now: float) -> None:
        self._woken += 1
        if now >= self._window_ends:
            self._busy = now < self._window_ends + WINDOW and self._woken >= (CALM if self._busy else BUSY)
            self._woken, self._window_ends = 0, now + WINDOW


class PausingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a PausingSelector."""

    def __init__(self) -> None:
        self._pausing = PausingSelector()
        super().__init__(self._pausing)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        reader = callback.func if isinstance(callback, functools.partial) else callback
        if isinstance(fd, socket.socket) and getattr(reader, "__name__", "") == GRPC_READER:
            self._pausing.pausing = True
            callback = functools.partial(_read_but_one, fd, callback)
        super().add_reader(fd, callback, *args)


def _read_but_one(announced: socket.socket, callback: Callable[..., Any], *args: Any) -> None:
    """Takes all bytes but one, then lets the reader take that and everything that was announced."""
    count = len(announced.recv(MANY, socket.MSG_PEEK))
    if count > 1:
        announced.recv(count - 1)
    callback(*args)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a PausingLoop."""
    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        return runner.run(main)
