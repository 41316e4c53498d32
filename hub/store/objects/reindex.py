"""Rebuilds the selectable fields of stored objects, once, at the first start of another release.

A release that knows fewer fields leaves outdated rows behind, so a downgrade causes a rebuild too.
"""

from sqlalchemy import Connection, Engine, delete, insert, select

from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.api.query.parsing import order_of
from hub.api.query.selection import fields_of
from hub.store import schema
from hub.store.engine.encoding import decode
from hub.store.query.inventory import inventory
from hub.store.tables.leaders import SqlFacts
from machinery.product import version

FACT = "indexed-fields"
RULES = 4
"""Increase this when a kind of `KINDS` gets other selectable fields, or when rows may lack writes made during a migration."""
KINDS = (MANAGED_CLUSTERS, ADDONS, REQUESTS)
BATCH = 500
_of = schema.objects.c
_SET = select(schema.labels.c.value).where(schema.labels.c.uid == _of.uid, schema.labels.c.name == SET_LABEL).scalar_subquery()
_NARROW = ("uid", "namespace", "name", "created_at", "cluster_set")
_NARROW_ROWS = select(_of.uid, _of.namespace, _of.name, _of.created_at, _SET)
"""Triggers fill the other columns of a narrow row from `fields`."""
_DROP_OTHERS = delete(inventory).where(inventory.c.uid.not_in(select(_of.uid).where(_of.kind == MANAGED_CLUSTERS)))


def reindex(engine: Engine) -> None:
    """Rebuild `fields` and the narrow rows of clusters from the documents, unless this release has done so already.

    It runs in portions, so that other transactions can write in between. Two replicas may both do it, without harm.
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
    """Reindex the next batch of objects after a uid. Returns the last uid; None: there are no more."""
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
    """Block writers of objects and other reindexing until the commit."""
    connection.execute(select(schema.revision.c.value).with_for_update())
