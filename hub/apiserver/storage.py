"""The hub's objects behind the generic API server: reads are the stored bytes, writes go through the services of the kind.

An update is read, changed and written in one transaction, so a change that the generic server computes (a patch, a status, a
finalizer) can never be based on something stale.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hub.apiserver.feed import ChangeFeed
from hub.domain import change as domain
from hub.domain.change import Kind, ObjectPage, Query, StoredObject
from hub.domain.request import Requester
from hub.ports import Store, Transaction, Written
from hub.services import addons, clusters, leases, requests
from machinery.apiserver.storage import Actor, Change, Document, Event, GroupResource, Key, Page, Selection, Storage, Stored
from machinery.errors import AlreadyExistsError, NotFoundError
from machinery.product import GROUP_SUFFIX

_LONG = timedelta(seconds=10)
Put = Callable[[Transaction, dict[str, Any], StoredObject | None, Actor], Written]
Remove = Callable[[Transaction, StoredObject, str], Written]


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the objects of a resource are kept, and the use cases that write them."""

    kind: Kind
    put: Put
    remove: Remove


def _put_request(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: Actor) -> Written:
    return requests.put(tx, new, old, Requester(actor.user, actor.groups, actor.uid))


def shelves(suffix: str = GROUP_SUFFIX) -> dict[GroupResource, Shelf]:
    """Every resource that is stored as an object."""
    return {
        GroupResource(f"cluster.{suffix}", "managedclusters"): Shelf(
            domain.MANAGED_CLUSTERS, lambda tx, new, old, actor: clusters.put(tx, new, old, actor.user), clusters.remove
        ),
        GroupResource(f"addon.{suffix}", "managedclusteraddons"): Shelf(
            domain.ADDONS, lambda tx, new, old, actor: addons.put(tx, new, old, actor.user), addons.remove
        ),
        GroupResource("certificates.k8s.io", "certificatesigningrequests"): Shelf(
            domain.REQUESTS, _put_request, requests.remove
        ),
        GroupResource("coordination.k8s.io", "leases"): Shelf(
            domain.LEASES, lambda tx, new, old, actor: leases.put(tx, new, old, actor.user), leases.remove
        ),
    }


class RehearsedError(Exception):
    """Carries the result of a dry run out of its transaction, which is thereby rolled back."""

    def __init__(self, result: StoredObject) -> None:
        super().__init__()
        self.result = result


class ServiceStorage(Storage):
    """Storage over the hub's store and services."""

    def __init__(self, store: Store, feed: ChangeFeed, kept: Mapping[GroupResource, Shelf]) -> None:
        self._store = store
        self._feed = feed
        self._kept = dict(kept)

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        return _served(await self._store.read(_get, self._kept[resource], resource, key))

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        query = Query(
            namespace=selection.namespace,
            labels=selection.labels.requirements,
            fields=selection.fields.requirements,
            limit=limit,
            after=domain.Key(after.namespace, after.name) if after else None,
            at=at,
        )
        page = await self._store.read(_find, self._kept[resource].kind, query)
        items = tuple(_served(stored) for stored in page.items)
        return Page(items, page.revision, items[-1].key if page.more else None, page.remaining)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        try:
            written = await self._store.run(_create, self._kept[resource], key, document, actor, dry_run)
        except RehearsedError as rehearsed:
            return _served(rehearsed.result)
        except AlreadyExistsError:
            raise AlreadyExistsError(f'{resource} "{key.name}" already exists') from None
        return _served(written.stored)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        shelf = self._kept[resource]
        try:
            result = await self._store.run(_update, shelf, resource, key, change, actor, dry_run)
        except RehearsedError as rehearsed:
            return _served(rehearsed.result)
        return _served(result if isinstance(result, StoredObject) else result.stored)

    def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | int]]:
        return self._feed.watch(self._kept[resource].kind, selection, after=after)

    async def revision(self) -> int:
        return await self._store.read(_newest)

    async def wait_for(self, revision: int) -> None:
        seen = await self.revision()
        while seen < revision:
            seen = await self._store.wait_for_change(seen, _LONG)


def _served(stored: StoredObject) -> Stored:
    return Stored(Key(stored.key.namespace, stored.key.name), stored.revision, stored.encoded)


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()


def _find(tx: Transaction, kind: Kind, query: Query) -> ObjectPage:
    return tx.objects.find(kind, query)


def _get(tx: Transaction, shelf: Shelf, resource: GroupResource, key: Key) -> StoredObject:
    stored = tx.objects.get(shelf.kind, domain.Key(key.namespace, key.name))
    if stored is None:
        raise NotFoundError(f'{resource} "{key.name}" not found')
    return stored


def _create(  # noqa: PLR0917 - run() passes positions
    tx: Transaction,
    shelf: Shelf,
    key: Key,
    document: Document,
    actor: Actor,
    rehearse: bool,  # noqa: FBT001 - run() passes positions
) -> Written:
    written = shelf.put(tx, dict(document), None, actor)
    if rehearse:
        raise RehearsedError(_get(tx, shelf, GroupResource("", shelf.kind), key))
    return written


def _update(  # noqa: PLR0917 - run() passes positions
    tx: Transaction,
    shelf: Shelf,
    resource: GroupResource,
    key: Key,
    change: Change,
    actor: Actor,
    rehearse: bool,  # noqa: FBT001 - run() passes positions
) -> Written | StoredObject:
    old = _get(tx, shelf, resource, key)
    new = change(old.document)
    if new is not None and new == old.document:
        return old
    written = shelf.remove(tx, old, actor.user) if new is None else shelf.put(tx, dict(new), old, actor)
    if rehearse:
        raise RehearsedError(old if new is None else _get(tx, shelf, resource, key))
    return written
