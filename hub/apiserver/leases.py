"""Leases on the HTTPS door: `managed-cluster-lease` shows a cluster's heartbeat, every other Lease is an ordinary object.

The heartbeat is no object: a view is made of it when somebody looks. It exists as long as its ManagedCluster does. Its
resourceVersion is the beat's instant in microseconds, so a GET and a PUT guard one another as usual; a watch cannot resume from
such a number, and is answered 410, whereupon clients list again. A PUT is a beat, timed on receipt. Nobody deletes it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.apiserver.feed import ChangeFeed
from hub.apiserver.storage import DryRun, ServiceStorage, already_exists, not_found
from hub.domain import cluster as clusters
from hub.domain import document as doc
from hub.domain.change import LEASES, MANAGED_CLUSTERS, Query, StoredObject
from hub.domain.change import Key as StoreKey
from hub.domain.heartbeat import Beat, LastBeat
from hub.domain.lease import LEASE_NAME
from hub.domain.request import CLUSTER_LABEL
from hub.ports import Store, Transaction
from hub.services import heartbeats
from machinery.apiserver.storage import (
    Actor,
    Change,
    Document,
    Event,
    EventType,
    GroupResource,
    Key,
    Page,
    Selection,
    Storage,
    Stored,
)
from machinery.clock import Clock
from machinery.errors import ExpiredError, ForbiddenError, Subject
from machinery.identity import ClusterName
from machinery.timestamps import format_micro_time, parse_time

LOOK = timedelta(seconds=1)
FIRST_BEAT = 10**14
"""Resource versions from here on are instants of beats (in 1973); revisions of the store stay below."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _View:
    """A heartbeat as a Lease."""

    key: Key
    document: Document

    @property
    def revision(self) -> int:
        return int(self.document["metadata"]["resourceVersion"])

    @property
    def stored(self) -> Stored:
        return Stored(self.key, self.revision, _encode(self.document))

    def selected(self, selection: Selection) -> bool:
        if selection.namespace is not None and selection.namespace != self.key.namespace:
            return False
        fields = {"metadata.name": self.key.name, "metadata.namespace": self.key.namespace}
        return selection.labels.matches(doc.labels(self.document)) and selection.fields.matches(fields)


class LeaseStorage(Storage):
    """Heartbeats beside the leases that are objects."""

    def __init__(self, store: Store, feed: ChangeFeed, objects: ServiceStorage, clock: Clock) -> None:
        self._store = store
        self._feed = feed
        self._objects = objects
        self._clock = clock

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        if key.name == LEASE_NAME and (view := await self._store.read(_view, key)):
            return view.stored
        return await self._objects.get(resource, key)

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        page = await self._objects.list(resource, selection, limit=limit, after=after, at=at)
        views = [view for view in await self._store.read(_views, selection) if after is None or view.key > after]
        items = sorted([*page.items, *(view.stored for view in views)], key=lambda stored: stored.key)
        chosen = tuple(items if limit is None else items[:limit])
        rest = len(items) - len(chosen)
        if not rest and page.after is None:
            return Page(chosen, page.revision)
        remaining = None if page.after is not None and page.remaining is None else rest + (page.remaining or 0)
        return Page(chosen, page.revision, chosen[-1].key, remaining)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        if key.name == LEASE_NAME:
            if await self._store.read(_view, key):
                already_exists(resource, key)
            raise _refused(resource, key, f'it is the heartbeat of ManagedCluster "{key.namespace}", which does not exist')
        return await self._objects.create(resource, key, document, actor, dry_run=dry_run)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        if key.name != LEASE_NAME:
            return await self._objects.update(resource, key, change, actor, dry_run=dry_run)
        try:
            view = await self._store.run(_beat, resource, key, change, actor, dry_run=dry_run)
        except DryRun as seen:
            view = _View(key, seen.document)
        return view.stored

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AsyncGenerator[AsyncIterator[Event | int]]:
        del resource
        if after >= FIRST_BEAT:
            raise ExpiredError(f"too old resource version: {after}: heartbeats keep no history; list again, watch from there")
        events = self._feed.watch(LEASES, selection, after=after, patience=LOOK)
        async with aclosing(events):
            first = await anext(events)
            merged = self._merged(first, events, selection)
            async with aclosing(merged):
                yield merged

    async def revision(self) -> int:
        return await self._objects.revision()

    async def wait_for(self, revision: int) -> None:
        await self._objects.wait_for(revision if revision < FIRST_BEAT else 0)

    async def _merged(
        self, first: Event | int, events: AsyncGenerator[Event | int], selection: Selection
    ) -> AsyncGenerator[Event | int]:
        """Changes of objects, and every LOOK what came of the heartbeats. The feed speaks at least that often."""
        yield first
        seen: dict[Key, _View] = {}
        told, looked = 0, self._clock.monotonic() - LOOK.total_seconds()
        while True:
            if self._clock.monotonic() - looked >= LOOK.total_seconds():
                looked = self._clock.monotonic()
                views = {view.key: view for view in await self._store.read(_views, selection)}
                for event in _differences(seen, views, newly=EventType.ADDED if told else EventType.MODIFIED):
                    yield event
                seen = views
            event_now = await anext(events)
            if not isinstance(event_now, int):
                yield event_now
            elif event_now > told:
                told = event_now
                yield told


def _differences(seen: Mapping[Key, _View], views: Mapping[Key, _View], *, newly: EventType) -> list[Event]:
    """What a look shows that the one before did not. At the first one nobody knows what the client has: all is MODIFIED."""
    events = []
    for key, view in views.items():
        if key not in seen:
            events.append(Event(newly, view.stored))
        elif seen[key].document != view.document:
            events.append(Event(EventType.MODIFIED, view.stored))
    return [*events, *(Event(EventType.DELETED, view.stored) for key, view in seen.items() if key not in views)]


def _refused(resource: GroupResource, key: Key, why: str) -> ForbiddenError:
    subject = Subject(name=key.name, group=resource.group, kind=resource.resource)
    return ForbiddenError(f'{resource} "{key.name}" is forbidden: {why}', subject=subject)


def _view(tx: Transaction, key: Key) -> _View | None:
    cluster = tx.objects.get(MANAGED_CLUSTERS, StoreKey("", key.namespace))
    return None if cluster is None else _lease(cluster, tx.heartbeats.of(ClusterName(key.namespace)))


def _views(tx: Transaction, selection: Selection) -> Sequence[_View]:
    """The selected heartbeats, in the order of their keys."""
    if selection.namespace is not None:
        found = _view(tx, Key(selection.namespace, LEASE_NAME))
        views = [found] if found else []
    else:
        beats = {beat.cluster: beat for beat in tx.heartbeats.all()}
        page = tx.objects.find(MANAGED_CLUSTERS, Query())
        views = [_lease(cluster, beats.get(ClusterName(cluster.key.name))) for cluster in page.items]
    return [view for view in views if view.selected(selection)]


def _lease(cluster: StoredObject, beat: LastBeat | None) -> _View:
    """As OCM's hub makes it: held by its own name, renewed when the cluster was created until a beat comes."""
    name = cluster.key.name
    created = str(doc.mapping(cluster.document, "metadata").get("creationTimestamp"))
    renewed = beat.at if beat is not None and beat.at is not None else parse_time(created)
    document: dict[str, Any] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": LEASE_NAME,
            "namespace": name,
            "uid": str(uuid5(NAMESPACE_OID, f"{cluster.uid}/{LEASE_NAME}")),
            "resourceVersion": str(_micros(renewed)),
            "creationTimestamp": created,
            "labels": {CLUSTER_LABEL: name},
        },
        "spec": {
            "holderIdentity": LEASE_NAME,
            "leaseDurationSeconds": round(clusters.lease_duration(cluster.document).total_seconds()),
            "renewTime": format_micro_time(renewed),
        },
    }
    return _View(Key(name, LEASE_NAME), document)


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def _beat(tx: Transaction, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool) -> _View:
    """A write to the view: a beat now, whatever time the client wrote."""
    view = _view(tx, key) or not_found(resource, key)
    new = change(view.document)
    if new is None:
        raise _refused(resource, key, f'it is the heartbeat of ManagedCluster "{key.namespace}"; it goes with the cluster')
    if new == view.document:
        return view
    heartbeats.revive(tx, Beat(ClusterName(key.namespace), timedelta(), None), actor.user)
    beaten = _view(tx, key) or view
    if dry_run:
        raise DryRun(beaten.document)
    return beaten
