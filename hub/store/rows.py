"""The statements that keep the rows of one object: the document, its labels and its selectable fields."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, update

from hub.domain.asking import order_of
from hub.domain.change import ChangeType, Key, Kind, StoredObject
from hub.store import schema
from hub.store.engine import INSERTS
from hub.store.instants import to_micros
from hub.store.rowform import RowForm
from hub.store.statement import Statement


class RaceError(Exception):
    """Another transaction changed what this one read: the use case has to run again."""


def _upsert(table: Table, dialect: str) -> Any:
    new = INSERTS[dialect](table).values({column.name: bindparam(column.name) for column in table.columns})
    changed = {column.name: new.excluded[column.name] for column in table.columns if not column.primary_key}
    return new.on_conflict_do_update(index_elements=[table.c.uid, table.c.name], set_=changed)


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
_INDEX = {table: Statement(*(_upsert(table, dialect) for dialect in INSERTS), dialects=tuple(INSERTS)) for table in _SIDES}
_UNINDEX = {
    table: Statement(delete(table).where(table.c.uid == bindparam("of_uid"), table.c.name == bindparam("of_name")))
    for table in _SIDES
}


def stored(kind: Kind, row: Sequence[Any], form: RowForm) -> StoredObject:
    key = Key(row[0], row[1])
    return StoredObject(kind, key, row[2], row[3], form.document(kind, key, row[4]))


def store(connection: Connection, change: ChangeType, new: StoredObject, guard: int, now: datetime) -> None:
    """Writes the row; an existing one only when it still has the revision `guard`. Raises RaceError."""
    if change is ChangeType.ADDED:
        _INSERT.run(connection, _values(new, now))
        return
    where: dict[str, Any] = {
        "of_kind": new.kind,
        "of_namespace": new.key.namespace,
        "of_name": new.key.name,
        "of_revision": guard,
    }
    if change is ChangeType.MODIFIED:
        touched = _UPDATE.run(connection, {**where, "revision": new.revision, "document": new.encoded})
    else:
        touched = _DELETE.run(connection, where)
    if touched != 1:
        raise RaceError


def _values(new: StoredObject, now: datetime) -> dict[str, Any]:
    return {
        "kind": new.kind,
        "namespace": new.key.namespace,
        "name": new.key.name,
        "uid": new.uid,
        "revision": new.revision,
        "created_at": to_micros(now),
        "document": new.encoded,
    }


def label(connection: Connection, uid: str, new: Mapping[str, str], old: Mapping[str, str]) -> None:
    """Brings the labels in line; touches only the entries that differ."""
    if new != old:
        _index(connection, schema.labels, [{"uid": uid, **entry} for entry in _changed(new, old)], _gone(uid, new, old))


def field(connection: Connection, stored: StoredObject, new: Mapping[str, str], old: Mapping[str, str]) -> None:
    """The same for selectable fields, with what they are compared by."""
    if new != old:
        changed = [
            {"uid": stored.uid, **entry, "sort": order_of(stored.kind, entry["name"], entry["value"])}
            for entry in _changed(new, old)
        ]
        _index(connection, schema.fields, changed, _gone(stored.uid, new, old))


def _changed(new: Mapping[str, str], old: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in new.items() if old.get(name) != value]


def _gone(uid: str, new: Mapping[str, str], old: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"of_uid": uid, "of_name": name} for name in old if name not in new]


def _index(
    connection: Connection, table: Table, changed: Sequence[Mapping[str, Any]], gone: Sequence[Mapping[str, Any]]
) -> None:
    _UNINDEX[table].run_many(connection, gone)
    _INDEX[table].run_many(connection, changed)
