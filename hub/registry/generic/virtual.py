"""Storages of resources that are not stored as documents but computed from records when they are read.

Their resourceVersion is the store's revision. They cannot be watched or written unless a kind overrides that.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import NoReturn

from hub.ports import Store, Transaction
from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.errors import ErrorSubject, MethodNotAllowedError, NotFoundError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent

FOREVER = timedelta(days=1)


class VirtualStorage(Storage):
    """Common part of such storages; each implements `get` and `list`."""

    def __init__(self, store: Store, api_version: str) -> None:
        self._store = store
        self._api_version = api_version

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Raises MethodNotAllowedError."""
        del key, document, actor, dry_run
        raise MethodNotAllowedError(f"{resource} are written by the hub alone")

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Raises MethodNotAllowedError."""
        del key, change, actor, dry_run
        raise MethodNotAllowedError(f"{resource} are written by the hub alone")

    def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent | int]]:
        """Raises MethodNotAllowedError."""
        del query, after
        raise MethodNotAllowedError(f"{resource} cannot be watched")

    async def revision(self) -> int:
        return await self._store.read(_newest)

    async def wait_for(self, revision: int) -> None:
        while await self._store.wait_for_change(revision - 1, FOREVER) < revision:
            pass


class CountedStorage(VirtualStorage, ABC):
    """For kinds with few objects: each answer reads all of them and selects by name."""

    @abstractmethod
    async def everything(self) -> tuple[Sequence[StoredObject], int]:
        """Returns all objects, and the store's revision at that time."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        found = {each.key: each for each in (await self.everything())[0]}
        return found.get(key) or not_found(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        found, revision = await self.everything()
        chosen = [
            each
            for each in sorted(found, key=lambda one: one.key)
            if query.matches(each.key, {}, {}) and (query.after is None or each.key > query.after)
        ]
        page = tuple(chosen[: query.limit])
        return Page(page, revision, page[-1].key if page and len(chosen) > len(page) else None)


def _newest(tx: Transaction) -> int:
    return tx.changes.newest()


class DryRun(Exception):  # noqa: N818 - carries the result of a transaction that must not commit
    """Rolls back the transaction of a dry run and carries its result."""

    def __init__(self, document: Document) -> None:
        super().__init__("dry run")
        self.document = document


def not_found(resource: GroupResource, key: Key) -> NoReturn:
    """Raises NotFoundError with Kubernetes' message."""
    subject = ErrorSubject(name=key.name, group=resource.group, kind=resource.resource)
    raise NotFoundError(f'{resource} "{key.name}" not found', subject=subject)
