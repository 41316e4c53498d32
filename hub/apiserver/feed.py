"""The change log, followed once for all watchers.

Each watcher has a bounded queue. One that falls behind loses its queue, not its place: it reads on from the log, until it is
abreast again. So a slow watcher costs no memory, and no change is lost or told twice. Only a place that was compacted is
refused, with ExpiredError.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import chain

import msgspec
import structlog

from hub.domain import document as doc
from hub.domain.change import Change, ChangeType, Kind
from hub.domain.selection import fields_of
from hub.ports import Store, Transaction
from machinery.apiserver.storage import Event, EventType, Key, Selection, Stored
from machinery.backoff import Backoff
from machinery.errors import ExpiredError, MusterError

BATCH = 500
QUEUE = 1_000

log = structlog.get_logger(__name__)


class Sight:
    """A change as watchers see it. What selections look at is decoded at most once, whoever looks."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._after: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    def through(self, selection: Selection) -> Event | None:
        """The event for a watcher with this selection; None: it never saw the object, and still does not."""
        change = self.change
        if selection.namespace is not None and change.key.namespace != selection.namespace:
            return None
        was = change.type is not ChangeType.ADDED and self._selected(selection, change.labels_before, change.fields_before)
        now = change.type is not ChangeType.DELETED and self._selected(selection, *self._values(selection))
        if not was and not now:
            return None
        stored = Stored(Key(change.key.namespace, change.key.name), change.revision, change.encoded)
        if not now:
            return Event(EventType.DELETED, stored if change.type is ChangeType.DELETED else self._left(stored))
        return Event(EventType.MODIFIED if was else EventType.ADDED, stored)

    def _left(self, stored: Stored) -> Stored:
        """The object as a watcher must know it to let it go: with the labels that it was selected by, as in Kubernetes."""
        document = msgspec.json.decode(stored.document)
        document["metadata"]["labels"] = dict(self.change.labels_before)
        return replace(stored, document=msgspec.json.encode(document))

    def _selected(self, selection: Selection, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        if not selection.labels.matches(labels):
            return False
        key = self.change.key
        return selection.fields.matches({**fields, "metadata.name": key.name, "metadata.namespace": key.namespace})

    def _values(self, selection: Selection) -> tuple[Mapping[str, str], Mapping[str, str]]:
        if not selection.labels.requirements and not selection.fields.requirements:
            return {}, {}
        if self._after is None:
            document = msgspec.json.decode(self.change.encoded)
            self._after = doc.labels(document), fields_of(self.change.kind, document)
        return self._after


class _Watcher:
    """What one watcher has not been told yet; `behind` once that was too much to keep."""

    def __init__(self, kind: Kind, bound: int) -> None:
        self.kind = kind
        self.behind = False
        self._bound = bound
        self._sights: deque[Sight] = deque()
        self._wake = asyncio.Event()

    def offer(self, sight: Sight) -> None:
        if self.behind:
            return
        self._sights.append(sight)
        if len(self._sights) > self._bound:
            self._sights.clear()
            self.behind = True
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def catch_up(self) -> None:
        """From here on the queue counts again: what comes before is read from the log."""
        self.behind = False
        self._sights.clear()

    async def next(self, patience: timedelta) -> Sight | None:
        """The next change; None when none came in time, or when this watcher has fallen behind."""
        if not self._sights and not self.behind:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience.total_seconds()):
                    await self._wake.wait()
        return self._sights.popleft() if self._sights else None


class ChangeFeed:
    """Follows the store while `run` runs, and fans out. Watches that begin before it wait for it."""

    def __init__(self, store: Store, *, queue: int = QUEUE) -> None:
        self._store = store
        self._queue = queue
        self._watchers: defaultdict[Kind, set[_Watcher]] = defaultdict(set)
        self._position = 0
        self._following = asyncio.Event()
        self._pauses = Backoff(timedelta(milliseconds=200), timedelta(seconds=10))

    async def run(self) -> None:
        """Follows for ever. A database that is away is asked again, a place that is compacted is left behind."""
        while True:
            try:
                await self._follow()
            except ExpiredError:
                self._following.clear()
                log.warning("the change log was compacted below the place of its follower", revision=self._position)
            except MusterError as error:
                pause = self._pauses.next()
                log.warning("the change log cannot be followed now", error=error.message, retry_in=pause.total_seconds())
                await asyncio.sleep(pause.total_seconds())
            else:
                return

    async def _follow(self) -> None:
        if not self._following.is_set():
            self._position = await self._store.read(_newest)
            for watcher in chain.from_iterable(self._watchers.values()):
                watcher.behind = True
                watcher.wake()
            self._following.set()
        async for batch in self._store.follow(self._position):
            self._pauses.reset()
            self._tell(batch)

    def _tell(self, batch: Sequence[Change]) -> None:
        for change in batch:
            sight = Sight(change)
            for watcher in self._watchers[change.kind]:  # a storm of one kind costs the watchers of others nothing
                watcher.offer(sight)
            self._position = change.revision

    async def watch(self, kind: Kind, selection: Selection, *, after: int, patience: timedelta) -> AsyncGenerator[Event | int]:
        """Events above `after`, in order; an int, the revision up to which all was told, at the start and whenever it is quiet.

        Raises ExpiredError when the place is compacted.
        """
        await self._following.wait()
        watcher = _Watcher(kind, self._queue)
        watcher.behind = after < self._position
        self._watchers[kind].add(watcher)
        told = after
        if not watcher.behind:
            yield told
        try:
            while True:
                source = self._behind(watcher, told) if watcher.behind else self._abreast(watcher, told, patience)
                async with aclosing(source):
                    async for sight in source:
                        told = sight if isinstance(sight, int) else sight.change.revision
                        event = sight if isinstance(sight, int) else sight.through(selection)
                        if event is not None:
                            yield event
        finally:
            self._watchers[kind].discard(watcher)

    async def _behind(self, watcher: _Watcher, after: int) -> AsyncGenerator[Sight | int]:
        """What the log has above `after`; at the end the revision that was the newest then."""
        watcher.catch_up()
        while True:
            changes, newest = await self._store.read(_since, watcher.kind, after)
            for change in changes:
                yield Sight(change)
                after = change.revision
            if len(changes) < BATCH:
                yield max(newest, after)
                return

    async def _abreast(self, watcher: _Watcher, told: int, patience: timedelta) -> AsyncGenerator[Sight | int]:
        """What the feed tells above `told`, until the watcher falls behind."""
        while not watcher.behind:
            sight = await watcher.next(patience)
            if sight is not None and sight.change.revision > told:
                told = sight.change.revision
                yield sight
            elif sight is None and not watcher.behind:
                # The queue is empty, so everything up to the feed's place has been told.
                told = max(told, self._position)
                yield told


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()


def _since(tx: Transaction, kind: Kind, after: int) -> tuple[Sequence[Change], int]:
    if after < (oldest := tx.changes.oldest()):
        raise ExpiredError(f"too old resource version: {after} ({oldest})")
    return tx.changes.since(after, kinds=(kind,), limit=BATCH), tx.changes.newest()
