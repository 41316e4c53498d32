"""An event loop for servers of many small messages, common ticks for periodic work, and work at a bounded rate.

Event loop: a wake-up (a system call to wait, one to read, one round of the loop) costs more than the handling of a heartbeat.
So a busy loop reads gRPC's completions in batches, like a network card that coalesces interrupts: if gRPC finishes at least
BUSY operations per window, the loop does not poll gRPC's socket for PAUSE after each read. An idle loop polls without pauses.
Pauses delay only gRPC; HTTPS requests, timers and threads are served meanwhile. gRPC accepts one new call per poll, so the
handler of new calls calls `skip_pauses`, for the case that many calls arrive.

gRPC writes one byte to a socket for each finished operation, and reads only one byte per wake-up. During pauses bytes would
accumulate, so the loop recognises gRPC's reader and consumes all bytes but one before it calls the reader. If it does not
recognise the reader, or if the system has no epoll, the loop does not pause.

Ticks: most of the cost of a periodic check is the wake-up, so periodic checks share common ticks. On a server's loop these are
just after even seconds of the wall clock, at which agents send beats.

Rate: a server disconnects its clients at a bounded rate, because otherwise they would all reconnect elsewhere at the same time.
"""

import asyncio
import functools
import select
import selectors
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.100
WINDOW = 0.1
PAUSES_SKIPPED = 0.25
"""Seconds without pauses after a new call. This is long enough for a busy machine, which accepts further calls late."""
BUSY, CALM = 6, 3
"""Finished operations of gRPC per window. Pauses begin at BUSY and end below CALM. A beat is two operations."""
GRPC_READER = "_handle_events"
PEEK_SIZE = 4096
TICK_OFFSET = 0.06
"""Seconds from an even second of the wall clock to the tick. The beats that agents send at even seconds have then arrived."""
NO_EVENTS = 0
"""Event mask of a file that stays registered but causes no wake-up."""
READ_EVENTS = getattr(select, "EPOLLIN", 1)


class PausingSelector(selectors.DefaultSelector):
    """Polls the file given to `pace` at most once per PAUSE while that file is busy. It polls other files without pauses."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._paced: int | None = None
        self._is_polled = True
        self._busy = False
        self._finished = 0
        self._window_ends = 0.0
        self._last = 0.0
        self._skip_until = 0.0

    @property
    def busy(self) -> bool:
        return self._busy and self._monotonic() < self._window_ends + WINDOW

    def pace(self, file: socket.socket) -> None:
        """From now on, poll this file with pauses while it is busy. It replaces an earlier file. Needs epoll."""
        if hasattr(selectors, "EpollSelector"):
            self._paced, self._is_polled = file.fileno(), True

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
            self._set_polled(self._paced, polled=False)
            found = super().select(left if timeout is None else min(left, timeout))
            if found or (timeout is not None and timeout <= left):
                return found
            timeout = None if timeout is None else timeout - left
        self._set_polled(self._paced, polled=True)
        found = super().select(timeout)
        if any(key.fd == self._paced for key, _ in found):
            self._last = self._monotonic()
        return found

    def _left(self) -> float:
        """Seconds until the paced file may be polled again; zero or less: now."""
        now = self._monotonic()
        return self._last + PAUSE - now if self._busy and now >= self._skip_until else 0.0

    def skip_pauses(self) -> None:
        """Poll without pauses for the next PAUSES_SKIPPED seconds."""
        self._skip_until = self._monotonic() + PAUSES_SKIPPED

    def _set_polled(self, paced: int, *, polled: bool) -> None:
        if polled is not self._is_polled:
            self._is_polled = polled
            # calls the epoll object directly, because `modify` takes twice as long
            self._selector.modify(paced, READ_EVENTS if polled else NO_EVENTS)  # type: ignore[attr-defined]

    def announced(self, count: int) -> None:
        """Count `count` operations that gRPC has finished."""
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

    def skip_pauses(self) -> None:
        """Suspend pauses, because a new call has arrived and more calls may be waiting."""
        self._pausing.skip_pauses()

    def tick_time(self) -> float:
        """Return the wall time in seconds, minus TICK_OFFSET. Periodic work runs when this is a multiple of its period."""
        return time.time() - TICK_OFFSET

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        reader = callback.func if isinstance(callback, functools.partial) else callback
        paced = isinstance(fd, socket.socket) and getattr(reader, "__name__", "") == GRPC_READER
        if paced:
            callback = functools.partial(_read_but_one, self._pausing, fd, callback)
        super().add_reader(fd, callback, *args)
        if paced:
            self._pausing.pace(fd)


def _read_but_one(selector: PausingSelector, file: socket.socket, callback: Callable[..., Any], *args: Any) -> None:
    """Consume all bytes but one, then call the reader, which takes the last byte and all announced operations."""
    count = len(file.recv(PEEK_SIZE, socket.MSG_PEEK))
    if count > 1:
        file.recv(count - 1)
    selector.announced(count)
    callback(*args)


def skip_pauses() -> None:
    """Call `skip_pauses` of the running loop, if it is a PausingLoop."""
    running = asyncio.get_running_loop()
    if isinstance(running, PausingLoop):
        running.skip_pauses()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on a PausingLoop."""
    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        return runner.run(main)


LEAST_RATE = 200
LEAST_REST = 0.25
SLACK = 0.005
"""`paced` does not sleep for less than this many seconds, because a wake-up per item would cost more than the item."""


def drain_rate(count: int, grace: timedelta) -> float:
    """Return the rate per second that ends `count` items within `grace`; at least LEAST_RATE, Kubernetes' rate for watches."""
    seconds = grace.total_seconds()
    return max(LEAST_RATE, count / seconds) if seconds > 0 else float("inf")


async def paced(things: Sequence[T], rate: float) -> AsyncIterator[T]:
    """Yield `things` in order at `rate` per second. It is never faster, not even after a pause of the consumer."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    for thing in things:
        now = loop.time()
        due = max(due, now - SLACK)
        if due - now > SLACK:
            await asyncio.sleep(due - now)
        yield thing
        due += 1 / rate


def until_tick(period: timedelta) -> float:
    """Return the seconds until the first tick of this period that is at least a quarter of the period away.

    All users of this event loop have the same ticks.
    """
    seconds = period.total_seconds()
    if not seconds:
        return 0.0
    loop = asyncio.get_running_loop()
    rest = seconds - (loop.tick_time() if isinstance(loop, PausingLoop) else loop.time()) % seconds
    return rest if rest >= seconds * LEAST_REST else rest + seconds


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for at most `seconds`. Return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
    return event.is_set()
