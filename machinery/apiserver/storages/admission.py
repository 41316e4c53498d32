"""A storage with admission: a function can refuse each create and update."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent


@dataclass(frozen=True, slots=True)
class Admission:
    """A create (no `old`) or update before it happens. Deletes are not checked."""

    resource: GroupResource
    key: Key
    new: Document
    old: Document | None
    actor: Actor


Admit = Callable[[Admission], None]
"""Raises a MusterError to refuse. Runs within the storage's transaction, possibly on another thread; it must do no I/O."""


Written = Callable[[GroupResource, int], Awaitable[None]]


class AdmittedStorage(Storage):
    """A storage with admission. `written` is awaited with the revision of each write before the response."""

    def __init__(self, inner: Storage, admit: Admit, written: Written | None = None) -> None:
        self._inner = inner
        self._admit = admit
        self._written = written

    @property
    def portion(self) -> int | None:
        return self._inner.portion

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return await self._inner.get(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        return await self._inner.list(resource, query)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        self._admit(Admission(resource, key, document, None, actor))
        stored = await self._inner.create(resource, key, document, actor, dry_run=dry_run)
        return await self._told(resource, stored, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        def admitted(old: Document) -> Document | None:
            new = change(old)
            if new is not None and new is not old:
                self._admit(Admission(resource, key, new, old, actor))
            return new

        stored = await self._inner.update(resource, key, admitted, actor, dry_run=dry_run)
        return await self._told(resource, stored, dry_run=dry_run)

    def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent | int]]:
        return self._inner.watch(resource, query, after=after)

    async def revision(self) -> int:
        return await self._inner.revision()

    async def wait_for(self, revision: int) -> None:
        await self._inner.wait_for(revision)

    async def _told(self, resource: GroupResource, stored: StoredObject, *, dry_run: bool) -> StoredObject:
        if self._written is not None and not dry_run:
            await self._written(resource, stored.revision)
        return stored
