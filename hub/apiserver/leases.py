"""Leases at the door: `managed-cluster-lease` in a cluster's namespace is a view of its heartbeat, all others are objects.

A read shows the newest stored beat; a PUT whose renewTime moved is a beat. The view makes no change-log row, has its own
resourceVersion (microseconds of the beat), and a watch tells at most one change of it per flush window.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

import msgspec

from hub.domain import document as doc
from hub.domain.change import MANAGED_CLUSTERS, Query, StoredObject
from hub.domain.change import Key as ObjectKey
from hub.domain.heartbeat import Beat, LastBeat
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
from machinery.errors import MethodNotAllowedError, NotFoundError
from machinery.identity import ClusterName
from machinery.timestamps import format_micro_time

CLUSTER_LEASE = "managed-cluster-lease"
CLUSTER_LABEL = "open-cluster-management.io/cluster-name"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE = timedelta(microseconds=1)
FIRST_VIEW = 10**15
"""Revisions of views lie above (microseconds since 1970, in 2001 and later), revisions of objects below."""


class LeaseStorage(Storage):
    """Ordinary leases from `objects`, clusters' leases from their beats."""

    def __init__(self, store: Store, objects: Storage, window: timedelta) -> None:
        self._store = store
        self._objects = objects
        self._window = window

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        if key.name != CLUSTER_LEASE:
            return await self._objects.get(resource, key)
        view = await self._store.read(_view_of, ClusterName(key.namespace))
        if view is None:
            raise NotFoundError(f'{resource} "{key.name}" not found')
        return view

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
        last = page.after
        views = [
            view
            for view in await self._views(selection)
            if (after is None or view.key > after) and (last is None or view.key <= last)
        ]
        if not views:
            return page
        items = tuple(sorted((*page.items, *views), key=lambda stored: stored.key))
        if limit is None or len(items) <= limit:
            return Page(items, page.revision, last, page.remaining)
        return Page(items[:limit], page.revision, items[limit - 1].key, None)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        if key.name == CLUSTER_LEASE:
            raise MethodNotAllowedError(f"{CLUSTER_LEASE} is made by the hub when the cluster is accepted: update it to beat")
        return await self._objects.create(resource, key, document, actor, dry_run=dry_run)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        if key.name != CLUSTER_LEASE:
            return await self._objects.update(resource, key, change, actor, dry_run=dry_run)
        old = await self.get(resource, key)
        document: Document = msgspec.json.decode(old.document)
        new = change(document)
        if new is None:
            raise MethodNotAllowedError(f"{CLUSTER_LEASE} lives as long as its ManagedCluster: delete that")
        if not dry_run and _renewed(new) != _renewed(document):
            await self._store.run(_beat, ClusterName(key.namespace), actor.user)
        return await self.get(resource, key)

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AsyncGenerator[AsyncIterator[Event | int]]:
        known = {view.key: view for view in await self._views(selection)}
        missed = [view for view in known.values() if after >= FIRST_VIEW and view.revision > after]
        start = after if after < FIRST_VIEW else await self._objects.revision()
        async with self._objects.watch(resource, selection, after=start) as objects:
            queue: asyncio.Queue[Event | int | BaseException] = asyncio.Queue(maxsize=1000)
            tasks = [
                asyncio.create_task(_pump(objects, queue), name="lease-objects"),
                asyncio.create_task(self._pump_views(selection, known, queue), name="lease-views"),
            ]
            try:
                yield _drain(queue, [Event(EventType.MODIFIED, view) for view in missed])
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def revision(self) -> int:
        return await self._objects.revision()

    async def wait_for(self, revision: int) -> None:
        """A revision of a view is a time: it is there already."""
        if revision < FIRST_VIEW:
            await self._objects.wait_for(revision)

    async def _views(self, selection: Selection) -> Sequence[Stored]:
        views = await self._store.read(_views, selection.namespace)
        return [
            view
            for view in views
            if selection.labels.matches({CLUSTER_LABEL: view.key.namespace})
            and selection.fields.matches({"metadata.name": view.key.name, "metadata.namespace": view.key.namespace})
        ]

    async def _pump_views(
        self, selection: Selection, known: dict[Key, Stored], queue: "asyncio.Queue[Event | int | BaseException]"
    ) -> None:
        """Looks once per flush window: that is how often a beat becomes visible."""
        try:
            while True:
                await asyncio.sleep(self._window.total_seconds())
                seen = {view.key: view for view in await self._views(selection)}
                for key, view in seen.items():
                    if key not in known:
                        await queue.put(Event(EventType.ADDED, view))
                    elif known[key].revision != view.revision:
                        await queue.put(Event(EventType.MODIFIED, view))
                for key in known.keys() - seen.keys():
                    await queue.put(Event(EventType.DELETED, known[key]))
                known = seen
        except Exception as error:  # noqa: BLE001 - the watcher is told
            await queue.put(error)


async def _pump(events: AsyncIterator[Event | int], queue: "asyncio.Queue[Event | int | BaseException]") -> None:
    try:
        async for event in events:
            await queue.put(event)
    except Exception as error:  # noqa: BLE001 - the watcher is told
        await queue.put(error)


async def _drain(queue: "asyncio.Queue[Event | int | BaseException]", first: list[Event]) -> AsyncGenerator[Event | int]:
    for event in first:
        yield event
    while True:
        item = await queue.get()
        if isinstance(item, BaseException):
            raise item
        yield item


def _renewed(lease: Document) -> Any:
    return doc.mapping(lease, "spec").get("renewTime")


def _beat(tx: Transaction, cluster: ClusterName, actor: str) -> None:
    heartbeats.revive(tx, Beat(cluster, timedelta(), available=None), actor)


def _view_of(tx: Transaction, cluster: ClusterName) -> Stored | None:
    stored = tx.objects.get(MANAGED_CLUSTERS, ObjectKey("", cluster))
    last = tx.heartbeats.of(cluster)
    return None if stored is None else _view(stored, last)


def _views(tx: Transaction, namespace: str | None) -> list[Stored]:
    if namespace is not None:
        view = _view_of(tx, ClusterName(namespace))
        return [] if view is None else [view]
    beats: Mapping[str, LastBeat] = {last.cluster: last for last in tx.heartbeats.all()}
    return [
        view
        for stored in tx.objects.find(MANAGED_CLUSTERS, Query()).items
        if (view := _view(stored, beats.get(stored.key.name))) is not None
    ]


def _view(cluster: StoredObject, last: LastBeat | None) -> Stored | None:
    """The lease of a cluster that was ever accepted or heard; None before."""
    if (last is None or last.at is None) and not doc.mapping(cluster.document, "spec").get("hubAcceptsClient"):
        return None
    created = datetime.fromisoformat(str(doc.mapping(cluster.document, "metadata")["creationTimestamp"]))
    moment = last.at if last is not None and last.at is not None else created
    revision = (moment - _EPOCH) // _ONE
    name = cluster.key.name
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": CLUSTER_LEASE,
            "namespace": name,
            "uid": str(uuid5(UUID(cluster.uid), CLUSTER_LEASE)),
            "creationTimestamp": doc.mapping(cluster.document, "metadata")["creationTimestamp"],
            "resourceVersion": str(revision),
            "labels": {CLUSTER_LABEL: name},
        },
        "spec": {
            "holderIdentity": CLUSTER_LEASE,
            "leaseDurationSeconds": doc.mapping(cluster.document, "spec").get("leaseDurationSeconds", 60),
            "renewTime": format_micro_time(moment),
        },
    }
    return Stored(Key(name, CLUSTER_LEASE), revision, msgspec.json.encode(document))
