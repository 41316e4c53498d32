"""Statements that store objects: documents, labels and selectable fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, update

from hub.api.meta.change import Change, Kind
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
    """The new state of an object. `change`: its row of the change log. `guard`: the revision that an existing row must have."""

    change: Change
    uid: str
    document: bytes
    guard: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]


def store(connection: Connection, written: Sequence[ObjectRow], now: datetime) -> None:
    """Write rows of objects with distinct keys, one statement per kind of change. Raises RaceError."""
    values: dict[ChangeType, list[dict[str, Any]]] = {change: [] for change in ChangeType}
    for row in written:
        change = row.change
        place = {"kind": change.kind, "namespace": change.key.namespace, "name": change.key.name}
        document = {"revision": change.revision, "document": row.document}
        if change.type is ChangeType.ADDED:
            values[change.type].append({**place, **document, "uid": row.uid, "created_at": to_micros(now)})
        else:
            as_read = {f"of_{name}": value for name, value in (*place.items(), ("revision", row.guard))}
            values[change.type].append(as_read | (document if change.type is ChangeType.MODIFIED else {}))
    for statement, change_type in ((_DELETE, ChangeType.DELETED), (_UPDATE, ChangeType.MODIFIED)):
        if statement.run_many(connection, values[change_type]) != len(values[change_type]):
            raise RaceError
    _INSERT.run_many(connection, values[ChangeType.ADDED])
    _index(connection, [row for row in written if row.change.type is not ChangeType.DELETED])


def _index(connection: Connection, written: Sequence[ObjectRow]) -> None:
    """Update only the changed entries of the side tables. Fields also get their sort keys."""
    labels, fields = schema.labels, schema.fields
    lost: dict[Table, list[dict[str, Any]]] = {labels: [], fields: []}
    changed: dict[Table, list[dict[str, Any]]] = {labels: [], fields: []}
    for row in written:
        sides = ((labels, row.labels, row.change.labels_before), (fields, row.fields, row.change.fields_before))
        for table, new, old in sides:
            lost[table] += [{"of_uid": row.uid, "of_name": name} for name in old if name not in new]
            for name, value in new.items():
                if old.get(name) != value:
                    sort = {"sort": order_of(row.change.kind, name, value)} if table is fields else {}
                    changed[table].append({"uid": row.uid, "name": name, "value": value, **sort})
    for table in _SIDES:
        _UNINDEX[table].run_many(connection, lost[table])
        _INDEX[table].run_many(connection, changed[table])
