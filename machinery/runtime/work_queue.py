"""Work queue of unique keys with delays.

As in client-go, only one worker at a time handles a key. If a key is added while it is being handled, it is handled again.
"""

import asyncio
from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from datetime import timedelta
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Generic, TypeVar

from machinery.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)

RESOLUTION = 1e-6
"""Seconds. A key counts as due this much earlier, because `pause` rounds; otherwise `wait` could return without a key."""
MAX_REPLACED = 64
"""Number of obsolete times that may remain in the heap, in addition to one time per key."""


class WorkQueue(Generic[K]):
    """A queue of unique keys. `clock`: the clock for delays; None: that of the event loop."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._ready: dict[K, None] = {}
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._due: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        """A heap of times; some are obsolete. The number in each entry is unique, so that the heap never compares keys."""
        self._numbers = count()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys that can be taken now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Make `key` due now and cancel its delay."""
        self._due.pop(key, None)
        if key in self._active:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._wake.set()

    def add_after(self, key: K, delay: timedelta) -> None:
        """Make `key` due after `delay`, unless it is due earlier."""
        if delay <= timedelta():
            self.add(key)
            return
        due = self._now() + delay.total_seconds()
        if key in self._ready or key in self._again or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heappush(self._order, (due, next(self._numbers), key))
        if len(self._order) > 2 * len(self._due) + MAX_REPLACED:
            self._order = [(at, next(self._numbers), each) for each, at in self._due.items()]
            heapify(self._order)
        if self._order[0][0] == due:
            self._wake.set()

    def take(self, at_most: int = 1, *, ahead: timedelta = timedelta()) -> Sequence[K]:
        """Return at most `at_most` due keys. If the delay of one key is over, take keys that are due within `ahead` too.

        The caller must call `done` after its work on the keys.
        """
        self._drop_replaced()
        now = self._now() + RESOLUTION
        until = now + ahead.total_seconds() if self._order and self._order[0][0] <= now else now
        while self._order and self._order[0][0] <= (until if len(self._ready) < at_most else now):
            self.add(heappop(self._order)[2])
            self._drop_replaced()
        keys = tuple(islice(self._ready, at_most))
        for key in keys:
            del self._ready[key]
        self._active.update(keys)
        return keys

    async def wait(self) -> None:
        """Wait until there is a key to take."""
        while (pause := self.pause()) != timedelta():
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if pause is None else pause.total_seconds()):
                    await self._wake.wait()

    def done(self, keys: Collection[K]) -> None:
        self._active.difference_update(keys)
        for key in keys:
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    def pause(self) -> timedelta | None:
        """Return the time until a key is due; None: no key waits."""
        if self._ready:
            return timedelta()
        self._drop_replaced()
        return timedelta(seconds=max(0.0, self._order[0][0] - self._now())) if self._order else None

    def _drop_replaced(self) -> None:
        while self._order and self._due.get(self._order[0][2]) != self._order[0][0]:
            heappop(self._order)

    def _now(self) -> float:
        return self._clock.monotonic() if self._clock is not None else asyncio.get_running_loop().time()
