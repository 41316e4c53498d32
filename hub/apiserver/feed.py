"""One follower of the change log for all watches of this replica: a change is decoded once, however many watch.

A watcher first reads from the database what lies between its revision and the feed's position, then takes from its queue what
came after: no change is told twice or missed. Queues are bounded; a watcher that does not keep up is told to list again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from hub.domain.change import Change, ChangeType, Kind
from hub.domain.selection import fields_of
from hub.ports import Store, Transaction
from machinery.apiserver.storage import Event, EventType, Key, Selection, Stored
from machinery.errors import ExpiredError

PAGE = 500
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Seen:
    """A change with what selections look at, before and after."""

    change: Change
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    @classmethod
    def of(cls, change: Change) -> "Seen":
        document: dict[str, Any] = _decode(change.encoded)
        labels = document.get("metadata", {}).get("labels") or {}
        return cls(change, labels, {**fields_of(change.kind, document), **_names(change)})

    def through(self, selection: Selection) -> Event | None:
        """The event that a watcher with this selection gets; None: it never saw the object and still does not."""
        change = self.change
        if selection.namespace is not None and change.key.namespace != selection.namespace:
            return None
        was = change.type is not ChangeType.ADDED and _selected(
            selection, change.labels_before, {**change.fields_before, **_names(change)}
        )
        now = change.type is not ChangeType.DELETED and _selected(selection, self.labels, self.fields)
        stored = Stored(Key(change.key.namespace, change.key.name), change.revision, change.encoded)
        if now:
            return Event(EventType.MODIFIED if was else EventType.ADDED, stored)
        return Event(EventType.DELETED, stored) if was else None


def _names(change: Change) -> dict[str, str]:
    return {"metadata.name": change.key.name, "metadata.namespace": change.key.namespace}


def _selected(selection: Selection, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    return selection.labels.matches(labels) and selection.fields.matches(fields)


class _Queue:
    """The bounded queue of one watcher. Once it overflows it takes nothing more and its reader is told so."""

    def __init__(self, kind: Kind, selection: Selection, bound: int) -> None:
        self.kind = kind
        self._selection = selection
        self._bound = bound
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._overflown = False

    def offer(self, seen: Seen) -> None:
        event = None if self._overflown else seen.through(self._selection)
        if event is None:
            return
        if len(self._events) >= self._bound:
            self._overflown = True
        else:
            self._events.append(event)
        self._wake.set()

    def break_off(self) -> None:
        """Makes the reader list again: what came meanwhile is not known."""
        self._events.clear()
        self._overflown = True
        self._wake.set()

    async def next(self, patience: timedelta) -> Event | None:
        """The next event; None when none came in time. Raises ExpiredError after an overflow."""
        if not self._events and not self._overflown:
            self._wake.clear()
            try:
                async with asyncio.timeout(patience.total_seconds()):
                    await self._wake.wait()
            except TimeoutError:
                return None
        if self._events:
            return self._events.popleft()
        raise ExpiredError("the watcher is too slow: events were dropped; list again and watch from there")


class ChangeFeed:
    """The follower. `run` is a task of the hub; watches wait for it to come up."""

    def __init__(self, store: Store, *, bound: int = 1000, bookmark_every: timedelta = timedelta(seconds=5)) -> None:
        self._store = store
        self._bound = bound
        self._patience = bookmark_every
        self._queues: set[_Queue] = set()
        self._position = 0
        self._up = asyncio.Event()

    @property
    def position(self) -> int:
        """The revision up to which every watcher has been told."""
        return self._position

    async def run(self, *, started: Callable[[], None] = lambda: None) -> None:
        """Follows the log until cancelled. When it falls so far behind that the log is compacted, every watcher lists again."""
        while True:
            self._position = await self._store.read(_newest)
            self._up.set()
            started()
            try:
                async for batch in self._store.follow(self._position):
                    self._tell(batch)
            except ExpiredError:
                self._up.clear()
                for queue in self._queues:
                    queue.break_off()

    def _tell(self, batch: Sequence[Change]) -> None:
        for change in batch:
            watching = [queue for queue in self._queues if queue.kind == change.kind]
            if watching:
                seen = Seen.of(change)
                for queue in watching:
                    queue.offer(seen)
            self._position = change.revision

    @asynccontextmanager
    async def watch(self, kind: Kind, selection: Selection, *, after: int) -> AsyncGenerator[AsyncIterator[Event | int]]:
        """As `machinery.apiserver.storage.Storage.watch`."""
        await self._up.wait()
        queue = _Queue(kind, selection, self._bound)
        self._queues.add(queue)
        behind_until = self._position
        missed = await self._store.read(_since, after, kind) if after < behind_until else ()
        events = self._events(queue, kind, selection, missed, after, behind_until)
        try:
            yield events
        finally:
            self._queues.discard(queue)
            await events.aclose()

    async def _events(  # noqa: PLR0917 - the parts of one catch-up
        self, queue: _Queue, kind: Kind, selection: Selection, missed: Sequence[Change], after: int, until: int
    ) -> AsyncGenerator[Event | int]:
        told = max(after, until)
        while missed:
            for change in missed:
                if change.revision <= until and (event := Seen.of(change).through(selection)):
                    yield event
            last = missed[-1].revision
            missed = await self._store.read(_since, last, kind) if last < until and len(missed) == PAGE else ()
        yield told
        while True:
            event = await queue.next(self._patience)
            if event is None:
                if told < self._position:
                    told = self._position
                    yield told
            elif event.stored.revision > told:
                told = event.stored.revision
                yield event


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()


def _since(tx: Transaction, after: int, kind: Kind) -> Sequence[Change]:
    return tx.changes.since(after, kinds=(kind,), limit=PAGE)
