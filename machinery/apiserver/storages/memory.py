"""Storage in memory for hollow clusters and tests. All work runs on the event loop; nothing is persistent."""

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from machinery.apiserver.storage import Actor, FieldExtractor, GroupResource, Storage, UpdateFunc
from machinery.errors import AlreadyExistsError, ExpiredError, NotFoundError
from machinery.meta.objects import ChangeType, Document, Key, Page, Query, StoredObject, WatchEvent
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock, SystemClock

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Entry:
    """An object with the fields that selections match."""

    stored: StoredObject
    labels: Mapping[str, str]
    fields: Mapping[str, str]

    @property
    def document(self) -> Document:
        return self.stored.document

    def selected(self, query: Query) -> bool:
        return query.matches(self.stored.key, self.labels, self.fields)


@dataclass(frozen=True, slots=True)
class _Record:
    """One change in the history; for a delete, `after` is the last state with the revision of the delete."""

    resource: GroupResource
    revision: int
    before: _Entry | None
    after: _Entry
    deleted: bool

    def seen_through(self, query: Query) -> WatchEvent | None:
        """Return the event for a watcher with this query; None if the query selects neither the old nor the new object."""
        was = self.before is not None and self.before.selected(query)
        now = not self.deleted and self.after.selected(query)
        if now:
            return WatchEvent(ChangeType.MODIFIED if was else ChangeType.ADDED, self.after.stored)
        if self.before is None or not was:
            return None
        if self.deleted:
            return WatchEvent(ChangeType.DELETED, self.after.stored)
        document = self.before.document  # no longer selected: the previous state with the revision of the change
        metadata = {**document["metadata"], "resourceVersion": str(self.revision)}
        last = StoredObject(self.after.stored.key, self.revision, _encode({**document, "metadata": metadata}))
        return WatchEvent(ChangeType.DELETED, last)


class _Watcher:
    """A bounded queue of events. After an overflow it accepts no more events, and its reader gets ExpiredError."""

    def __init__(self, resource: GroupResource, query: Query, after: int, bound: int) -> None:
        self.resource = resource
        self._query = query
        self._after = after
        self._events: asyncio.Queue[WatchEvent] = asyncio.Queue(bound)
        self._overflown = False

    def offer(self, record: _Record) -> None:
        event = record.seen_through(self._query) if record.revision > self._after else None
        if event is not None and not self._overflown:
            self._overflown = self._events.full()
            if not self._overflown:
                self._events.put_nowait(event)

    async def next(self, within: float) -> WatchEvent | None:
        """Return the next event; None: none came within this many seconds. Raises ExpiredError after an overflow."""
        if self._overflown and self._events.empty():
            raise ExpiredError("the watcher is too slow: events were dropped; list again and watch from there")
        try:
            async with asyncio.timeout(within):
                return await self._events.get()
        except TimeoutError:
            return None


class MemoryStorage(Storage):
    """Objects in dictionaries, with the newest `history` changes for watches and for pages of older revisions.

    `selectable`: functions that return the selectable fields, by resource. `uid`: returns the uid of a new object; default:
    random.
    """

    def __init__(
        self,
        selectable: Mapping[GroupResource, FieldExtractor] | None = None,
        *,
        clock: Clock | None = None,
        uid: Callable[[GroupResource, Key], str] = lambda _resource, _key: str(uuid.uuid4()),
        history: int = 10_000,
        queue: int = 1_000,
        bookmark_every: timedelta = timedelta(seconds=10),
    ) -> None:
        self._selectable = dict(selectable or {})
        self._clock = clock or SystemClock()
        self._uid = uid
        self._history: deque[_Record] = deque(maxlen=history)
        self._objects: dict[GroupResource, dict[Key, _Entry]] = {}
        self._watchers: set[_Watcher] = set()
        self._queue = queue
        self._bookmark_seconds = bookmark_every.total_seconds()
        self._revision = 1
        self._compacted = 1
        self._moved = asyncio.Condition()

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self._entry(resource, key).stored

    async def list(self, resource: GroupResource, query: Query) -> Page:
        at, limit = query.at, query.limit
        revision = self._revision if at is None else at
        entries = self._entries(resource) if at is None or at == self._revision else self._entries_at(resource, at)
        left = sorted(key for key in entries if query.after is None or key > query.after)
        chosen = [entries[key].stored for key in left if entries[key].selected(query)]
        if limit is None or len(chosen) <= limit:
            return Page(tuple(chosen), revision)
        return Page(tuple(chosen[:limit]), revision, chosen[limit - 1].key, len(chosen) - limit)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        del actor  # there is no change log in memory
        if key in self._entries(resource):
            raise AlreadyExistsError(f'{resource} "{key.name}" already exists')
        own = {"uid": self._uid(resource, key), "creationTimestamp": format_time(self._clock.now())}
        entry = self._stamped(resource, key, document, own)
        if not dry_run:
            await self._commit(_Record(resource, entry.stored.revision, None, entry, deleted=False))
        return entry.stored

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        del actor
        old = self._entry(resource, key)
        new = change(old.document)
        if new == old.document:
            return old.stored
        own = {name: old.document["metadata"][name] for name in ("uid", "creationTimestamp")}
        entry = self._stamped(resource, key, old.document if new is None else new, own)
        if not dry_run:
            await self._commit(_Record(resource, entry.stored.revision, old, entry, deleted=new is None))
        return entry.stored

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        if after < self._compacted:
            raise ExpiredError(f"too old resource version: {after} ({self._compacted})")
        watcher = _Watcher(resource, query, after, self._queue)
        missed = [record for record in self._history if record.resource == resource and record.revision > after]
        sent_revision = max(after, self._revision)
        self._watchers.add(watcher)
        events = self._events(watcher, [event for record in missed if (event := record.seen_through(query))], sent_revision)
        try:
            yield events
        finally:
            self._watchers.discard(watcher)
            await events.aclose()

    async def revision(self) -> int:
        return self._revision

    async def wait_for(self, revision: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: self._revision >= revision)

    def compact(self, revision: int) -> None:
        """Drop the history up to and including `revision`."""
        while self._history and self._history[0].revision <= revision:
            self._history.popleft()
        self._compacted = max(self._compacted, min(revision, self._revision))

    async def _events(
        self, watcher: _Watcher, missed: Iterable[WatchEvent], sent_revision: int
    ) -> AsyncGenerator[WatchEvent | int]:
        for event in missed:
            yield event
        yield sent_revision
        while True:
            news = await watcher.next(self._bookmark_seconds)
            if news is not None:
                sent_revision = news.stored.revision
                yield news
            elif sent_revision < self._revision:
                sent_revision = self._revision
                yield sent_revision

    def _entries(self, resource: GroupResource) -> dict[Key, _Entry]:
        return self._objects.setdefault(resource, {})

    def _entries_at(self, resource: GroupResource, at: int) -> dict[Key, _Entry]:
        if at < self._compacted:
            raise ExpiredError("The provided continue parameter is too old: its revision is compacted; start the list again")
        entries = dict(self._entries(resource))
        for record in reversed(self._history):
            if record.revision <= at:
                break
            if record.resource != resource:
                continue
            if record.before is None:
                del entries[record.after.stored.key]
            else:
                entries[record.before.stored.key] = record.before
        return entries

    def _entry(self, resource: GroupResource, key: Key) -> _Entry:
        entry = self._entries(resource).get(key)
        if entry is None:
            raise NotFoundError(f'{resource} "{key.name}" not found')
        return entry

    def _stamped(self, resource: GroupResource, key: Key, document: Document, own: Mapping[str, Any]) -> _Entry:
        revision = self._revision + 1
        metadata = {**document.get("metadata", {}), **own, "resourceVersion": str(revision)}
        stamped = {**document, "metadata": metadata}
        extract = self._selectable.get(resource)
        stored = StoredObject(key, revision, _encode(stamped), str(metadata.get("uid", "")))
        return _Entry(stored, metadata.get("labels") or {}, extract(stamped) if extract else {})

    async def _commit(self, record: _Record) -> None:
        entries = self._entries(record.resource)
        if len(self._history) == self._history.maxlen:
            self._compacted = self._history[0].revision
        self._history.append(record)
        self._revision = record.revision
        if record.deleted:
            del entries[record.after.stored.key]
        else:
            entries[record.after.stored.key] = record.after
        for watcher in self._watchers:
            if watcher.resource == record.resource:
                watcher.offer(record)
        async with self._moved:
            self._moved.notify_all()
