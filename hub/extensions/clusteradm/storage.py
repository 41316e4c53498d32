"""Base class of storages that handle some objects themselves and pass all other objects to another storage."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent


class DelegatingStorage(Storage):
    """Passes every call to `objects`."""

    def __init__(self, objects: Storage) -> None:
        self._objects = objects

    @property
    def portion(self) -> int | None:
        return self._objects.portion

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return await self._objects.get(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        return await self._objects.list(resource, query)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        return await self._objects.create(resource, key, document, actor, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        return await self._objects.update(resource, key, change, actor, dry_run=dry_run)

    def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent | int]]:
        return self._objects.watch(resource, query, after=after)

    async def revision(self) -> int:
        return await self._objects.revision()

    async def wait_for(self, revision: int) -> None:
        await self._objects.wait_for(revision)
