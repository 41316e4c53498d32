"""Statements that store objects: documents, labels and selectable fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, update

from hub.api.meta.change import Kind
from hub.api.query.parsing import order_of
from hub.store import schema
from hub.store.engine.encoding import RowForm, to_micros
from hub.store.engine.engine import upsert
from hub.store.engine.errors import RaceError
from hub.store.engine.statements import Statement
from machinery.meta.objects import ChangeType, Key, StoredObject

_column = schema.objects.c
_AS_READ = (
    _column.kind == bindparam("of_kind"),
    _column.namespace == bindparam("of_namespace"),
    _column.name == bindparam("of_name"),
    _column.revision == bindparam("of_revision"),
)
_INSERT = Statement(insert(schema.objects))
_UPDATE = Statement(
    update(schema.objects).where(*_AS_READ).values(revision=bindparam("revision"), document=bindparam("document"))
)
_DELETE = Statement(delete(schema.objects).where(*_AS_READ))
_SIDES = (schema.labels, schema.fields)
_INDEX = {table: Statement(partial(upsert, table)) for table in _SIDES}
_UNINDEX = {
    table: Statement(delete(table).where(table.c.uid == bindparam("of_uid"), table.c.name == bindparam("of_name")))
    for table in _SIDES
}


def stored(row: Sequence[Any], kind: Kind, form: RowForm) -> StoredObject:
    namespace, name, uid, revision, document = row[:5]
    key = Key(namespace, name)
    return StoredObject(key, revision, form.document(kind, key, document), uid)


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """The new state of an object with its previous labels and fields."""

    change: ChangeType
    kind: Kind
    new: StoredObject
    guard: int
    """The revision that an existing row must still have."""
    labels: Mapping[str, str]
    labels_before: Mapping[str, str]
    fields: Mapping[str, str]
    fields_before: Mapping[str, str]


def store(connection: Connection, written: Sequence[ObjectRow], now: datetime) -> None:
    """Write rows of objects with distinct keys, one statement per kind of change. Raises RaceError."""
    of = {change: [row for row in written if row.change is change] for change in ChangeType}
    guarded = (
        _DELETE.run_many(connection, [_as_read(row) for row in of[ChangeType.DELETED]]),
        _UPDATE.run_many(connection, [_renewed(row) for row in of[ChangeType.MODIFIED]]),
    )
    if guarded != (len(of[ChangeType.DELETED]), len(of[ChangeType.MODIFIED])):
        raise RaceError
    _INSERT.run_many(connection, [_values(row, now) for row in of[ChangeType.ADDED]])
    _index(connection, [row for row in written if row.change is not ChangeType.DELETED])


def _as_read(row: ObjectRow) -> dict[str, Any]:
    new = row.new
    return {"of_kind": row.kind, "of_namespace": new.key.namespace, "of_name": new.key.name, "of_revision": row.guard}


def _renewed(row: ObjectRow) -> dict[str, Any]:
    return {**_as_read(row), "revision": row.new.revision, "document": row.new.encoded}


def _values(row: ObjectRow, now: datetime) -> dict[str, Any]:
    new = row.new
    return {
        "kind": row.kind,
        "namespace": new.key.namespace,
        "name": new.key.name,
        "uid": new.uid,
        "revision": new.revision,
        "created_at": to_micros(now),
        "document": new.encoded,
    }


def _index(connection: Connection, written: Sequence[ObjectRow]) -> None:
    """Update only the changed entries of the side tables. Fields also get their sort keys."""
    labels = [(row, row.labels, row.labels_before) for row in written if row.labels != row.labels_before]
    fields = [(row, row.fields, row.fields_before) for row in written if row.fields != row.fields_before]
    for table, entries in ((schema.labels, labels), (schema.fields, fields)):
        lost = [{"of_uid": of.new.uid, "of_name": name} for of, new, old in entries for name in old if name not in new]
        _UNINDEX[table].run_many(connection, lost)
    _INDEX[schema.labels].run_many(connection, [{"uid": row.new.uid, **entry} for row, entry in _changed(labels)])
    sorted_fields = [
        {"uid": row.new.uid, **entry, "sort": order_of(row.kind, entry["name"], entry["value"])}
        for row, entry in _changed(fields)
    ]
    _INDEX[schema.fields].run_many(connection, sorted_fields)


_Entries = Sequence[tuple[ObjectRow, Mapping[str, str], Mapping[str, str]]]
"""Objects with their new and previous entries."""


def _changed(entries: _Entries) -> list[tuple[ObjectRow, dict[str, str]]]:
    return [
        (of, {"name": name, "value": value})
        for of, new, old in entries
        for name, value in new.items()
        if old.get(name) != value
    ]
