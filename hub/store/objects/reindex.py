"""Selectable fields of objects that an earlier release stored: their rows are made anew, once, at the start after an upgrade.

A release that knows fewer fields leaves rows behind when it changes objects; so the rows are made anew whenever the release
that opened the database before was another one.
"""

from sqlalchemy import Connection, Engine, delete, insert, select

from hub.api.managedclustersets.clusterset import LABEL as SET_LABEL
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.api.query.query_fields import order_of
from hub.api.query.selection import fields_of
from hub.store import schema
from hub.store.engine.encoding import decode
from hub.store.query.inventory import inventory
from hub.store.tables.facts import SqlFacts
from machinery.product import version

FACT = "indexed-fields"
RULES = 3
"""Raised when a kind of `KINDS` gets other selectable fields, or when rows may lack what was written during a migration."""
KINDS = (MANAGED_CLUSTERS, ADDONS, REQUESTS)
BATCH = 500
_of = schema.objects.c
_SET = select(schema.labels.c.value).where(schema.labels.c.uid == _of.uid, schema.labels.c.name == SET_LABEL).scalar_subquery()
_NARROW = ("uid", "namespace", "name", "created_at", "cluster_set")
_NARROW_ROWS = select(_of.uid, _of.namespace, _of.name, _of.created_at, _SET)
"""The rest of a narrow row follows from `fields`: triggers see to it."""
_DROP_OTHERS = delete(inventory).where(inventory.c.uid.not_in(select(_of.uid).where(_of.kind == MANAGED_CLUSTERS)))


def reindex(engine: Engine) -> None:
    """Brings `fields`, and the narrow rows of clusters, in line with the documents, unless this release has done so before.

    In portions: others write objects meanwhile. Two replicas that do so at once do the same twice.
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
        SqlFacts(connection).set(FACT, current)


def _reindex_some(connection: Connection, kind: Kind, last: str) -> str | None:
    """Objects after a uid; the last one of them, None after the last of all."""
    _lock(connection)
    some = select(_of.uid, _of.document).where(_of.kind == kind, _of.uid > last).order_by(_of.uid).limit(BATCH)
    found = {str(row.uid): bytes(row.document) for row in connection.execute(some)}
    if not found:
        return None
    connection.execute(delete(schema.fields).where(schema.fields.c.uid.in_(found)))
    if kind == MANAGED_CLUSTERS:
        connection.execute(delete(inventory).where(inventory.c.uid.in_(found)))
        connection.execute(insert(inventory).from_select(_NARROW, _NARROW_ROWS.where(_of.uid.in_(found))))
    entries = [
        {"uid": uid, "name": name, "value": value, "sort": order_of(kind, name, value)}
        for uid, document in found.items()
        for name, value in fields_of(kind, decode(document)).items()
    ]
    if entries:
        connection.execute(insert(schema.fields), entries)
    return max(found)


def _lock(connection: Connection) -> None:
    """Nobody writes objects, and nobody else does this, until the commit."""
    connection.execute(select(schema.revision.c.value).with_for_update())
