"""Reads of past revisions, for the generic API server.

ObjectHistory: GET `managedclusters/NAME/history` returns the changes of one object, newest first, even if the object is
deleted. `limit`: largest number of changes (default 100, at most 500). `before` and `after`: only changes with a lower or
higher revision. `since` and `until`: instants.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, pairwise
from typing import Any

from hub.api.history import has_history
from hub.api.meta.change import Change, Kind
from hub.https_door.storage.storage import find
from hub.ports import Store, Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import WritePath
from hub.registry.generic.virtual import not_found
from hub.registry.kinds import write_paths
from machinery.apiserver.read.past import parse_at
from machinery.apiserver.resource import ApiGroup, Resource, Subresource
from machinery.apiserver.storage import GroupResource, Storage
from machinery.errors import BadRequestError
from machinery.meta.differences import differences
from machinery.meta.objects import ChangeType, Document, Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_micro_time, format_time
from machinery.runtime.clock import Clock


class PastStorage(Storage):
    """The objects in their state at one revision, from the change log."""

    def __init__(self, store: Store, paths: Mapping[GroupResource, WritePath], revision: int) -> None:
        self._store = store
        self._paths = paths
        self._revision = revision

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return await self._store.read(_get, self._paths[resource].kind, resource, key, self._revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        """Lists the objects at `query.at`, the revision of the first page, or else at this storage's revision."""
        at = self._revision if query.at is None else query.at
        return await self._store.read(find, self._paths[resource].kind, replace(query, at=at, past=True))

    async def revision(self) -> int:
        return self._revision

    async def wait_for(self, revision: int) -> None:
        """Returns immediately, because a past revision is always visible."""


def with_past(groups: Iterable[ApiGroup], store: Store, group_suffix: str, clock: Clock) -> list[ApiGroup]:
    """Adds reads of the past to resources whose history is kept, and the subresource `history` to custom resources."""
    paths = {resource: path for resource, path in write_paths(group_suffix).items() if has_history(path.kind)}

    async def past(asked: datetime | int) -> tuple[Storage, datetime]:
        revision, moment = await store.read(_place, asked)
        return PastStorage(store, paths, revision), moment

    def readable(resource: Resource) -> Resource:
        if resource.key not in paths:
            return resource
        history = (object_history(store, clock, group_suffix, paths[resource.key].kind),) if resource.custom else ()
        return replace(resource, past=past, subresources=(*resource.subresources, *history))

    return [replace(group, resources=tuple(map(readable, group.resources))) for group in groups]


def _place(tx: Transaction, asked: datetime | int) -> tuple[int, datetime]:
    if isinstance(asked, datetime):
        return tx.changes.position(asked), asked
    return asked, tx.changes.instant(asked) or tx.now


def _get(tx: Transaction, kind: Kind, resource: GroupResource, key: Key, at: int) -> StoredObject:
    return tx.changes.one_at(kind, key, at) or not_found(resource, key)


MAX_LIMIT, DEFAULT_LIMIT = 500, 100
MAX_FIELDS = 200
"""Largest number of fields that the history lists for one change. Further fields are only counted."""


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The query parameters of `history`: the number of changes, and bounds of their revisions and times."""

    limit: int = DEFAULT_LIMIT
    before: int | None = None
    after: int = 0
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> "HistoryQuery":
        """Parses query parameters. Raises BadRequestError."""
        limit = _number(query, "limit") or DEFAULT_LIMIT
        moments = {name: _moment(query, name, now) for name in ("since", "until")}
        return cls(min(limit, MAX_LIMIT), _number(query, "before"), _number(query, "after") or 0, **moments)

    def ends_at(self, change: Change) -> bool:
        """Whether this change and all older changes are out of range."""
        return change.revision <= self.after or (self.since is not None and change.at < self.since)


def object_history(store: Store, clock: Clock, group_suffix: str, kind: Kind) -> Subresource:
    """Returns the subresource `history` of a kind."""

    async def shows(key: Key, query: Mapping[str, str]) -> Document:
        asked = HistoryQuery.of(query, clock.now())
        return await store.read(_history, kind, Key(key.namespace, key.name), asked)

    question = declared("objecthistories.hub", group=f"hub.{group_suffix}")
    return Subresource("history", verbs=("get",), question=question, shows=shows)


def _history(tx: Transaction, kind: Kind, key: Key, asked: HistoryQuery) -> Document:
    floor, began = tx.changes.ledger().floor, tx.changes.began()
    # one more than is returned, for the differences of the last returned change
    found = _found(tx, kind, key, asked)
    shown = [change for change in found if change.revision > floor][: asked.limit]
    before = {newer.revision: older for newer, older in pairwise(found)}
    metadata: dict[str, Any] = {"name": key.name, "resourceVersion": str(tx.changes.newest())}
    if key.namespace:
        metadata["namespace"] = key.namespace
    rest = found[asked.limit :]
    if rest and rest[0].revision > floor and not asked.ends_at(rest[0]):
        metadata["continue"] = str(shown[-1].revision)
    changes = [_entry(change, before.get(change.revision)) for change in shown if not asked.ends_at(change)]
    return {"metadata": metadata, **({"began": format_time(began)} if began and floor else {}), "changes": changes}


def _found(tx: Transaction, kind: Kind, key: Key, asked: HistoryQuery) -> Sequence[Change]:
    """Returns the requested changes, newest first, followed by the next older change."""
    found = tx.changes.past(kind, key, below=asked.before, until=asked.until, limit=asked.limit + 1)
    end = next((index for index, change in enumerate(found) if asked.ends_at(change)), len(found))
    return found[: end + 1]


def _entry(change: Change, before: Change | None) -> dict[str, Any]:
    was = None if before is None or before.type is ChangeType.DELETED else before.document
    known = was is not None or change.type is ChangeType.ADDED
    every = differences(was, change.document) if known and change.type is not ChangeType.DELETED else iter(())
    fields = [
        {"path": each.path}
        | ({} if each.before is None else {"before": each.before})
        | ({} if each.after is None else {"after": each.after})
        for each in islice(every, MAX_FIELDS)
    ]
    more = sum(1 for _ in every)
    entry = {"revision": str(change.revision), "time": format_micro_time(change.at), "actor": change.actor}
    return entry | {"type": change.type.value, "fields": fields} | ({"more": more} if more else {})


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 18):  # noqa: PLR2004 - fits a database's 64 bits
        raise BadRequestError(f"{name}={text[:40]} is not a number")
    return int(text) if text else None


def _moment(query: Mapping[str, str], name: str, now: datetime) -> datetime | None:
    text = query.get(name, "")
    if not text:
        return None
    moment = parse_at(text, now)
    if isinstance(moment, int):
        raise BadRequestError(f"{name}={text[:40]} is not a time: write one such as 2026-11-01T12:00Z, or -2h")
    return moment
