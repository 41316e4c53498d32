"""Storage of the hub's objects for the generic API server. Reads the store and writes through the use cases.

Every write is one transaction that reads the object, lets the server change it and passes the result to the kind's own `put` or
`remove`. So writes of this door obey the same rules as those of agents and controllers.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from datetime import timedelta
from threading import Lock
from typing import Any, NoReturn

import msgspec

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import SERIAL_EXTRA, Requester
from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from hub.api.query.groups import Group, GroupQuery
from hub.api.query.parsing import group_query
from hub.https_door.storage.feed import ChangeFeed
from hub.ports import Store, Transaction, Written
from hub.registry import namespaces
from hub.registry.generic.definition import WritePath
from hub.registry.generic.virtual import DryRun, StoreRevision, not_found
from hub.registry.kinds import write_paths
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.storage import COUNT, Actor, CountedGroups, Counts, GroupResource, Storage, UpdateFunc
from machinery.errors import AlreadyExistsError, ErrorSubject, TooManyRequestsError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent
from machinery.runtime.clock import Clock

QUIET = timedelta(seconds=10)
PORTION = 500
"""Objects of a long list that are in memory at the same time."""

_encode = msgspec.json.Encoder().encode


class ServiceStorage(StoreRevision):
    """Storage of resources that are documents in the store. Watches work only while `run` of `feed` runs."""

    def __init__(self, store: Store, feed: ChangeFeed, group_suffix: str, *, quiet: timedelta = QUIET) -> None:
        super().__init__(store)
        self._feed = feed
        self._paths = write_paths(group_suffix)
        self._quiet = quiet

    @property
    def portion(self) -> int | None:
        return PORTION

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return await self._store.read(_get, self._paths[resource].kind, resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        return await self._store.read(find, self._paths[resource].kind, query)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        try:
            written = await self._store.run(
                _create, self._paths[resource], key, document, actor, resource=resource, dry_run=dry_run
            )
        except DryRun as seen:
            return StoredObject(key, 0, _encode(seen.document))
        return written.stored

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        try:
            written = await self._store.run(
                _update, self._paths[resource], key, change, actor, resource=resource, dry_run=dry_run
            )
        except DryRun as seen:
            return StoredObject(key, int(seen.document["metadata"]["resourceVersion"]), _encode(seen.document))
        return written if isinstance(written, StoredObject) else written.stored

    @asynccontextmanager
    async def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AsyncGenerator[AsyncIterator[WatchEvent | int]]:
        events = self._feed.watch(self._paths[resource].kind, query, after=after, bookmark_after=self._quiet)
        async with aclosing(events):
            yield _moving(await anext(events), events)


async def _moving(first: WatchEvent | int, events: AsyncGenerator[WatchEvent | int]) -> AsyncGenerator[WatchEvent | int]:
    """Yields the events, without bookmarks that do not advance."""
    last = 0
    yield first
    async for event in events:
        if not isinstance(event, int):
            yield event
        elif event > last:
            last = event
            yield event


def already_exists(resource: GroupResource, key: Key) -> NoReturn:
    """Raises AlreadyExistsError with Kubernetes' message."""
    subject = ErrorSubject(name=key.name, group=resource.group, kind=resource.resource)
    raise AlreadyExistsError(f'{resource} "{key.name}" already exists', subject=subject)


def _get(tx: Transaction, kind: Kind, resource: GroupResource, key: Key) -> StoredObject:
    return tx.objects.get(kind, key) or not_found(resource, key)


def find(tx: Transaction, kind: Kind, query: Query) -> Page:
    return tx.objects.find(kind, query)


def _create(
    tx: Transaction, path: WritePath, key: Key, document: Document, actor: Actor, *, resource: GroupResource, dry_run: bool
) -> Written:
    if tx.objects.get(path.kind, key) is not None:
        already_exists(resource, key)
    if key.namespace:
        namespaces.check_open(tx, resource.resource, key, group=resource.group)
    written = path.put(tx, _placed(document, key), None, requester(actor))
    if dry_run:
        _show(tx, path, key, None)
    return written


def _update(
    tx: Transaction, path: WritePath, key: Key, change: UpdateFunc, actor: Actor, *, resource: GroupResource, dry_run: bool
) -> Written | StoredObject:
    old = _get(tx, path.kind, resource, key)
    new = change(old.document)
    if new == old.document:
        return old
    who = requester(actor)
    written = path.remove(tx, old, who) if new is None else path.put(tx, _placed(new, key), old, who)
    if dry_run:
        _show(tx, path, key, old)
    return written


def _placed(document: Document, key: Key) -> dict[str, Any]:
    return doc.with_metadata(document, name=key.name, namespace=key.namespace or None)


def _show(tx: Transaction, path: WritePath, key: Key, old: StoredObject | None) -> NoReturn:
    seen = tx.objects.get(path.kind, key) or old
    document = seen.document if seen is not None else {}
    raise DryRun(doc.with_metadata(document, resourceVersion=None if old is None else str(old.revision)))


def requester(actor: Actor) -> Requester:
    """Returns the actor as a requester, with the serial number of the actor's certificate. Removes a number from the client.

    Operators' requests have no serial number, so that they stay valid when the operator's certificate is revoked.
    """
    holder = actor.holder
    extra = {name: values for name, values in actor.extra.items() if name != SERIAL_EXTRA}
    if isinstance(holder, CertificateRecord) and holder.purpose not in (Purpose.OPERATOR, Purpose.LOGIN):
        extra[SERIAL_EXTRA] = (f"{holder.serial:x}",)
    return Requester(actor.user, actor.groups, actor.uid, extra)


def cluster_counts(store: Store) -> Counts:
    """Returns a function that counts clusters in groups. `groupBy` names fields as in `where`; empty or `*`: one group."""

    async def count(asked: Mapping[str, str], query: Query) -> CountedGroups:
        group_by = asked.get("groupBy", "")
        grouping = group_query("" if group_by == "*" else group_by, asked.get("sum", ""), asked.get("sortBy", ""))
        groups, revision = await store.read(_counted, query, grouping)
        columns = [*(each.word for each in grouping.by), COUNT, *(each.word for each in grouping.sums)]
        return CountedGroups(columns, [grouping.answer(group) for group in groups], revision)

    return count


def _counted(tx: Transaction, query: Query, grouping: GroupQuery) -> tuple[Sequence[Group], int]:
    revision = query.at if query.past and query.at is not None else tx.changes.newest()
    return tx.objects.groups(query, grouping), revision


PER_NAMESPACE = (10, 100)
"""Average number of Events per second, and number of Events in a burst."""
TOTAL = (100, 1000)


class EventStorage(ServiceStorage):
    """`ServiceStorage` of Events, with limited rates of creates and updates, per namespace and in total.

    Each Event needs a row, and each of its changes a row of the change log. The limits work like Kubernetes' EventRateLimit
    admission: dry runs do not count. Clients above the rate get a retry delay. Reads are not limited.
    """

    def __init__(
        self,
        store: Store,
        feed: ChangeFeed,
        group_suffix: str,
        clock: Clock,
        *,
        per_namespace: tuple[float, int] = PER_NAMESPACE,
        together: tuple[float, int] = TOTAL,
    ) -> None:
        super().__init__(store, feed, group_suffix)
        self._rates, self._total = Rates(*per_namespace, clock), Rates(*together, clock)
        self._lock = Lock()  # updates count on the store's threads

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Create an Event. Also raises TooManyRequestsError."""
        if not dry_run:
            self._count(key.namespace)
        return await super().create(resource, key, document, actor, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Update an Event. Also raises TooManyRequestsError. Deletions are not limited."""

        def paced(old: Document) -> Document | None:
            new = change(old)
            if new is not None and new is not old and not dry_run:
                self._count(key.namespace)
            return new

        return await super().update(resource, key, paced, actor, dry_run=dry_run)

    def _count(self, namespace: str) -> None:
        try:
            with self._lock:
                self._rates.check(namespace)
                self._total.check("")
        except TooManyRequestsError as error:
            why = f'too many events in namespace "{namespace}": send fewer'
            raise TooManyRequestsError(why, retry_after=error.retry_after) from None


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
