"""The statements that keep the rows of one object: the document, its labels and its selectable fields."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, update

from hub.domain.change import ChangeType, Key, Kind, StoredObject
from hub.store import schema
from hub.store.engine import INSERTS
from hub.store.instants import to_micros


class RaceError(Exception):
    """Another transaction changed what this one read: the use case has to run again."""


def _upsert(table: Table, dialect: str) -> Any:
    new = INSERTS[dialect](table)
    return new.on_conflict_do_update(index_elements=[table.c.uid, table.c.name], set_={"value": new.excluded.value})


_column = schema.objects.c
_AS_READ = (
    _column.kind == bindparam("of_kind"),
    _column.namespace == bindparam("of_namespace"),
    _column.name == bindparam("of_name"),
    _column.revision == bindparam("of_revision"),
)
_INSERT = insert(schema.objects)
_UPDATE = update(schema.objects).where(*_AS_READ).values(revision=bindparam("revision"), document=bindparam("document"))
_DELETE = delete(schema.objects).where(*_AS_READ)
_SIDES = (schema.labels, schema.fields)
_INDEX = {(table, dialect): _upsert(table, dialect) for table in _SIDES for dialect in INSERTS}
_UNINDEX = {
    table: delete(table).where(table.c.uid == bindparam("of_uid"), table.c.name == bindparam("of_name")) for table in _SIDES
}


def stored(kind: Kind, row: Sequence[Any]) -> StoredObject:
    return StoredObject(kind, Key(row[0], row[1]), row[2], row[3], row[4])


def store(connection: Connection, change: ChangeType, new: StoredObject, guard: int, now: datetime) -> None:
    """Writes the row; an existing one only when it still has the revision `guard`. Raises RaceError."""
    if change is ChangeType.ADDED:
        connection.execute(_INSERT, _values(new, now))
        return
    where: dict[str, Any] = {
        "of_kind": new.kind,
        "of_namespace": new.key.namespace,
        "of_name": new.key.name,
        "of_revision": guard,
    }
    if change is ChangeType.MODIFIED:
        result = connection.execute(_UPDATE, {**where, "revision": new.revision, "document": new.encoded})
    else:
        result = connection.execute(_DELETE, where)
    if result.rowcount != 1:
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


def index(connection: Connection, table: Table, uid: str, new: Mapping[str, str], old: Mapping[str, str]) -> None:
    """Brings the side table in line; touches only the entries that differ."""
    if new == old:
        return
    if gone := [{"of_uid": uid, "of_name": name} for name in old if name not in new]:
        connection.execute(_UNINDEX[table], gone)
    if entries := [{"uid": uid, "name": name, "value": value} for name, value in new.items() if old.get(name) != value]:
        connection.execute(_INDEX[table, connection.dialect.name], entries)
