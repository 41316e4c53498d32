"""An event loop for servers of many small messages: it takes what comes thick and fast together.

Waking up costs more than what a heartbeat asks for: a system call to wait, one to read, and a round of the loop, for each of
thousands a second. So when gRPC finishes more operations than `BUSY` says, it is not looked at for a few milliseconds after
each time, as network cards do with interrupts. A quiet loop looks at once, nobody waits longer than `PAUSE`, and nothing else
waits at all: requests of the HTTPS door, timers and threads are served meanwhile. gRPC accepts one new call per look, so
whoever serves new calls says `hurry`: while they come, nobody pauses, and a storm of them is taken in as fast as it can be.

gRPC announces each finished operation with one byte on a socket and takes only one of them per wake, so pauses would pile
bytes up. Its reader is recognised and given all but one of them at once; where it is not, or where the system has no epoll, the
loop does not pause.
"""

import asyncio
import functools
import select
import selectors
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.100
WINDOW = 0.1
HURRY = 0.25
"""Seconds without pauses after a new call: a storm of them does not stop where a busy machine falls behind for a moment."""
BUSY, CALM = 6, 3
"""Operations that gRPC finishes per window, from which on pauses begin and below which they end. A beat is two."""
GRPC_READER = "_handle_events"
MANY = 4096
BEHIND = 0.06
"""Seconds by which ticks follow the wall clock's even ones: what comes in step from elsewhere is there by then."""
OUT_OF_SIGHT = 0
"""No event: the file stays registered and wakes nobody."""
IN_SIGHT = getattr(select, "EPOLLIN", 1)


class PausingSelector(selectors.DefaultSelector):
    """Looks at the file that is `pace`d at most once per PAUSE while that is busy, at all others always."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._paced: int | None = None
        self._looking = True
        self._busy = False
        self._finished = 0
        self._window_ends = 0.0
        self._last = 0.0
        self._hurried_until = 0.0

    @property
    def busy(self) -> bool:
        return self._busy and self._monotonic() < self._window_ends + WINDOW

    def pace(self, file: socket.socket) -> None:
        """From now on. There is one such file per loop."""
        if hasattr(selectors, "EpollSelector"):
            self._paced, self._looking = file.fileno(), True

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        if key.fd == self._paced:
            self._paced = None
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._paced is None:
            return super().select(timeout)
        left = self._left()
        if left > 0:
            self._look(self._paced, yes=False)
            found = super().select(left if timeout is None else min(left, timeout))
            if found or (timeout is not None and timeout <= left):
                return found
            timeout = None if timeout is None else timeout - left
        self._look(self._paced, yes=True)
        found = super().select(timeout)
        if any(key.fd == self._paced for key, _ in found):
            self._last = self._monotonic()
        return found

    def _left(self) -> float:
        """How long the paced file is not to be looked at, in seconds."""
        now = self._monotonic()
        return self._last + PAUSE - now if self._busy and now >= self._hurried_until else 0.0

    def hurry(self) -> None:
        """No pauses for a moment from now on."""
        self._hurried_until = self._monotonic() + HURRY

    def _look(self, paced: int, *, yes: bool) -> None:
        if yes is not self._looking:
            self._looking = yes
            # its own epoll, not `modify`, which takes as long again to note what only we ask for
            self._selector.modify(paced, IN_SIGHT if yes else OUT_OF_SIGHT)  # type: ignore[attr-defined]

    def announced(self, count: int) -> None:
        """So many operations have finished."""
        now = self._monotonic()
        self._finished += count
        if now >= self._window_ends:
            self._busy = now < self._window_ends + WINDOW and self._finished >= (CALM if self._busy else BUSY)
            self._finished, self._window_ends = 0, now + WINDOW


class PausingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a PausingSelector."""

    def __init__(self) -> None:
        self._pausing = PausingSelector()
        super().__init__(self._pausing)

    def hurry(self) -> None:
        """No pauses for a moment: a new call has come, and others may be waiting behind it."""
        self._pausing.hurry()

    def tick_time(self) -> float:
        """Seconds, at whose multiples is done what is done now and then: what comes in step has woken the processor then."""
        return time.time() - BEHIND

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        reader = callback.func if isinstance(callback, functools.partial) else callback
        paced = isinstance(fd, socket.socket) and getattr(reader, "__name__", "") == GRPC_READER
        if paced:
            callback = functools.partial(_read_but_one, self._pausing, fd, callback)
        super().add_reader(fd, callback, *args)
        if paced:
            self._pausing.pace(fd)


def _read_but_one(selector: PausingSelector, file: socket.socket, callback: Callable[..., Any], *args: Any) -> None:
    """Takes all bytes but one, then lets the reader take that and everything that was announced."""
    count = len(file.recv(MANY, socket.MSG_PEEK))
    if count > 1:
        file.recv(count - 1)
    selector.announced(count)
    callback(*args)


def hurry() -> None:
    """`PausingLoop.hurry` of the running loop, where it is one."""
    running = asyncio.get_running_loop()
    if isinstance(running, PausingLoop):
        running.hurry()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a PausingLoop."""
    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        return runner.run(main)
