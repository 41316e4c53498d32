"""The newest changes in memory, for all followers at once: one reader of the log, however many watch.

Our own commits arrive here directly; those of other replicas are found by looking, when the doorbell rings and now and then
anyway. Either way changes are appended in the order of their revisions without a gap, so a follower never sees a revision below
one that it saw.

A database may lose what it has shown: it is restored, or fails over to a server that never got the last commits. Then the
change that was the newest here is not in the log any more, or another one has its revision. Nobody can tell any more which
revision means what, so all of them are left behind at once (`Mend`), and whoever saw one begins anew.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import structlog

from hub.api.meta.change import Change
from machinery.errors import MusterError
from machinery.runtime.rate_limit import until_tick

RARELY = 10
"""Where word of others comes by itself, so much more seldom is looked without it."""
MAX_CHANGES = 2000
MAX_BYTES = 8 * 1024 * 1024

log = structlog.get_logger(__name__)
Fetch = Callable[[int], Awaitable[tuple[Sequence[Change] | None, int]]]
"""Changes from a revision on, a batch at most (None: they are compacted), and the newest revision then visible."""
Mend = Callable[[int, Change | None], Awaitable[bool]]
"""Continues the log far above a revision, and compacts all that is below; False: that, and the change there, is not lost."""


class Tail:
    """Belongs to one event loop. `is_told`: whether it can count on a `ring` for what others commit, or nobody else can."""

    def __init__(
        self, fetch: Fetch, mend: Mend, newest: int, poll: timedelta, is_told: Callable[[], bool] = lambda: False
    ) -> None:
        self._fetch = fetch
        self._mend = mend
        self._poll = poll
        self._is_told = is_told
        self._newest = newest
        self._changes: deque[Change] = deque()
        self._bytes = 0
        self._behind = asyncio.Event()
        self._changed = asyncio.Event()
        self._trouble = ""

    @property
    def newest(self) -> int:
        return self._newest

    def ring(self) -> None:
        """Others have committed something."""
        self._behind.set()

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
                async with asyncio.timeout(until_tick(self._poll * RARELY if self._is_told() else self._poll)):
                    await self._behind.wait()
            except TimeoutError:
                pass
            self._behind.clear()
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            while await self._look():
                pass
        except Exception as error:  # noqa: BLE001 - it is looked at again: nobody else would notice that this had ended
            self._tell(error)
        else:
            self._trouble = ""

    def _tell(self, error: Exception) -> None:
        """Once per trouble; with its stack where nobody foresaw it."""
        trouble, foreseen = f"{type(error).__name__}: {error}", isinstance(error, MusterError)
        if trouble != self._trouble:
            tell = log.warning if foreseen else log.error
            tell("change log cannot be read", error=str(error), exc_info=None if foreseen else error)
        self._trouble = trouble

    async def _look(self) -> bool:
        """Whether there may be more to see at once."""
        place = self._newest
        changes, newest = await self._fetch(place)
        if place != self._newest:
            return True  # our own commits came meanwhile: what was read says nothing about the place now
        if newest < place or (changes and changes[0].revision == place and not self._is_known(changes[0])):
            if not await self._mend(place, self._changes[-1] if self._changes else None):
                return False  # a server that is behind has answered, or another replica was faster: the next look shows
            log.error("the database has lost changes that it had shown: everybody reads anew", newest=newest, seen=place)
            return True
        if changes is None:
            self._forget(newest)
            return False
        self.offer(changes)
        return place < self._newest < newest

    def _is_known(self, change: Change) -> bool:
        """Whether the newest change is still what it was."""
        return not self._changes or self._changes[-1].encoded == change.encoded

    def _forget(self, newest: int) -> None:
        """What comes next was compacted before it was read: followers find out when they read it from the log."""
        self._changes.clear()
        self._bytes = 0
        self._newest = newest
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
