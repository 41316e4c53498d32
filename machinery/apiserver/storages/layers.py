"""Storages around another storage: admission of writes, and the objects of one resource under another group and field names."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import msgspec

from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.errors import AlreadyExistsError, NotFoundError
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


_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversion between the stored and the served form, and the stored names of selectable fields."""

    stored_as: GroupResource
    shown: Callable[[Document], Document]
    stored: Callable[[Document], Document]
    fields: Mapping[str, str]


class ConvertedStorage(Storage):
    """A storage that converts by a Conversion. It ignores the resource that callers pass."""

    def __init__(self, inner: Storage, conversion: Conversion) -> None:
        self._inner = inner
        self._conversion = conversion
        self._of = conversion.stored_as

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        del resource
        with _unnamed():
            return self._shown(await self._inner.get(self._of, key))

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        page = await self._inner.list(self._of, self._stored_query(query))
        return replace(page, items=tuple(self._shown(item) for item in page.items))

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        del resource
        with _unnamed():
            stored = self._conversion.stored(document)
            return self._shown(await self._inner.create(self._of, key, stored, actor, dry_run=dry_run))

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        del resource
        conversion = self._conversion

        def changed(old: Document) -> Document | None:
            shown = conversion.shown(old)
            new = change(shown)
            if new is None or new == shown:
                return None if new is None else old
            return conversion.stored(new)

        with _unnamed():
            return self._shown(await self._inner.update(self._of, key, changed, actor, dry_run=dry_run))

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        del resource
        async with (
            self._inner.watch(self._of, self._stored_query(query), after=after) as events,
            aclosing(self._events(events)) as shown,
        ):
            yield shown

    async def revision(self) -> int:
        return await self._inner.revision()

    async def wait_for(self, revision: int) -> None:
        await self._inner.wait_for(revision)

    async def _events(self, events: AsyncIterator[WatchEvent | int]) -> AsyncGenerator[WatchEvent | int]:
        async for event in events:
            yield event if isinstance(event, int) else replace(event, stored=self._shown(event.stored))

    def _stored_query(self, query: Query) -> Query:
        names = self._conversion.fields
        return replace(query, fields=tuple(replace(term, name=names.get(term.name, term.name)) for term in query.fields))

    def _shown(self, stored: StoredObject) -> StoredObject:
        return replace(stored, encoded=_encode(self._conversion.shown(stored.document)))


@contextmanager
def _unnamed() -> Generator[None]:
    """Remove the stored resource's name from errors; the server adds the requested one."""
    try:
        yield
    except NotFoundError as error:
        if error.subject is not None and error.subject.kind == "namespaces":
            raise
        raise NotFoundError(error.message) from error
    except AlreadyExistsError as error:
        raise AlreadyExistsError(error.message) from error
