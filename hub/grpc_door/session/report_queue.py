"""Queue of an agent's reports that are not stored yet, in their order, so that beats do not wait for them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

MOST = 16
MOST_BYTES = 1024 * 1024
"""Bounds of the queue; a single larger message is accepted when the queue is empty."""

Work = Callable[[], Coroutine[Any, Any, None]]


class Backlog:
    """Runs work in order, in a task that exists only while there is work. Calls `fail` with the first error."""

    def __init__(self, name: str, fail: Callable[[Exception], None]) -> None:
        self._name = name
        self._fail = fail
        self._waiting: list[tuple[Work, int]] = []
        self._worker: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """Number of items that wait or are in progress."""
        return len(self._waiting)

    async def put(self, work: Work, size: int) -> None:
        """Adds work; waits while the queue is full. `size`: its bytes."""
        while self._is_full(size):
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        self._waiting.append((work, size))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=self._name)

    async def done(self) -> None:
        """Returns when the queue is empty."""
        while self._worker is not None:
            await asyncio.wait({self._worker})

    def end(self) -> None:
        """Cancels the work."""
        if self._worker is not None:
            self._worker.cancel()

    def _is_full(self, size: int) -> bool:
        waiting = len(self._waiting)
        return bool(waiting) and (waiting >= MOST or sum(each for _, each in self._waiting) + size > MOST_BYTES)

    async def _work(self) -> None:
        try:
            while self._waiting:
                work, _ = self._waiting[0]
                await work()
                del self._waiting[0]
                self._make_room()
        except Exception as error:  # noqa: BLE001 - whoever has it is told, whatever it is
            self._waiting.clear()
            self._fail(error)
        finally:
            self._worker = None

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
