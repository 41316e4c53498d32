"""Measures whether a process is overloaded, so that deferrable work does not delay urgent work.

A turn of the event loop runs every callback that is ready. So the length of a turn is the time for which the next message
waits. Deferrable work begins only after a short turn, and only a few pieces of it per turn. It does not begin while earlier
work waits, for example for the database; `delay` reports this. Nothing is measured while there is no deferrable work.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

LONG_TURN = 0.05
"""Seconds. After a longer turn no deferrable work begins. A beat needs about five turns until it is acknowledged."""
EACH_TURN = 10
"""Pieces of work that may begin in one turn. The limit is needed because the turn's length is known only at its end."""
LONG_DELAY = 0.1
"""Seconds. While earlier work waits longer than this, no deferrable work begins."""
RETRY = 0.02


class Congestion:
    """Admits deferrable work. If `admit` returns False, each of `callbacks` is called in a later turn, so that it can retry.

    `delay`: returns for how many seconds earlier work has been waiting.
    """

    def __init__(self, delay: Callable[[], float] = lambda: 0.0) -> None:
        self._delay = delay
        self.callbacks: list[Callable[[], None]] = [self._invite]
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._is_measuring = False
        self._began = 0.0
        self._late = False
        self._admitted = 0

    def __len__(self) -> int:
        """Number of waiting callers of `turn`."""
        return len(self._waiting)

    async def turn(self, within: timedelta) -> None:
        """Wait until work may begin. Raises TimeoutError after `within`.

        The newest caller comes first, because the clients of older requests may already have stopped waiting.
        """
        if self.admit():
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        try:
            async with asyncio.timeout(within.total_seconds()):
                await mine
        finally:
            self._waiting.pop(mine, None)

    def admit(self) -> bool:
        """Return whether one more piece of work may begin in this turn, and count it. If not, `callbacks` are called later."""
        if not self._is_measuring:
            loop = asyncio.get_running_loop()
            self._is_measuring, self._began = True, loop.time()
            loop.call_soon(self._measured)
        if self._late or self._admitted >= EACH_TURN:
            return False
        self._admitted += 1
        return True

    def _measured(self) -> None:
        """Check the length of the turn in which `admit` was called."""
        loop = asyncio.get_running_loop()
        self._late = loop.time() - self._began > LONG_TURN
        if self._delay() > LONG_DELAY:
            self._late = True
            loop.call_later(RETRY, self._measured)  # later, so that an idle loop does not spin
            self._began = loop.time() + RETRY
            return
        self._is_measuring, self._admitted = False, 0
        for callback in self.callbacks:
            callback()

    def _invite(self) -> None:
        while self._waiting and self.admit():
            newest, _ = self._waiting.popitem()
            if not newest.done():
                newest.set_result(None)
