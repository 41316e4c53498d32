"""A storage that serves the objects of another storage's resource in another group and with other field names."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import msgspec

from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.errors import AlreadyExistsError, NotFoundError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Conversion:
    """`shown` converts a stored object to the served form, `stored` converts it back. `fields`: served to stored names."""

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

    @property
    def portion(self) -> int | None:
        return self._inner.portion

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
    """A block that removes the name of the stored resource from errors. The server adds the name of the requested one."""
    try:
        yield
    except NotFoundError as error:
        if error.subject is not None and error.subject.kind == "namespaces":
            raise
        raise NotFoundError(error.message) from error
    except AlreadyExistsError as error:
        raise AlreadyExistsError(error.message) from error
