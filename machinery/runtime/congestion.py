"""Measures whether a process keeps up, so that work that can wait does not delay urgent work.

A turn of the event loop runs every callback that is ready, so its length is the time for which the next message waits. Work
that can wait begins only after a short turn, only a few pieces per turn, and not while `delay` shows that earlier work still
waits, for example for the database. Nothing is measured while no such work begins.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

LONG_TURN = 0.05
"""Seconds. After a longer turn nothing begins that can wait. A beat needs about five turns until it is acknowledged."""
EACH_TURN = 10
"""Pieces of work that may begin in one turn, because their cost shows only at the end of the turn."""
LONG_DELAY = 0.1
"""Seconds. While earlier work waits longer than this, nothing begins that can wait."""
RETRY = 0.02
"""Seconds until `delay` is called again."""


class Congestion:
    """Admits work that can wait. While work waits to begin, `callbacks` are called once per turn, so that it can try again."""

    def __init__(self, delay: Callable[[], float] = lambda: 0.0) -> None:
        self._delay = delay
        self.callbacks: list[Callable[[], None]] = [self._invite]
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._is_measuring = False
        self._began = 0.0
        self._late = False
        self._admitted = 0

    def __len__(self) -> int:
        """Number of callers of `turn` that wait."""
        return len(self._waiting)

    async def turn(self, within: timedelta) -> None:
        """Return when work may begin. Raises TimeoutError.

        The newest caller is the first: the others may have given up, and work for them would leave no time for anybody.
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
        """Whether one more piece of work may begin in this turn. If not, the callbacks are called in the next turn."""
        if not self._is_measuring:
            loop = asyncio.get_running_loop()
            self._is_measuring, self._began = True, loop.time()
            loop.call_soon(self._measured)
        if self._late or self._admitted >= EACH_TURN:
            return False
        self._admitted += 1
        return True

    def _measured(self) -> None:
        """Judge the turn that has passed since the last `admit`."""
        loop = asyncio.get_running_loop()
        self._late = loop.time() - self._began > LONG_TURN
        if self._delay() > LONG_DELAY:
            self._late = True
            loop.call_later(RETRY, self._measured)  # not at once, because an idle loop would do nothing else
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
