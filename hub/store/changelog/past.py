"""Reads the past from the change log: lists and objects at an earlier revision, and the changes of one object."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, func, select, tuple_

from hub.api.meta.change import Change, Kind
from hub.api.query.selection import selects
from hub.store import schema
from hub.store.engine.encoding import from_micros, to_micros
from machinery.meta.objects import ChangeType, Key, Page, Query, StoredObject

_row = schema.changes.c
PORTION = 500
GROWTH = 4
FEW = 16
Read = Callable[[Row[Any]], Change]


def _places(*beyond: ColumnElement[bool]) -> Select[Any]:
    """Keys with their newest revision up to `at`, in index order."""
    return (
        select(_row.namespace, _row.name, func.max(_row.revision))
        .where(_row.kind == bindparam("kind"), _row.revision <= bindparam("at"), *beyond)
        .group_by(_row.namespace, _row.name)
        .order_by(_row.namespace, _row.name)
        .limit(bindparam("portion"))
    )


_LAST = tuple_(bindparam("namespace"), bindparam("name"))
_PLACES = _places(tuple_(_row.namespace, _row.name) > _LAST)
_PLACES_OF = _places(_row.namespace == bindparam("namespace"), _row.name > bindparam("name"))
_AT = select(schema.changes).where(_row.revision.in_(bindparam("revisions", expanding=True)))
_OF_ONE = (
    select(schema.changes)
    .where(
        and_(_row.kind == bindparam("kind"), _row.namespace == bindparam("namespace"), _row.name == bindparam("name")),
        _row.revision < bindparam("below"),
    )
    .order_by(_row.revision.desc())
    .limit(bindparam("limit"))
)
_AT_OR_BEFORE = (
    select(_row.revision).where(_row.at <= bindparam("moment")).order_by(_row.at.desc(), _row.revision.desc()).limit(1)
)
_FIRST_AFTER = (
    select(_row.revision)
    .where(_row.revision > bindparam("revision"), _row.at > bindparam("moment"))
    .order_by(_row.revision)
    .limit(1)
)
_MOMENT_OF = select(_row.at).where(_row.revision <= bindparam("revision")).order_by(_row.revision.desc()).limit(1)
_MOMENT_AFTER = select(_row.at).where(_row.revision > bindparam("revision")).order_by(_row.revision).limit(1)


class ChangeLogPast:
    """Reads the log. The caller checks that the requested revisions are retained."""

    def __init__(self, connection: Connection, read: Read) -> None:
        self._connection = connection
        self._read = read

    def listed(self, kind: Kind, query: Query, at: int) -> Page:
        """The objects as they were at revision `at`."""
        found = list(islice(self._objects(kind, query, at), None if query.limit is None else query.limit + 1))
        items = tuple(found[: query.limit])
        return Page(items, at, items[-1].key if items and len(found) > len(items) else None)

    def _objects(self, kind: Kind, query: Query, at: int) -> Iterator[StoredObject]:
        """The objects in key order, read in portions, so that the cost of a page depends on its size.

        Portions grow, so that a selective query needs few statements.
        """
        whole = replace(query, limit=None, after=None, at=None)
        portion = PORTION if query.limit is None else min(query.limit + 1, PORTION)
        last = query.after or Key(query.namespace or "", "")
        while places := self._places(kind, query.namespace, last, at, portion):
            last = Key(places[-1][0], places[-1][1])
            rows = self._connection.execute(_AT, {"revisions": [revision for _, _, revision in places]})
            changes = {change.revision: change for change in map(self._read, rows)}
            for change in (changes[revision] for _, _, revision in places):
                if change.type is not ChangeType.DELETED and (_is_plain(whole) or selects(kind, whole, change.document)):
                    yield _stored(change)
            if len(places) < portion:
                return
            portion = min(portion * GROWTH, PORTION)

    def _places(self, kind: Kind, namespace: str | None, last: Key, at: int, portion: int) -> list[tuple[str, str, int]]:
        """Keys after `last`, each with its newest revision up to `at`."""
        values = {"kind": kind, "at": at, "namespace": last.namespace, "name": last.name, "portion": portion}
        found = self._connection.execute(_PLACES if namespace is None else _PLACES_OF, values)
        return [(row[0], row[1], row[2]) for row in found]

    def one(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        """One object as it was; None: it did not exist."""
        change = next(iter(self.of(kind, key, below=at + 1, limit=1)), None)
        return None if change is None or change.type is ChangeType.DELETED else _stored(change)

    def of(self, kind: Kind, key: Key, *, below: int, limit: int) -> Sequence[Change]:
        """Changes of one object below a revision, newest first."""
        values = {"kind": kind, "namespace": key.namespace, "name": key.name, "below": below, "limit": limit}
        return [self._read(row) for row in self._connection.execute(_OF_ONE, values)]

    def since(self, kind: Kind, key: Key, moment: datetime, newest: int) -> Sequence[Change]:
        """Changes of one object since an instant, in order, preceded by the last one before it."""
        found: list[Change] = []
        below = newest + 1
        while portion := self.of(kind, key, below=below, limit=FEW):
            for change in portion:
                found.insert(0, change)
                if change.at < moment:
                    return found
            below = portion[-1].revision
        return found

    def position(self, moment: datetime, newest: int) -> int:
        """The newest revision at an instant; 0 before the first.

        Times need not ascend with revisions: concurrent transactions may commit in either order, and clocks may be set back.
        Rows after the nearest change count until the first one that is later than the instant.
        """
        micros = to_micros(moment)
        nearest = self._connection.execute(_AT_OR_BEFORE, {"moment": micros}).scalar_one_or_none()
        if nearest is None:
            return 0
        later = self._connection.execute(_FIRST_AFTER, {"revision": nearest, "moment": micros}).scalar_one_or_none()
        return newest if later is None else int(later) - 1

    def instant(self, revision: int) -> datetime | None:
        """When the newest change up to a revision was written; None: there is none."""
        found = self._connection.execute(_MOMENT_OF, {"revision": revision}).scalar_one_or_none()
        return None if found is None else from_micros(found)

    def began(self, floor: int) -> datetime | None:
        """When the first change above a revision was written; None: there is none."""
        found = self._connection.execute(_MOMENT_AFTER, {"revision": floor}).scalar_one_or_none()
        return None if found is None else from_micros(found)


def _is_plain(query: Query) -> bool:
    return not query.labels and not query.fields and query.where is None


def _stored(change: Change) -> StoredObject:
    uid = str(change.document["metadata"]["uid"])
    return StoredObject(change.key, change.revision, change.encoded, uid)
