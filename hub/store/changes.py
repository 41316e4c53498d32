"""The change log: revisions in order, what changed at each, and the past that can be read from it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, delete, func, insert, select, tuple_, update

from hub.domain.change import Change, ChangeType, Key, Kind, ObjectPage, Query, StoredObject
from hub.domain.selection import selects
from hub.ports import Changes
from hub.store import schema
from hub.store.encoding import decode_values, encode_values
from hub.store.instants import from_micros, to_micros
from hub.store.ringing import CHANGES, ring
from hub.store.rowform import RowForm
from hub.store.statement import Statement
from machinery.errors import ExpiredError

_row = schema.changes.c
_counter = schema.revision.c
_VALUE = select(_counter.value)
_TAKE = update(schema.revision).values(value=_counter.value + bindparam("by")).returning(_counter.value)
_TAKEN = _TAKE.cte("taken")
_ADVANCE = Statement(_TAKE, select(_TAKEN.c.value, ring(CHANGES)), dialects=("sqlite", "postgresql"))
"""On PostgreSQL it also rings for the other replicas, who hear it once this is committed."""
_NEWEST = Statement(_VALUE)
_OLDEST = Statement(select(_counter.compacted))
_KEPT = Statement(select(_counter.value, _counter.compacted))
_LOG = Statement(insert(schema.changes))
PORTION = 500
LEAP = 1_000_000
"""More revisions than a database loses at once."""


def _places(*beyond: ColumnElement[bool]) -> Select[Any]:
    """Keys with their newest revision up to `at`, in the order of the index."""
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


class SqlChanges(Changes):
    def __init__(self, connection: Connection, form: RowForm, ringer: str) -> None:
        """`ringer`: whose commits they are; others are told that there is something new."""
        self._connection = connection
        self._form = form
        self._ringer = ringer
        self._newest: int | None = None

    def since(self, revision: int, *, kinds: Collection[Kind] | None = None, limit: int = 500) -> Sequence[Change]:
        self._check_kept(revision)
        statement = select(schema.changes).where(_row.revision > revision).order_by(_row.revision).limit(limit)
        if kinds is not None:
            statement = statement.where(_row.kind.in_(kinds))
        return [_change(row, self._form) for row in self._connection.execute(statement)]

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        same = (_row.kind == kind, _row.namespace == key.namespace, _row.name == key.name)
        before = select(func.max(_row.revision)).where(*same, _row.at < to_micros(since)).scalar_subquery()
        statement = select(schema.changes).where(*same, _row.revision >= func.coalesce(before, 0)).order_by(_row.revision)
        return [_change(row, self._form) for row in self._connection.execute(statement)]

    def position(self, moment: datetime) -> int:
        found = self._connection.execute(select(func.max(_row.revision)).where(_row.at <= to_micros(moment))).scalar_one()
        position = 0 if found is None else int(found)
        self._check_kept(position)
        return position

    def _check_kept(self, revision: int) -> None:
        newest, oldest = _KEPT.row(self._connection, {}) or (0, 0)
        if revision < oldest:
            raise ExpiredError(
                f"The provided resource version is too old: changes up to {oldest} are forgotten; list again, watch from there"
            )
        if revision > newest:
            raise ExpiredError(
                f"The provided resource version {revision} is not of this database, whose newest is {newest}: "
                "it was restored, or lost what was written last; list again, watch from there"
            )

    def newest(self) -> int:
        """Asked once: what is read later is at least as new, so that a watch from here on misses nothing."""
        if self._newest is None:
            self._newest = _number(_NEWEST.row(self._connection, {}))
        return self._newest

    def oldest(self) -> int:
        return _number(_OLDEST.row(self._connection, {}))

    def compact(self, before: datetime) -> int:
        """Forgets what is older; of every object that then existed its last state is kept, for lists as of a later revision."""
        first_kept = select(func.min(_row.revision)).where(_row.at >= to_micros(before))
        kept = self._connection.execute(first_kept).scalar_one()
        point = self.newest() if kept is None else int(kept) - 1
        if point <= self.oldest():
            return 0
        self._connection.execute(update(schema.revision).values(compacted=point))
        later = schema.changes.alias()
        same = and_(later.c.kind == _row.kind, later.c.namespace == _row.namespace, later.c.name == _row.name)
        superseded = select(later.c.revision).where(same, later.c.revision > _row.revision, later.c.revision <= point).exists()
        forgotten = delete(schema.changes).where(_row.revision <= point, superseded | (_row.type == ChangeType.DELETED.value))
        return int(self._connection.execute(forgotten).rowcount)

    def advance(self, by: int) -> int:
        """Takes the next `by` revisions and returns the last; locks the counter until the commit."""
        return _number(_ADVANCE.row(self._connection, {"by": by, "ringer": self._ringer}))

    def leap(self, beyond: int) -> None:
        """Continues far above `beyond` and forgets what is below: for a log that is not the one that was shown."""
        self.lock()
        far = max(_number(_NEWEST.row(self._connection, {})), beyond) + LEAP
        self._connection.execute(update(schema.revision).values(value=far, compacted=far))

    def lock(self) -> None:
        """Takes the counter's lock now: nobody else writes objects before the commit."""
        self._connection.execute(_VALUE.with_for_update())

    def log(self, changes: Sequence[Change]) -> None:
        _LOG.run_many(self._connection, [_values(change, self._form) for change in changes])

    def list_at(self, kind: Kind, query: Query, at: int) -> ObjectPage:
        """The objects as they were when `at` was the newest revision. Raises ExpiredError."""
        self._check_kept(at)
        found = list(islice(self._past(kind, query, at), None if query.limit is None else query.limit + 1))
        return ObjectPage(tuple(found[: query.limit]), at, query.limit is not None and len(found) > query.limit)

    def _past(self, kind: Kind, query: Query, at: int) -> Iterator[StoredObject]:
        """In the order of their keys, read in portions: a page costs what a page holds."""
        whole = replace(query, limit=None, after=None, at=None)
        portion = PORTION if query.limit is None else min(query.limit + 1, PORTION)
        last = query.after or Key(query.namespace or "", "")
        while places := self._places(kind, query.namespace, last, at, portion):
            last = Key(places[-1][0], places[-1][1])
            rows = self._connection.execute(_AT, {"revisions": [revision for _, _, revision in places]})
            changes = {change.revision: change for change in (_change(row, self._form) for row in rows)}
            for change in (changes[revision] for _, _, revision in places):
                if change.type is not ChangeType.DELETED and (_is_plain(whole) or selects(kind, whole, change.document)):
                    yield StoredObject(kind, change.key, _uid(change), change.revision, change.encoded)
            if len(places) < portion:
                return

    def _places(self, kind: Kind, namespace: str | None, last: Key, at: int, portion: int) -> list[tuple[str, str, int]]:
        """Keys after `last`, each with its newest revision up to `at`."""
        values = {"kind": kind, "at": at, "namespace": last.namespace, "name": last.name, "portion": portion}
        found = self._connection.execute(_PLACES if namespace is None else _PLACES_OF, values)
        return [(row[0], row[1], row[2]) for row in found]


def _number(row: tuple[Any, ...] | None) -> int:
    """The one number of the one row."""
    if row is None:
        raise RuntimeError("the counter's row is missing: the database was changed by hand")
    return int(row[0])


def _is_plain(query: Query) -> bool:
    return not query.labels and not query.fields and query.where is None


def _uid(change: Change) -> str:
    return str(change.document["metadata"]["uid"])


def _values(change: Change, form: RowForm) -> dict[str, Any]:
    return {
        "revision": change.revision,
        "at": to_micros(change.at),
        "actor": change.actor,
        "kind": change.kind,
        "namespace": change.key.namespace,
        "name": change.key.name,
        "type": change.type.value,
        "document": form.row(change.kind, change.key, change.encoded),
        "labels_before": encode_values(change.labels_before),
        "fields_before": encode_values(change.fields_before),
    }


def _change(row: Row[Any], form: RowForm) -> Change:
    kind, key = Kind(row.kind), Key(row.namespace, row.name)
    return Change(
        revision=row.revision,
        at=from_micros(row.at),
        actor=row.actor,
        kind=kind,
        key=key,
        type=ChangeType(row.type),
        encoded=form.document(kind, key, row.document),
        labels_before=decode_values(row.labels_before),
        fields_before=decode_values(row.fields_before),
    )
