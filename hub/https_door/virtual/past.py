"""Reads of past revisions, for the generic API server."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from hub.api.meta.change import Key as StoreKey
from hub.api.meta.change import ObjectPage, Query, StoredObject
from hub.api.objects.history import is_remembered
from hub.https_door.storage.storage import as_page, as_query, as_stored, not_found
from hub.https_door.storage.write_paths import ResourceWritePath, write_paths
from hub.https_door.virtual.object_histories import object_history
from hub.ports import Store, Transaction
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.storage import GroupResource, Key, Page, Past, PastRevision, Selection, Stored
from machinery.runtime.clock import Clock


class PastObjects(Past):
    """Past revisions of objects, from the change log."""

    def __init__(self, store: Store, group_suffix: str) -> None:
        self._store = store
        self._suffix = group_suffix
        self._paths = {resource: path for resource, path in write_paths(group_suffix).items() if is_remembered(path.kind)}

    async def place(self, asked: datetime | int) -> PastRevision:
        return await self._store.read(_place, asked)

    async def get_at(self, resource: GroupResource, key: Key, at: int) -> Stored:
        return as_stored(await self._store.read(_get, self._paths[resource], key, at))

    async def list_at(
        self, resource: GroupResource, selection: Selection, *, limit: int | None, after: Key | None, at: int
    ) -> Page:
        query = replace(as_query(selection, limit=limit, after=after, at=at), past=True)
        return as_page(await self._store.read(_find, self._paths[resource], query))

    def remembered(self, groups: Iterable[ApiGroup], clock: Clock) -> list[ApiGroup]:
        """Adds reads of the past to resources that the log keeps, and the subresource `history` to custom resources."""
        return [replace(group, resources=tuple(self._remembered(each, clock) for each in group.resources)) for group in groups]

    def _remembered(self, resource: Resource, clock: Clock) -> Resource:
        path = self._paths.get(resource.key)
        if path is None:
            return resource
        told = (object_history(self._store, clock, self._suffix, path.kind),) if resource.custom else ()
        return replace(resource, past=self, subresources=(*resource.subresources, *told))


def _place(tx: Transaction, asked: datetime | int) -> PastRevision:
    if isinstance(asked, datetime):
        return PastRevision(tx.changes.position(asked), asked)
    return PastRevision(asked, tx.changes.instant(asked) or tx.now)


def _get(tx: Transaction, path: ResourceWritePath, key: Key, at: int) -> StoredObject:
    found = tx.changes.one_at(path.kind, StoreKey(key.namespace, key.name), at)
    return found or not_found(path.resource, key)


def _find(tx: Transaction, path: ResourceWritePath, query: Query) -> ObjectPage:
    return tx.objects.find(path.kind, query)
