"""Rows of objects: documents, labels and selectable fields. Writes store them; `reindex` rebuilds the fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, delete, insert, select, update

from hub.api.hubreplicas import LOST_AFTER
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Change, Kind
from hub.api.query.parsing import order_of
from hub.api.query.selection import fields_of
from hub.store import schema
from hub.store.engine.encoding import RowForm, decode, to_micros
from hub.store.engine.engine import database_time, upsert
from hub.store.engine.errors import RaceError
from hub.store.engine.statements import Statement
from hub.store.query.inventory import inventory
from hub.store.tables.leaders import SqlFacts
from machinery.meta.objects import ChangeType, Key, StoredObject
from machinery.product import version
from machinery.sanitize import can_store

_column, _replica = schema.objects.c, schema.replicas.c
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
    """The new state of an object. `change`: the row of the change log. `guard`: the revision that an existing row must have."""

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
            gone = [name for name in old if name not in new and (can_store(name) or connection.dialect.name == "sqlite")]
            lost[table] += [{"of_uid": row.uid, "of_name": name} for name in gone]
            for name, value in new.items():
                if old.get(name) != value:
                    sort = {"sort": order_of(row.change.kind, name, value)} if table is fields else {}
                    changed[table].append({"uid": row.uid, "name": name, "value": value, **sort})
    for table in _SIDES:
        _UNINDEX[table].run_many(connection, lost[table])
        _INDEX[table].run_many(connection, changed[table])


FACT = "indexed-fields"
RULES = 5
"""Increase this number when a kind of `KINDS` gets other selectable fields, or rows may lack writes made during a migration."""
KINDS = (MANAGED_CLUSTERS, ADDONS, REQUESTS)
REINDEXED = 500
_SET = (
    select(schema.labels.c.value).where(schema.labels.c.uid == _column.uid, schema.labels.c.name == SET_LABEL).scalar_subquery()
)
_NARROW = ("uid", "namespace", "name", "created_at", "cluster_set")
_NARROW_ROWS = select(_column.uid, _column.namespace, _column.name, _column.created_at, _SET)
"""Triggers fill the other columns of an inventory row from `fields`."""
_DROP_OTHERS = delete(inventory).where(inventory.c.uid.not_in(select(_column.uid).where(_column.kind == MANAGED_CLUSTERS)))


def reindex(engine: Engine) -> None:
    """Rebuild `fields` and the inventory from the documents, at the first start of another release.

    A release that knows fewer fields leaves outdated rows behind, so a downgrade causes a rebuild too. The rebuild runs in
    portions, so that other transactions can write in between. Two replicas may run it at the same time. While a replica of
    another release lives, the next start repeats it: what that replica writes until then lacks fields that it does not know.
    """
    current = f"{RULES} {version()}"
    with engine.begin() as connection:
        if SqlFacts(connection).get(FACT) == current:
            return
    for kind in KINDS:
        last: str | None = ""
        while last is not None:
            with engine.begin() as connection:
                last = _reindex_some(connection, kind, last)
    with engine.begin() as connection:
        _lock(connection)
        connection.execute(_DROP_OTHERS)
        living = to_micros(database_time(connection) - LOST_AFTER)
        others = select(_replica.name).where(_replica.version != version(), _replica.seen_at > living)
        if connection.execute(others).first() is None:
            SqlFacts(connection).set(FACT, current)


def _reindex_some(connection: Connection, kind: Kind, last: str) -> str | None:
    """Reindex the next batch of objects after a uid. Returns the last uid; None if there are no more."""
    _lock(connection)
    some = (
        select(_column.uid, _column.document)
        .where(_column.kind == kind, _column.uid > last)
        .order_by(_column.uid)
        .limit(REINDEXED)
    )
    found = {str(row.uid): bytes(row.document) for row in connection.execute(some)}
    if not found:
        return None
    connection.execute(delete(schema.fields).where(schema.fields.c.uid.in_(found)))
    if kind == MANAGED_CLUSTERS:
        connection.execute(delete(inventory).where(inventory.c.uid.in_(found)))
        connection.execute(insert(inventory).from_select(_NARROW, _NARROW_ROWS.where(_column.uid.in_(found))))
    entries = [
        {"uid": uid, "name": name, "value": value, "sort": order_of(kind, name, value)}
        for uid, document in found.items()
        for name, value in fields_of(kind, decode(document)).items()
        if can_store(name + value)
    ]
    if entries:
        connection.execute(insert(schema.fields), entries)
    return max(found)


def _lock(connection: Connection) -> None:
    connection.execute(select(schema.revision.c.value).with_for_update())
