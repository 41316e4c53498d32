"""An event loop for servers of many small messages, which reads gRPC's completions in batches; common ticks; work at a rate.

A wake-up costs more than the handling of a heartbeat: a system call to wait, one to read and a round of the loop, for each of
thousands per second. When gRPC finishes at least `BUSY` operations per window, the loop therefore does not poll gRPC's file for
PAUSE after each read, as network cards coalesce interrupts. An idle loop polls at once. Pauses delay only gRPC: HTTPS requests,
timers and threads are served meanwhile. gRPC accepts one new call per poll, so the handler of new calls calls `skip_pauses`
during a storm of calls.

gRPC announces each finished operation with one byte on a socket and reads only one byte per wake-up, so bytes would accumulate
during pauses. The loop recognises gRPC's reader and consumes all bytes but one before it calls the reader. Without that reader,
or without epoll, the loop does not pause.

Periodic checks at different instants would wake an idle machine once each, and most of their cost is the wake-up. They share
ticks, which on a server's loop are just after even seconds of the wall clock, at which agents beat. Clients are disconnected at
a bounded rate, because those that are disconnected all at once reconnect elsewhere all at once.
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
"""Seconds without pauses after a new call, long enough that a storm continues when a busy machine is late for a moment."""
BUSY, CALM = 6, 3
"""Operations that gRPC finishes per window: pauses begin at BUSY and end below CALM. A beat is two operations."""
GRPC_READER = "_handle_events"
PEEK_SIZE = 4096
TICK_OFFSET = 0.06
"""Seconds by which ticks follow even seconds of the wall clock, so that beats in step have arrived by then."""
NO_EVENTS = 0
"""No event: the file stays registered and causes no wake-up."""
READ_EVENTS = getattr(select, "EPOLLIN", 1)


class PausingSelector(selectors.DefaultSelector):
    """Polls the file given to `pace` at most once per PAUSE while it is busy, and all other files always."""

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
        """Poll `file` with pauses from now on. A loop has one such file."""
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
        """Suspend pauses for PAUSES_SKIPPED seconds."""
        self._skip_until = self._monotonic() + PAUSES_SKIPPED

    def _set_polled(self, paced: int, *, polled: bool) -> None:
        if polled is not self._is_polled:
            self._is_polled = polled
            # the epoll object directly: `modify` takes twice as long, to record what only this class reads
            self._selector.modify(paced, READ_EVENTS if polled else NO_EVENTS)  # type: ignore[attr-defined]

    def announced(self, count: int) -> None:
        """Count `count` finished operations."""
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
        """Suspend pauses: a new call has arrived, and others may be waiting behind it."""
        self._pausing.skip_pauses()

    def tick_time(self) -> float:
        """Time in seconds at whose multiples periodic work is done, just after the beats in step have woken the processor."""
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
    """Call `PausingLoop.skip_pauses` if the running loop is a PausingLoop."""
    running = asyncio.get_running_loop()
    if isinstance(running, PausingLoop):
        running.skip_pauses()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a PausingLoop."""
    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        return runner.run(main)


LEAST_RATE = 200
LEAST_REST = 0.25
SLACK = 0.005
"""Backlog in seconds that `paced` may work off without sleeping: a wake-up per item would cost more than the item."""


def drain_rate(count: int, grace: timedelta) -> float:
    """Items per second that finish `count` items within `grace`; at least the rate at which Kubernetes ends watches."""
    seconds = grace.total_seconds()
    return max(LEAST_RATE, count / seconds) if seconds > 0 else float("inf")


async def paced(things: Sequence[T], rate: float) -> AsyncIterator[T]:
    """Yield `things` in order at `rate` per second, never faster, also after a pause of the consumer."""
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
    """Seconds until the next tick of this period, common to all users of this event loop; at least a quarter of the period."""
    seconds = period.total_seconds()
    if not seconds:
        return 0.0
    loop = asyncio.get_running_loop()
    rest = seconds - (loop.tick_time() if isinstance(loop, PausingLoop) else loop.time()) % seconds
    return rest if rest >= seconds * LEAST_REST else rest + seconds


async def wait_at_most(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most for this time. Returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0)):
            await event.wait()
    return event.is_set()
