"""Follows the change log once for all watchers of the HTTPS door.

Each watcher has a bounded queue. If the queue overflows, its content is dropped, and the watcher reads the log until it has
caught up. So a slow watcher needs little memory, and loses or repeats no change. A watch gets ExpiredError only if its revision
is compacted.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain

import msgspec

from hub.api.meta import document as doc
from hub.api.meta.change import Change, Kind
from hub.api.query.expressions import QueryRecord
from hub.api.query.selection import fields_of, where_in
from hub.ports import Store, Transaction
from machinery.errors import ExpiredError
from machinery.meta.objects import ChangeType, Query, StoredObject, WatchEvent
from machinery.meta.selectors import Operator
from machinery.runtime.informer import Informer

BATCH = 500
QUEUE = 1_000


class SeenChange:
    """A change, decoded at most once for all watchers. Watchers to which it is an event of the same type share this event."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._after: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._events: dict[ChangeType, WatchEvent] = {}

    def through(self, query: Query) -> WatchEvent | None:
        """Returns the event for this query; None if the query selects the object neither before nor after the change."""
        change = self.change
        if query.namespace is not None and change.key.namespace != query.namespace:
            return None
        was = change.type is not ChangeType.ADDED and self._selected(query, change.labels_before, change.fields_before)
        now = change.type is not ChangeType.DELETED and self._selected(query, *self._values(query))
        if not was and not now:
            return None
        kind = ChangeType.DELETED if not now else ChangeType.MODIFIED if was else ChangeType.ADDED
        event = self._events.get(kind)
        if event is None:
            stored = StoredObject(change.key, change.revision, change.encoded)
            if kind is ChangeType.DELETED and change.type is not kind:  # with the selected former labels, as in Kubernetes
                document = msgspec.json.decode(change.encoded)
                document["metadata"]["labels"] = dict(change.labels_before)
                stored = replace(stored, encoded=msgspec.json.encode(document))
            event = self._events[kind] = WatchEvent(kind, stored)
        return event

    def _selected(self, query: Query, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        key = self.change.key
        if not query.matches(key, labels, fields):
            return False
        where = where_in(query)
        return where is None or where.holds(QueryRecord(key.name, labels, fields))

    def _values(self, query: Query) -> tuple[Mapping[str, str], Mapping[str, str]]:
        if not query.labels and not query.fields and query.where is None:
            return {}, {}
        if self._after is None:
            document = msgspec.json.decode(self.change.encoded)
            self._after = doc.labels(document), fields_of(self.change.kind, document)
        return self._after


class _Watcher:
    """The queue of one watcher. `behind`: changes are missing from it, so the watch must read the change log."""

    def __init__(self, bound: int, bookmark_after: timedelta) -> None:
        self.behind = False
        self._bound = bound
        self._bookmark_after = bookmark_after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._events: deque[WatchEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._quiet_from = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, event: WatchEvent) -> None:
        if self.behind:
            return
        self._events.append(event)
        if len(self._events) > self._bound:
            self._events.clear()
            self.behind = True
        self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def catch_up(self) -> None:
        """Uses the queue again. The caller reads earlier changes from the log."""
        self.behind = False
        self._events.clear()

    async def next(self) -> WatchEvent | None:
        """Returns the next event; None: no event came within `bookmark_after`, or the watcher is behind."""
        if not self._events and not self.behind:
            self._waiting = self._loop.create_future()
            self._quiet_from = self._loop.time() + self._bookmark_after
            if self._timer is None:
                self._timer = self._loop.call_at(self._quiet_from, self._perhaps_quiet)
            await self._waiting
        return self._events.popleft() if self._events else None

    def _perhaps_quiet(self) -> None:
        """Wakes a watcher that got no event in time. One timer serves many events, because a timer per event costs too much."""
        self._timer = None
        if self._loop.time() >= self._quiet_from:
            self.wake()
        elif self._waiting is not None and not self._waiting.done():
            self._timer = self._loop.call_at(self._quiet_from, self._perhaps_quiet)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class ChangeFeed:
    """Delivers changes to watchers while `run` runs. Watches that begin earlier wait for `run`."""

    def __init__(self, store: Store, *, queue: int = QUEUE) -> None:
        self._store = store
        self._queue = queue
        self._watchers: dict[Kind, dict[Query, set[_Watcher]]] = {}
        """Watchers by kind and selection. Watchers with the same kind and selection share events."""
        self._position = 0
        self._following = asyncio.Event()
        self.behind = 0
        """How often a watcher's queue overflowed since the start."""

    async def run(self) -> None:
        """Follows the store until cancelled. Restarts at the newest revision after a compaction."""
        await Informer("watches", self._store.follow, self._sync, self._take).run()

    async def _sync(self) -> int:
        self._following.clear()
        self._position = await self._store.read(lambda tx: tx.changes.newest())
        for watcher in chain.from_iterable(chain.from_iterable(by.values() for by in self._watchers.values())):
            watcher.behind = True
            watcher.wake()
        self._following.set()
        return self._position

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            seen = SeenChange(change)
            for query, watchers in self._watchers.get(change.kind, {}).items():
                if (event := seen.through(query)) is not None:
                    for watcher in watchers:
                        watcher.offer(event)
            self._position = change.revision

    async def watch(
        self, kind: Kind, query: Query, *, after: int, bookmark_after: timedelta
    ) -> AsyncGenerator[WatchEvent | int]:
        """Yields events with revisions above `after`, in order.

        At the start, and when no event came for `bookmark_after`, yields the revision up to which events are complete. Raises
        ExpiredError if `after` is compacted or not a revision of this database.
        """
        await self._following.wait()
        if after > self._position:  # a new revision of another replica, or one that a restore of the database has lost
            await self._store.read(_since, kind, query, after)
        watcher = _Watcher(self._queue, bookmark_after)
        watcher.behind = after < self._position
        self._watchers.setdefault(kind, {}).setdefault(query, set()).add(watcher)
        try:
            revision, abreast = after, not watcher.behind
            if abreast:
                yield revision
            while True:
                self.behind += watcher.behind and abreast
                abreast = not watcher.behind
                if watcher.behind:
                    watcher.catch_up()
                    count = BATCH
                    while count == BATCH:
                        changes, newest = await self._store.read(_since, kind, query, revision)
                        count = len(changes)
                        for change in changes:
                            revision = change.revision
                            if (missed := SeenChange(change).through(query)) is not None:
                                yield missed
                    revision = max(newest, revision)
                    yield revision
                    continue
                event = await watcher.next()
                if event is not None and event.stored.revision > revision:
                    revision = event.stored.revision
                    yield event
                elif event is None and not watcher.behind:  # every event up to the feed's position was yielded
                    revision = max(revision, self._position)
                    yield revision
        finally:
            self._leave(kind, query, watcher)

    def _leave(self, kind: Kind, query: Query, watcher: _Watcher) -> None:
        watcher.close()
        watchers = self._watchers[kind][query]
        watchers.discard(watcher)
        if not watchers:
            del self._watchers[kind][query]


def _since(tx: Transaction, kind: Kind, query: Query, after: int) -> tuple[Sequence[Change], int]:
    """Returns changes that may match a selection, and the newest revision. For one object, reads only its changes."""
    if after < (oldest := tx.changes.oldest()):
        raise ExpiredError(f"too old resource version: {after} ({oldest})")
    exact = (each.values[0] for each in query.fields if each.name == "metadata.name" and each.operator is Operator.EQUALS)
    changes = tx.changes.since(after, kinds=(kind,), limit=BATCH, namespace=query.namespace, name=next(exact, None))
    return changes, tx.changes.newest()
