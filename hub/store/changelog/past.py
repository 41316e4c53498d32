"""Reads the past from the change log: lists and objects at an earlier revision, and the changes of one object."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, bindparam, func, select, tuple_

from hub.api.meta.change import Change, Kind
from hub.api.query.expressions import PatternBudget
from hub.api.query.selection import known_of, selects, where_in
from hub.store import schema
from hub.store.changelog.retention import ChangeLogRetention
from hub.store.engine.encoding import RowForm, decode_values, from_micros, optional_instant, to_micros
from hub.store.engine.statements import Statement
from machinery.errors import ExpiredError
from machinery.meta.objects import ChangeType, Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_time

_row = schema.changes.c
PORTION = 500
GROWTH = 4
FEW = 16
_counter = schema.revision.c
_NEWEST = Statement(select(_counter.value))
KEPT = Statement(select(_counter.value, _counter.compacted))
"""Selects the newest revision, and the revision up to which changes are compacted."""


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
        and_(_row.revision < bindparam("below"), _row.at <= bindparam("until")),
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


class ChangeLogPast(ChangeLogRetention):
    """Reads the change log in a transaction. Raises ExpiredError for revisions that are no longer kept, or too new."""

    def __init__(self, connection: Connection, now: datetime, form: RowForm, sender: str) -> None:
        """`sender`: this replica, which needs no notification of its own commits."""
        super().__init__(connection, now)
        self._form = form
        self._sender = sender
        self._newest: int | None = None

    def newest(self) -> int:
        """Return the newest revision, read once per transaction.

        Later reads are at least as new, so a watch from this revision misses nothing.
        """
        if self._newest is None:
            self._newest = number_of(_NEWEST.row(self._connection, {}))
        return self._newest

    def list_at(self, kind: Kind, query: Query, at: int) -> Page:
        found = list(islice(self.each_at(kind, query, at), None if query.limit is None else query.limit + 1))
        items = tuple(found[: query.limit])
        return Page(items, at, items[-1].key if items and len(found) > len(items) else None)

    def each_at(self, kind: Kind, query: Query, at: int) -> Iterator[StoredObject]:
        """Yield the objects as they were at revision `at`, in key order.

        The method reads growing portions. So a small page costs little, and a selective query needs few statements.
        """
        if query.past:
            self._check_remembered(at)
        else:
            self._check_kept(at)
        whole, budget = replace(query, limit=None, after=None, at=None), PatternBudget(time.thread_time)
        portion = PORTION if query.limit is None else min(query.limit + 1, PORTION)
        last = query.after or Key(query.namespace or "", "")
        while places := self._places(kind, query.namespace, last, at, portion):
            last = Key(places[-1][0], places[-1][1])
            rows = self._connection.execute(_AT, {"revisions": [revision for _, _, revision in places]})
            changes = {change.revision: change for change in map(self._read, rows)}
            there = [changes[revision] for _, _, revision in places if changes[revision].type is not ChangeType.DELETED]
            resolved = _resolved(kind, whole, there, budget)
            for change in there:
                if _is_plain(whole) or selects(kind, resolved, change.document):
                    yield _stored(change)
            if len(places) < portion:
                return
            portion = min(portion * GROWTH, PORTION)

    def _places(self, kind: Kind, namespace: str | None, last: Key, at: int, portion: int) -> list[tuple[str, str, int]]:
        """Keys after `last`, each with its newest revision up to `at`."""
        start = last.namespace if namespace is None else namespace  # `last` may come from a forged continue token
        values = {"kind": kind, "at": at, "namespace": start, "name": last.name, "portion": portion}
        found = self._connection.execute(_PLACES if namespace is None else _PLACES_OF, values)
        return [(row[0], row[1], row[2]) for row in found]

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        """Return the object as it was at revision `at`; None if it did not exist."""
        self._check_remembered(at)
        change = next(iter(self.past(kind, key, below=at + 1, limit=1)), None)
        return None if change is None or change.type is ChangeType.DELETED else _stored(change)

    def past(
        self, kind: Kind, key: Key, *, below: int | None = None, until: datetime | None = None, limit: int
    ) -> Sequence[Change]:
        """Return at most `limit` changes of one object, newest first: of lower revisions than `below`, up to `until`."""
        bounds = {"below": self.newest() + 1 if below is None else below, "limit": limit}
        bounds["until"] = 2**63 - 1 if until is None else to_micros(until)
        values = {"kind": kind, "namespace": key.namespace, "name": key.name, **bounds}
        return [self._read(row) for row in self._connection.execute(_OF_ONE, values)]

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        """Return the changes of one object since an instant, in order, preceded by the last earlier change."""
        found: list[Change] = []
        below = self.newest() + 1
        while portion := self.past(kind, key, below=below, limit=FEW):
            for change in portion:
                found.insert(0, change)
                if change.at < since:
                    return found
            below = portion[-1].revision
        return found

    def position(self, moment: datetime) -> int:
        """Return the revision that was the newest at an instant; 0 before the first change.

        A later revision can have an earlier time: concurrent transactions may commit in either order, and clocks may be set
        back. So rows after the nearest change count too, up to the first row that is later than the instant.
        """
        micros = to_micros(moment)
        nearest = self._connection.execute(_AT_OR_BEFORE, {"moment": micros}).scalar_one_or_none()
        position = 0
        if nearest is not None:
            later = self._connection.execute(_FIRST_AFTER, {"revision": nearest, "moment": micros}).scalar_one_or_none()
            position = self.newest() if later is None else int(later) - 1
        self._check_remembered(position)
        return position

    def instant(self, revision: int) -> datetime | None:
        """Return when the newest change up to `revision` was written; None: there is no such change."""
        self._check_remembered(revision)
        return optional_instant(self._connection.execute(_MOMENT_OF, {"revision": revision}).scalar_one_or_none())

    def began(self) -> datetime | None:
        """Return when the first change above `Ledger.floor` was written; None: there is no such change."""
        return self._began(self.ledger().floor)

    def _began(self, floor: int) -> datetime | None:
        return optional_instant(self._connection.execute(_MOMENT_AFTER, {"revision": floor}).scalar_one_or_none())

    def _check_remembered(self, revision: int) -> None:
        floor = self.ledger().floor
        if revision < floor:
            began = self._began(floor)
            since = f", {format_time(began)}" if began else ""
            raise ExpiredError(f"history is kept from revision {floor}{since} on: request a later one")
        _check_known(revision, self.newest())

    def _check_kept(self, revision: int) -> None:
        newest, oldest = KEPT.row(self._connection, {}) or (0, 0)
        if revision < oldest:
            raise ExpiredError(
                f"The provided resource version is too old: changes up to {oldest} are compacted; list again, then watch"
            )
        _check_known(revision, newest)

    def _read(self, row: Row[Any]) -> Change:
        kind, key = Kind(row.kind), Key(row.namespace, row.name)
        return Change(
            revision=row.revision,
            at=from_micros(row.at),
            actor=row.actor,
            kind=kind,
            key=key,
            type=ChangeType(row.type),
            encoded=self._form.document(kind, key, row.document),
            labels_before=decode_values(row.labels_before),
            fields_before=decode_values(row.fields_before),
        )


def _check_known(revision: int, newest: int) -> None:
    if revision > newest:
        raise ExpiredError(
            f"The provided resource version {revision} is not of this database, whose newest is {newest}: "
            "it was restored, or lost its last writes; list again and watch from there"
        )


def number_of(row: tuple[Any, ...] | None) -> int:
    """Return the number in the row of the revision counter."""
    if row is None:
        raise RuntimeError("the revision counter is missing: the database was changed by hand")
    return int(row[0])


def _resolved(kind: Kind, query: Query, found: Sequence[Change], budget: PatternBudget) -> Query:
    """Replace the regular expressions of the condition by the matching values of these objects."""
    where = where_in(query)
    if where is None or not where.patterns():
        return query
    known = [known_of(kind, change.document) for change in found]
    return replace(
        query,
        where=budget.resolve(where, lambda field: {text for each in known if (text := where.text(field, each)) is not None}),
    )


def _is_plain(query: Query) -> bool:
    return not query.labels and not query.fields and query.where is None


def _stored(change: Change) -> StoredObject:
    uid = str(change.document["metadata"]["uid"])
    return StoredObject(change.key, change.revision, change.encoded, uid)
