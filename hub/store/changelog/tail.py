"""The newest changes in memory. All followers share them, so that one reader of the log serves any number of watches.

Commits of this replica arrive directly. Commits of other replicas are read after a notification and periodically. Changes are
appended in revision order without a gap, so revisions never decrease for a follower.

A database may lose served changes: after a restore, or after a fail-over to a server that never got the last commits. Then the
newest change in memory is missing in the log, or its revision belongs to another change. `Repair` then moves the log beyond all
served revisions, and followers list again.
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
Fetch = Callable[[int], Awaitable[tuple[Sequence[Change] | None, int]]]
"""Returns one batch of changes from a revision on, inclusive (None: compacted), and the newest visible revision."""
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
        self._newest = newest
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
        """Append changes committed by this replica. If changes of other replicas precede them, `run` fetches all."""
        fresh = [change for change in changes if change.revision > self._newest]
        if fresh and fresh[0].revision == self._newest + 1:
            self._append(fresh)
        elif fresh:
            self._behind.set()

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
        changes, newest = await self._fetch(place)
        if place != self._newest:
            return True  # own commits arrived in the meantime: the result is outdated
        if newest < place or (changes and changes[0].revision == place and not self._is_known(changes[0])):
            if not await self._repair(place, self._changes[-1] if self._changes else None):
                return False  # a server that is behind has answered, or another replica was faster: the next call decides
            log.error("the database has lost changes that were already read: all watches list again", newest=newest, seen=place)
            return True
        if changes is None:
            self._forget(newest)
            return False
        self.offer(changes)
        return place < self._newest < newest

    def _is_known(self, change: Change) -> bool:
        """Whether this change of the log equals the newest change in memory."""
        return not self._changes or self._changes[-1].encoded == change.encoded

    def _forget(self, newest: int) -> None:
        """Drop the buffer after the next changes were compacted; followers get the error when they read the log."""
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


def skip_lost_changes(transaction: Transaction, seen: int, shown: Change | None) -> bool:
    """If the log has lost changes, move it far above `seen`. Return whether changes were lost; see `Repair`."""
    changes: Any = transaction.changes  # `skip_ahead` is specific to this adapter
    leapt: bool = changes.skip_ahead(seen, shown)
    return leapt


def tail_changes(transaction: Transaction, revision: int) -> tuple[Sequence[Change] | None, int]:
    """Return changes and the newest revision; see `Fetch`. The change at `revision` itself shows whether changes were lost."""
    newest = transaction.changes.newest()
    if newest < revision:
        return (), newest
    oldest = transaction.changes.oldest()
    if revision < oldest:
        return None, newest
    return transaction.changes.since(max(revision - 1, oldest)), newest
