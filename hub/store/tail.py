"""The newest changes in memory, for all followers at once: one reader of the log, however many watch.

Our own commits arrive here directly; those of other replicas are found by a poll. Either way changes are appended in the order
of their revisions without a gap, so a follower never sees a revision below one that it saw.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog

from hub.domain.change import Change
from machinery.errors import MusterError

MAX_CHANGES = 2000
MAX_BYTES = 8 * 1024 * 1024

log = structlog.get_logger(__name__)
Fetch = Callable[[int], Awaitable[tuple[Sequence[Change] | None, int]]]
"""Changes above a revision, a batch at most (None: they are compacted), and the newest revision then visible."""


class Tail:
    """Belongs to one event loop."""

    def __init__(self, fetch: Fetch, newest: int, poll: timedelta) -> None:
        self._fetch = fetch
        self._poll = poll.total_seconds()
        self._newest = newest
        self._changes: deque[Change] = deque()
        self._bytes = 0
        self._behind = asyncio.Event()
        self._changed = asyncio.Event()
        self._failing = False

    @property
    def newest(self) -> int:
        return self._newest

    def offer(self, changes: Sequence[Change]) -> None:
        """Takes changes that were just committed here; when others come before them, has those fetched."""
        fresh = [change for change in changes if change.revision > self._newest]
        if fresh and fresh[0].revision == self._newest + 1:
            self._append(fresh)
        elif fresh:
            self._behind.set()

    def after(self, revision: int, limit: int = 500) -> Sequence[Change] | None:
        """Changes above `revision`, or None when they are not all in memory."""
        if revision >= self._newest:
            return ()
        first = self._newest - len(self._changes) + 1
        if revision + 1 < first:
            return None
        skip = revision + 1 - first
        # by position: followers read near the end, and a slice would pass everything before it
        return tuple(self._changes[place] for place in range(skip, min(skip + limit, len(self._changes))))

    async def wait(self, after: int, within: timedelta | None = None) -> int:
        """Returns when a change above `after` is there, or when the time is over; the newest revision."""
        try:
            async with asyncio.timeout(None if within is None else within.total_seconds()):
                while self._newest <= after:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._newest

    async def run(self) -> None:
        """Looks for changes of others until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._poll):
                    await self._behind.wait()
            except TimeoutError:
                pass
            self._behind.clear()
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            changes, newest = await self._fetch(self._newest)
            while changes:
                self.offer(changes)
                changes, newest = await self._fetch(self._newest)
        except MusterError as error:
            if not self._failing:
                log.warning("change log cannot be read", error=error.message)
            self._failing = True
            return
        self._failing = False
        if changes is None:
            self._forget(newest)

    def _forget(self, newest: int) -> None:
        """What comes next was compacted before it was read: followers find out when they read it from the log."""
        self._changes.clear()
        self._bytes = 0
        self._newest = max(self._newest, newest)
        self._wake()

    def _append(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._changes.append(change)
            self._bytes += len(change.encoded)
        while len(self._changes) > MAX_CHANGES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._changes.popleft().encoded)
        self._newest = changes[-1].revision
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
