"""Storage of Leases. `managed-cluster-lease` is a view of a cluster's heartbeat; every other Lease is an ordinary object.

The view is computed on read and exists as long as its ManagedCluster. Its resourceVersion is the beat's instant in
microseconds, so that optimistic concurrency works as usual. A PUT is a beat; its time is the time of receipt. A view cannot be
deleted.

A watch reports at most one change per cluster in each POLL interval. It can resume from any resourceVersion that it has
reported: a revision of the store, or the instant of a beat, which stands for the revision of that time. A watch that resumes
from a beat gets the current state of all that it may have missed: all heartbeats, and the other Leases that changed after
the time of the beat minus SLACK.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial

import msgspec

from hub.api.liveness import LEASE_NAME, Beat
from hub.api.meta.change import LEASES, MANAGED_CLUSTERS, Change, Kind
from hub.https_door.storage import heartbeat_leases as beats
from hub.https_door.storage.feed import ChangeFeed, SeenChange
from hub.https_door.storage.heartbeat_leases import BeatViews, HeartbeatSnapshot, LeaseFacts, View
from hub.https_door.storage.storage import ServiceStorage, already_exists
from hub.ports import Store, Transaction
from hub.registry.generic.virtual import DryRun, merged, not_found
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clocksync
from machinery.apiserver.storage import Actor, Admission, GroupResource, Storage, UpdateFunc
from machinery.errors import ExpiredError
from machinery.identity import ClusterName
from machinery.meta.objects import ChangeType, Document, Key, Page, Query, StoredObject, WatchEvent
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import Clock

POLL = timedelta(seconds=1)
SLACK = timedelta(seconds=10)
"""Longest duration of a transaction. When a watch reports a beat, all writes older than the beat by SLACK are visible."""
ACTOR = "system:hub:clock-sync"
FIRST_BEAT = 10**14
"""Resource versions from this value are instants of beats (1973 and later). Revisions of the store are lower."""

_encode = msgspec.json.Encoder().encode


class LeaseStorage(Storage):
    """Serves heartbeat views and ordinary Leases."""

    def __init__(
        self, store: Store, feed: ChangeFeed, objects: ServiceStorage, clock: Clock, clock_skew_limit: timedelta = timedelta()
    ) -> None:
        """`clock_skew_limit`: skew above which a cluster's clock is wrong; zero: five lease durations of the cluster."""
        self._skew_limit = clock_skew_limit
        self._store = store
        self._feed = feed
        self._objects = objects
        self._clock = clock
        self._views = BeatViews(store)

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        if key.name == LEASE_NAME and (view := await self._store.read(beats.one, key)):
            return view.stored
        return await self._objects.get(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        page = await self._objects.list(resource, query)
        look = await self._views.look(query)
        after = query.after or Key("", "")
        views = [view.stored for key, view in look.views.items() if key > after and beats.selects(query, key)]
        return merged(page, views, query.limit)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        if key.name == LEASE_NAME:
            if await self._store.read(beats.one, key):
                already_exists(resource, key)
            why = f'it is the heartbeat of ManagedCluster "{key.namespace}", which does not exist'
            raise Admission(resource, key, document, None, actor).refusal(why)
        return await self._objects.create(resource, key, document, actor, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        if key.name != LEASE_NAME:
            return await self._objects.update(resource, key, change, actor, dry_run=dry_run)
        try:
            beat = partial(_beat, limit=self._skew_limit, dry_run=dry_run)
            return (await self._store.run(beat, resource, key, change, actor)).stored
        except DryRun as seen:
            return StoredObject(key, int(seen.document["metadata"]["resourceVersion"]), _encode(seen.document))

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        del resource
        position, missed = await self._store.read(_start, query, after)
        events = self._feed.watch(LEASES, query, after=position, bookmark_after=POLL)
        async with aclosing(events):
            first = await anext(events)
            merged = self._merged(position, [*missed, first], events, query)
            async with aclosing(merged):
                yield merged

    async def revision(self) -> int:
        return await self._objects.revision()

    async def wait_for(self, revision: int) -> None:
        await self._objects.wait_for(revision if revision < FIRST_BEAT else 0)

    async def _merged(
        self, position: int, first: Sequence[WatchEvent | int], events: AsyncGenerator[WatchEvent | int], query: Query
    ) -> AsyncGenerator[WatchEvent | int]:
        """Merges changes of objects with the changes of heartbeats every POLL. The feed yields at least that often."""
        for missed in first:
            yield missed
        seen: Mapping[Key, View] | None = None
        bookmark, looked = position, self._clock.monotonic() - POLL.total_seconds()
        while True:
            if self._clock.monotonic() - looked >= POLL.total_seconds():
                looked = self._clock.monotonic()
                look = await self._views.look(query)
                for event in _differences(seen, look, query):
                    yield event
                seen = look.views
            event_now = await anext(events)
            if not isinstance(event_now, int):
                yield event_now
            elif event_now > bookmark:
                bookmark = event_now
                yield bookmark


def _differences(seen: Mapping[Key, View] | None, look: HeartbeatSnapshot, query: Query) -> Iterator[WatchEvent]:
    """Yields the differences of two snapshots. Without `seen`, yields all views as MODIFIED: the client's state is unknown."""
    for key, view in look.views.items():
        known = seen.get(key) if seen is not None else None
        if known is not view and (known is None or known.stored != view.stored) and beats.selects(query, key):
            yield view.news if seen is None or known is not None else WatchEvent(ChangeType.ADDED, view.stored)
    for key, view in (seen or {}).items():
        if key not in look.views and beats.selects(query, key):
            yield view.gone(look.revision)


def _start(tx: Transaction, query: Query, after: int) -> tuple[int, list[WatchEvent]]:
    """Returns the revision from which a watch follows the log, and earlier events. Raises ExpiredError (compacted start)."""
    try:
        place = _before(tx, after) if after < FIRST_BEAT else tx.changes.position(beats.moment(after) - SLACK)
        departed = _departed(tx, query, place)
    except ExpiredError as error:
        raise ExpiredError(f"too old resource version: {after} ({tx.changes.oldest()})") from error
    if after < FIRST_BEAT:
        return after, departed
    return tx.changes.newest(), [*departed, *_latest(tx, query, place)]


def _before(tx: Transaction, after: int) -> int:
    """Returns a revision SLACK before `after`, if the log has it: clients may get later Leases before an earlier deletion."""
    with suppress(ExpiredError):
        at = tx.changes.instant(after)
        place = tx.changes.position(at - SLACK) if at is not None else after
        return min(place, after) if place >= tx.changes.oldest() else after
    return after


def _departed(tx: Transaction, query: Query, after: int) -> list[WatchEvent]:
    gone: dict[Key, WatchEvent] = {}
    for change in _since(tx, MANAGED_CLUSTERS, after):
        key = Key(change.key.name, LEASE_NAME)
        if change.type is not ChangeType.DELETED:
            gone.pop(key, None)
        elif beats.selects(query, key):
            gone[key] = View.of(change.key.name, LeaseFacts.of(change.document), None).gone(change.revision)
    return list(gone.values())


def _latest(tx: Transaction, query: Query, after: int) -> list[WatchEvent]:
    """Returns the changed Leases other than heartbeats in their current state, so that a client never gets an older state."""
    latest = {change.key: change for change in _since(tx, LEASES, after)}
    sights = (SeenChange(change) for change in sorted(latest.values(), key=lambda change: change.revision))
    return [event for event in (sight.through(query) for sight in sights) if event is not None]


def _since(tx: Transaction, kind: Kind, after: int) -> Iterator[Change]:
    while changes := tx.changes.since(after, kinds=(kind,)):
        yield from changes
        after = changes[-1].revision


def _beat(
    tx: Transaction, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, limit: timedelta, dry_run: bool
) -> View:
    """Stores a PUT of the view as a beat at the current time. The time in the PUT is used only for the client's clock skew."""
    view = beats.one(tx, key) or not_found(resource, key)
    document = view.document
    new = change(document)
    if new is None:
        why = f'it is the heartbeat of ManagedCluster "{key.namespace}"; it goes with the cluster'
        raise Admission(resource, key, document, document, actor).refusal(why)
    if new == document:
        return view
    heartbeats.revive(tx, Beat(ClusterName(key.namespace), timedelta(), None), actor.user)
    if (skew := _skew(tx, document, new)) is not None:
        clocksync.note_clock_skew(tx, ClusterName(key.namespace), skew, limit, ACTOR)
    beaten = beats.one(tx, key) or view
    if dry_run:
        raise DryRun(beaten.document)
    return beaten


def _skew(tx: Transaction, old: Document, new: Document) -> timedelta | None:
    """Returns how far the client's clock is ahead; None if the client wrote no new time, or an invalid time."""
    written = (new.get("spec") or {}).get("renewTime")
    if not isinstance(written, str) or written == old["spec"]["renewTime"]:
        return None
    try:
        return parse_time(written) - tx.now
    except ValueError:
        return None
