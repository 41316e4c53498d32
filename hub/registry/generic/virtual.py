"""Storages of resources whose objects are not stored as documents, but computed from records on read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.ports import Store, Transaction
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import GroupResource, Storage
from machinery.errors import BadRequestError, ErrorSubject, NotFoundError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time, parse_time

FOREVER = timedelta(days=1)


class StoreRevision(Storage):
    """Base class of storages over the hub's store. Their revision is the revision of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def revision(self) -> int:
        return await self._store.read(lambda tx: tx.changes.newest())

    async def wait_for(self, revision: int) -> None:
        while await self._store.wait_for_change(revision - 1, FOREVER) < revision:
            pass


class VirtualStorage(StoreRevision):
    """Base class of storages of computed objects. A subclass implements `get` and `list`."""

    def __init__(self, store: Store, api_version: str) -> None:
        super().__init__(store)
        self._api_version = api_version


@dataclass(frozen=True, slots=True)
class ComputedObject:
    """A computed object. `content`: its fields except metadata. `seed`: determines the uid."""

    name: str
    seed: str
    content: Mapping[str, Any]
    created: datetime | None = None
    namespace: str = ""

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


Compute = Callable[[Transaction], Sequence[ComputedObject]]


class ComputedStorage(VirtualStorage):
    """Storage for kinds with few objects: each answer computes all objects in one transaction, and selects by name."""

    def __init__(self, store: Store, resource: Resource, compute: Compute) -> None:
        super().__init__(store, resource.api_version())
        self._kind = resource.kind
        self._compute = compute

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        found, revision = await self._store.read(_computed, self._compute)
        return self.chosen(resource, key, found, revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        found, revision = await self._store.read(_computed, self._compute)
        chosen = sorted((each for each in found if query.matches(each.key, {}, {})), key=lambda each: each.key)
        left = [each for each in chosen if query.after is None or each.key > query.after]
        page = tuple(self.stored(each, revision) for each in left[: query.limit])
        return Page(page, revision, page[-1].key if len(left) > len(page) else None)

    def chosen(self, resource: GroupResource, key: Key, found: Sequence[ComputedObject], revision: int) -> StoredObject:
        """Return the object of `found` with this key, with `revision` as resourceVersion. Raises NotFoundError."""
        one = next((each for each in found if each.key == key), None)
        return not_found(resource, key) if one is None else self.stored(one, revision)

    def stored(self, each: ComputedObject, revision: int) -> StoredObject:
        metadata = {"name": each.name} | ({"namespace": each.namespace} if each.namespace else {})
        metadata["uid"] = str(uuid5(NAMESPACE_OID, each.seed))
        if each.created is not None:
            metadata["creationTimestamp"] = format_time(each.created)
        metadata["resourceVersion"] = str(revision)
        document = {"apiVersion": self._api_version, "kind": self._kind, "metadata": metadata, **each.content}
        return StoredObject(each.key, revision, msgspec.json.encode(document))


def _computed(tx: Transaction, compute: Compute) -> tuple[Sequence[ComputedObject], int]:
    return compute(tx), tx.changes.newest()


def merged(page: Page, computed: Sequence[StoredObject], limit: int | None) -> Page:
    """Return at most `limit` objects of `page` and `computed`, in key order. Both must fulfil one query, with its `after`."""
    items = sorted([*page.items, *computed], key=lambda stored: stored.key)
    chosen = tuple(items[:limit])
    rest = len(items) - len(chosen)
    if not rest and page.after is None:
        return Page(chosen, page.revision)
    remaining = None if page.after is not None and page.remaining is None else rest + (page.remaining or 0)
    return Page(chosen, page.revision, chosen[-1].key, remaining)


class DryRun(Exception):  # noqa: N818 - carries the result of a transaction that must not commit
    """Rolls back the transaction of a dry run and carries its result."""

    def __init__(self, document: Document) -> None:
        super().__init__("dry run")
        self.document = document


SINCE, UNTIL = "since", "until"
"""Names of the field selectors that select objects by time."""


def time_bounds(query: Query) -> tuple[Query, datetime | None, datetime | None]:
    """Return the query without the fields `since` and `until`, and their instants (None: not given). Raises BadRequestError."""
    given: dict[str, list[datetime]] = {SINCE: [], UNTIL: []}
    for term in query.fields:
        if term.name in given:
            given[term.name].append(_instant(term))
    rest = tuple(term for term in query.fields if term.name not in given)
    return replace(query, fields=rest), max(given[SINCE], default=None), min(given[UNTIL], default=None)


def _instant(term: Requirement) -> datetime:
    try:
        if term.operator is Operator.EQUALS:
            return parse_time(term.values[0])
    except ValueError:
        pass
    raise BadRequestError(f"{term.name}: must be an instant, as in {term.name}=2026-11-21T08:00:00Z")


def not_found(resource: GroupResource, key: Key) -> NoReturn:
    """Raises NotFoundError with Kubernetes' message."""
    subject = ErrorSubject(name=key.name, group=resource.group, kind=resource.resource)
    raise NotFoundError(f'{resource} "{key.name}" not found', subject=subject)
