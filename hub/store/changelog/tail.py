"""The newest changes in memory. All followers share them, so that one reader of the log serves any number of watches.

Commits of this replica arrive directly. Commits of other replicas are read after a notification and periodically. Changes are
appended in revision order without a gap, so revisions never decrease for a follower.

A database may lose served changes: after a restore, or after a fail-over to a server that never got the last commits. Then the
newest change in memory is missing in the log, or a revision in memory belongs to another change. `Repair` then moves the log
beyond all served revisions, and followers list again. Until then, no change is appended.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import structlog

from hub.api.meta.change import Change
from hub.ports import Transaction
from machinery.errors import MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.event_loop import until_tick, wait_at_most

RARELY = 10
"""Factor of the poll interval while notifications arrive."""
MAX_CHANGES = 2000
MAX_BYTES = 8 * 1024 * 1024

log = structlog.get_logger(__name__)
Fetch = Callable[[int, int], Awaitable[tuple[Sequence[Change] | None, int]]]
"""Returns one batch of changes from a revision on (None: compacted), after a change before it, and the newest revision."""
Repair = Callable[[int, Change | None], Awaitable[bool]]
"""If the change was lost, moves the log far above its revision and compacts lower revisions. Returns whether it was lost."""


class Tail:
    """The newest changes, for one event loop.

    `is_notified` returns True if `ring` is called after each commit of another process, or no other process writes. Polls are
    then rare.
    """

    def __init__(
        self, fetch: Fetch, repair: Repair, newest: int, poll: timedelta, is_notified: Callable[[], bool] = lambda: False
    ) -> None:
        self._fetch = fetch
        self._repair = repair
        self._poll = poll
        self._is_notified = is_notified
        self._newest = self._checked = newest  # own commits follow `_checked`
        self._lost: Change | None = None  # a change in memory, if the log has another change at its revision
        self._changes: deque[Change] = deque()
        self._bytes = 0
        self._behind = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure = LogOnce(log)

    @property
    def newest(self) -> int:
        return self._newest

    def ring(self) -> None:
        """Note that another replica has committed."""
        self._behind.set()

    def offer(self, changes: Sequence[Change]) -> None:
        """Append changes committed by this replica. If others precede them, or the log has lost changes, `run` looks now."""
        self._take(changes)
        if self._lost or changes[-1].revision > self._newest:
            self._behind.set()

    def _take(self, changes: Sequence[Change]) -> None:
        """Compare known changes with those in memory. Append new ones if they follow directly and no change is lost."""
        lost = (seen for each in changes for seen in self.after(each.revision - 1, 1) or () if seen.encoded != each.encoded)
        self._lost = self._lost or next(lost, None)
        fresh = [change for change in changes if change.revision > self._newest]
        if fresh and fresh[0].revision == self._newest + 1 and not self._lost:
            self._append(fresh)

    def after(self, revision: int, limit: int = 500) -> Sequence[Change] | None:
        """Return changes above `revision`; None if some are no longer in memory."""
        if revision >= self._newest:
            return ()
        first = self._newest - len(self._changes) + 1
        if revision + 1 < first:
            return None
        skip = revision + 1 - first
        # by index, because followers read near the end and a slice of a deque passes all elements before it
        return tuple(self._changes[place] for place in range(skip, min(skip + limit, len(self._changes))))

    async def wait(self, after: int, within: timedelta | None = None) -> int:
        """Wait until there is a change above `after` or the time is over. Returns the newest revision."""
        try:
            async with asyncio.timeout(None if within is None else within.total_seconds()):
                while self._newest <= after:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._newest

    async def run(self) -> None:
        """Fetch changes of other replicas until cancelled."""
        while True:
            await wait_at_most(self._behind, until_tick(self._poll * RARELY if self._is_notified() else self._poll))
            self._behind.clear()
            await self._catch_up()

    async def _catch_up(self) -> None:
        try:
            while await self._look():
                pass
        except Exception as error:  # noqa: BLE001 - the loop must not end: it retries
            if isinstance(error, MusterError):
                self._failure.warning("change log cannot be read", error)
            else:
                self._failure.error("change log cannot be read", error, exc_info=error)
        else:
            self._failure.reset()

    async def _look(self) -> bool:
        """Fetch new changes once. Returns whether there may be more."""
        place = self._newest
        changes, newest = await self._fetch(place, self._checked)
        if place != self._newest:
            return True  # own commits arrived in the meantime: the result is outdated
        if changes is None:
            self._forget(newest)
            return False
        self._take(changes)
        if self._lost or newest < place:
            if not await self._repair(place, self._lost or (self._changes[-1] if self._changes else None)):
                self._lost = None
                return False  # a server that is behind has answered, or another replica was faster: the next call decides
            log.error("the database has lost changes that were already read: all watches list again", newest=newest, seen=place)
            return True
        self._checked = self._newest
        return place < self._newest < newest

    def _forget(self, newest: int) -> None:
        """Drop the buffer after the next changes were compacted; followers get the error when they read the log."""
        self._changes.clear()
        self._bytes = 0
        self._newest = self._checked = newest
        self._lost = None
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


def skip_lost_changes(transaction: Transaction, seen: int, shown: Change | None) -> bool:
    """If the log has lost changes, move it far above `seen`. Return whether changes were lost; see `Repair`."""
    changes: Any = transaction.changes  # `skip_ahead` is specific to this adapter
    return bool(changes.skip_ahead(seen, shown))


def tail_changes(transaction: Transaction, revision: int, checked: int) -> tuple[Sequence[Change] | None, int]:
    """Return changes and the newest revision; see `Fetch`. Those at `revision` and `checked` show whether changes were lost."""
    newest = transaction.changes.newest()
    if newest < revision:
        return (), newest
    oldest = transaction.changes.oldest()
    if revision < oldest:
        return None, newest
    before = transaction.changes.since(checked - 1, limit=1) if oldest < checked < revision else ()
    return (*before, *transaction.changes.since(max(revision - 1, oldest))), newest
