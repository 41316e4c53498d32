"""Objects in a transaction. Reads see the transaction's own writes; writes get their revisions at the end.

Writes are buffered. `flush`, the last step before the commit, takes the next revisions from the counter, puts them into the
documents and stores all rows. This keeps the counter's lock short and makes revisions visible in order.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select

from hub.api.managedclusters.availability import FLAPS_WITHIN
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Change, Kind
from hub.api.query.expressions import PRESENT, AgentFacts
from hub.api.query.groups import Group, GroupQuery
from hub.api.query.selection import check_past, fields_of, is_current, known_of, order_in, page_of, uses_present
from hub.ports import Objects, Written
from hub.store.changelog.changes import SqlChanges
from hub.store.engine.encoding import RowForm, encode, to_micros
from hub.store.objects import rows
from hub.store.query import cluster_queries, queries
from machinery.errors import AlreadyExistsError, ConflictError, ErrorSubject
from machinery.meta.objects import ChangeType, Document, Key, Page, Query, SortPosition, StoredObject

PENDING = 0
"""The revision of uncommitted writes."""


@dataclass(slots=True)
class PendingWrite(Written):
    """A buffered write. `flush` sets `result`: the object with its revision."""

    kind: Kind
    type: ChangeType
    document: Document
    seen: StoredObject
    """The object as later reads of this transaction return it; for a deletion, the deleted object."""
    before: StoredObject | None
    actor: str
    result: StoredObject | None = None

    @property
    def stored(self) -> StoredObject:
        if self.result is None:
            msg = "the transaction has not committed yet"
            raise RuntimeError(msg)
        return self.result


class SqlObjects(Objects):
    def __init__(self, connection: Connection, changes: SqlChanges, now: datetime, *, form: RowForm, writable: bool) -> None:
        self._connection = connection
        self._changes = changes
        self._form = form
        self._now = now
        self._since = to_micros(now - FLAPS_WITHIN)
        self._writable = writable
        self._pending: list[PendingWrite] = []
        self._latest: dict[tuple[Kind, Key], PendingWrite] = {}
        self._read: dict[tuple[Kind, Key], StoredObject | None] = {}
        self._present: set[Kind] = set()  # kinds that have objects; a kind without objects may get some while others write

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        if write := self._latest.get((kind, key)):
            return None if write.type is ChangeType.DELETED else write.seen
        if (kind, key) in self._read:
            return self._read[kind, key]
        row = queries.ONE.row(self._connection, {"kind": kind, "namespace": key.namespace, "name": key.name})
        stored = None if row is None else rows.stored(row, kind, self._form)
        self._read[kind, key] = stored
        return stored

    def read_ahead(self, kind: Kind, keys: Collection[Key]) -> None:
        wanted = [key for key in keys if (kind, key) not in self._read]
        found = {row[:2]: row for row in queries.each(self._connection, kind, wanted)}
        for key in wanted:
            row = found.get((key.namespace, key.name))
            self._read[kind, key] = None if row is None else rows.stored(row, kind, self._form)

    def find(self, kind: Kind, query: Query) -> Page:
        revision = self._changes.newest()
        if query.at is not None and query.at != revision:
            return self._find_past(kind, query, query.at)
        if any(kind == changed for changed, _ in self._latest):
            return self._find_with_buffer(kind, query, revision)
        wanted = None if query.limit is None else query.limit + 1
        found = queries.found(self._connection, kind, self._resolved(query), wanted, self._since)
        items = tuple(rows.stored(row, kind, self._form) for row in found[: query.limit])
        moves = is_current(query)
        if len(found) == len(items):
            return Page(items, revision, moves=moves)
        last, place = items[-1].key, tuple(found[len(items) - 1][queries.PLACE :])
        return Page(items, revision, last, self._remaining(kind, query, last, place), place, moves)

    def _find_past(self, kind: Kind, query: Query, at: int) -> Page:
        check_past(query)
        if query.order or uses_present(query):
            whole = replace(query, where=None, order=None, limit=None, after=None)
            return page_of(kind, query, self._changes.list_at(kind, whole, at).items, at, self._agents(query))
        page = self._changes.list_at(kind, query, at)
        return page if page.after is None else replace(page, remaining=self._remaining(kind, query, page.after))

    def _agents(self, query: Query) -> Mapping[str, AgentFacts]:
        if not uses_present(query):
            return {}
        rows = self._connection.execute(cluster_queries.agents(self._connection.dialect.name), {"since": self._since})
        return {name: dict(zip(PRESENT, values, strict=True)) for name, *values in rows}

    def has_any(self, kind: Kind) -> bool:
        if any(kind == changed for changed, _ in self._latest):
            return bool(self._find_with_buffer(kind, Query(), PENDING).items)
        if kind not in self._present and queries.ANY.row(self._connection, {"kind": kind}) is not None:
            self._present.add(kind)
        return kind in self._present

    def _remaining(self, kind: Kind, query: Query, last: Key, place: SortPosition = ()) -> int | None:
        """The number of objects after `last`, whose sort position is `place`; None if a selector is used.

        Counts current objects. For a list of the past the result is an estimate, as Kubernetes allows.
        """
        if query.labels or query.fields or query.where:
            return None
        order = order_in(query)
        rest = Query(namespace=query.namespace, after=last, order=replace(order, after=place) if order is not None else None)
        return self._counted(*queries.count(kind, rest, self._connection.dialect.name))

    def _find_with_buffer(self, kind: Kind, query: Query, revision: int) -> Page:
        whole = replace(query, limit=None, after=None, order=None)
        read = queries.found(self._connection, kind, self._resolved(whole), None, self._since)
        seen = {stored.key: stored for stored in (rows.stored(row, kind, self._form) for row in read)}
        for (changed, key), write in self._latest.items():
            if changed == kind:
                seen.pop(key, None)
                if write.type is not ChangeType.DELETED:
                    seen[key] = write.seen
        return page_of(kind, query, seen.values(), revision, self._agents(query))

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        key, new = doc.key(new), self._form.grouped(new)
        self._guard(kind, key, old)
        earlier = self._latest.get((kind, key))
        seen = StoredObject(key, PENDING, encode(new, None), str(new["metadata"]["uid"]))
        if earlier is not None and earlier.type is not ChangeType.DELETED:
            earlier.document, earlier.seen, earlier.actor = new, seen, actor
            return earlier
        return self._buffer(PendingWrite(kind, ChangeType.MODIFIED if old else ChangeType.ADDED, new, seen, old, actor))

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written:
        self._guard(kind, old.key, old)
        return self._buffer(PendingWrite(kind, ChangeType.DELETED, old.document, old, old, actor))

    def count(self, kind: Kind, query: Query) -> int:
        if any(kind == changed for changed, _ in self._latest):
            return len(self.find(kind, replace(query, limit=None, at=None)).items)
        return self._counted(*queries.count(kind, self._resolved(query), self._connection.dialect.name))

    def _resolved(self, query: Query) -> Query:
        return cluster_queries.resolve_patterns(self._connection, query, self._since)

    def _counted(self, statement: Select[Any], values: Mapping[str, Any]) -> int:
        return int(self._connection.execute(statement, {**values, "since": self._since}).scalar_one())

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        found = self._connection.execute(queries.tally(kind, field), {"kind": kind, "field": field})
        return {str(value): int(count) for value, count in found}

    def values(self, kind: Kind, field: str) -> Mapping[Key, str]:
        found = self._connection.execute(queries.VALUES, {"kind": kind, "field": field})
        return {Key(namespace, name): value for namespace, name, value in found}

    def groups(self, query: Query, grouping: GroupQuery) -> Sequence[Group]:
        if query.past and query.at is not None:
            check_past(query, (*grouping.by, *grouping.sums))
            found = self._changes.each_at(MANAGED_CLUSTERS, query, query.at)
            return grouping.groups(grouping.row(known_of(MANAGED_CLUSTERS, each.document)) for each in found)
        if not grouping.by and not grouping.sums:
            return [Group((), self.count(MANAGED_CLUSTERS, query))]
        statement = cluster_queries.groups(self._resolved(query), grouping.by, self._connection.dialect.name, grouping.sums)
        return grouping.groups(self._connection.execute(statement, {"since": self._since}))

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Mapping[Key, int]:
        values = {"kind": kind, "moment": to_micros(moment), "limit": limit}
        found = queries.WRITTEN_BEFORE.rows(self._connection, values)
        return {Key(namespace, name): revision for namespace, name, revision in found}

    def _buffer(self, write: PendingWrite) -> PendingWrite:
        self._pending.append(write)
        self._latest[write.kind, write.seen.key] = write
        return write

    def _guard(self, kind: Kind, key: Key, old: StoredObject | None) -> None:
        """Raises ConflictError if `old` is outdated. The guarded statement later detects a race with another transaction."""
        if not self._writable:
            msg = "a query does not write"
            raise RuntimeError(msg)
        current = self.get(kind, key)
        resource, _, group = kind.partition(".")
        subject = ErrorSubject(name=key.name, group=group, kind=resource)
        if old is None:
            if current is not None:
                raise AlreadyExistsError(f'{kind} "{key.name}" already exists', subject=subject)
        elif current is None or (current.uid, current.revision) != (old.uid, old.revision):
            raise ConflictError(
                f'Operation cannot be fulfilled on {kind} "{key.name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                subject=subject,
            )

    def flush(self) -> Sequence[Change]:
        """Store the buffered writes, as the last step before the commit. Raises RaceError."""
        if not self._pending:
            return ()
        first = self._changes.advance(len(self._pending)) - len(self._pending) + 1
        guards: dict[tuple[Kind, Key], int] = {}
        logged: list[Change] = []
        together: list[rows.ObjectRow] = []
        for revision, write in enumerate(self._pending, first):
            where = (write.kind, write.seen.key)
            if where in guards:  # deleted and created again: the order matters
                rows.store(self._connection, together, self._now)
                together = []
            row, change = self._written(write, revision, guards.get(where))
            together.append(row)
            logged.append(change)
            guards[where] = revision
        rows.store(self._connection, together, self._now)
        self._changes.log(logged)
        return logged

    def _written(self, write: PendingWrite, revision: int, guard: int | None) -> tuple[rows.ObjectRow, Change]:
        encoded = encode(write.document, revision)
        write.result = StoredObject(write.seen.key, revision, encoded, write.seen.uid)
        before: Document = write.before.document if write.before else {}
        change = Change(
            revision=revision,
            at=self._now,
            actor=write.actor,
            kind=write.kind,
            key=write.seen.key,
            type=write.type,
            encoded=encoded,
            labels_before=doc.labels(before),
            fields_before=fields_of(write.kind, before) if before else {},
        )
        is_there = write.type is not ChangeType.DELETED
        row = rows.ObjectRow(
            change,
            write.seen.uid,
            self._form.row(write.kind, change.key, encoded),
            guard=guard or (write.before.revision if write.before else 0),
            labels=doc.labels(write.document) if is_there else {},
            fields=fields_of(write.kind, write.document) if is_there else {},
        )
        return row, change
