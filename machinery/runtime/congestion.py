"""Whether the event loop keeps up, so that work which can wait does not delay work which cannot.

A turn of the loop runs every callback that is ready, so its length is the time that the next message waits. Work that can wait
begins only after a short turn, and only little of it in each. Nothing is measured while no such work begins.
"""

import asyncio
from collections.abc import Callable

LONG_TURN = 0.05
"""Seconds. After a longer turn nothing begins that can wait. A beat needs about five turns until it is acknowledged."""
EACH_TURN = 10
"""How much may begin in one turn, because its cost shows only at the end of the turn."""


class Congestion:
    """Admits work that can wait. `callbacks` are called once per turn while work asks to begin, so that it can ask again."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self._is_measuring = False
        self._began = 0.0
        self._late = False
        self._admitted = 0

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
        self._late = asyncio.get_running_loop().time() - self._began > LONG_TURN
        self._is_measuring, self._admitted = False, 0
        for callback in self.callbacks:
            callback()
