"""Selectable fields of objects that an earlier release stored: their rows are made anew, once, at the start after an upgrade.

A release that knows fewer fields leaves rows behind when it changes objects; so the rows are made anew whenever the release
that opened the database before was another one.
"""

from collections.abc import Iterator

from sqlalchemy import Connection, Engine, delete, insert, select, text

from hub.domain.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, Kind
from hub.domain.selection import fields_of
from hub.store import schema
from hub.store.encoding import decode
from hub.store.facts import SqlFacts
from machinery.product import version

FACT = "indexed-fields"
RULES = 1
"""Raised when a kind of `KINDS` gets other selectable fields."""
KINDS = (MANAGED_CLUSTERS, ADDONS, REQUESTS)
BATCH = 500
_of = schema.objects.c


def reindex(engine: Engine) -> None:
    """Brings the rows of `fields` in line with the documents, unless this release has done so before."""
    current = f"{RULES} {version()}"
    with engine.begin() as connection:
        if SqlFacts(connection).get(FACT) == current:
            return
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = '0'"))
        connection.execute(select(schema.revision.c.value).with_for_update())  # nobody writes objects until the commit
        for kind in KINDS:
            _reindex_kind(connection, kind)
        SqlFacts(connection).set(FACT, current)


def _reindex_kind(connection: Connection, kind: Kind) -> None:
    of_kind = select(_of.uid).where(_of.kind == kind)
    connection.execute(delete(schema.fields).where(schema.fields.c.uid.in_(of_kind)))
    for batch in _batches(connection, kind):
        entries = [
            {"uid": uid, "name": name, "value": value}
            for uid, document in batch
            for name, value in fields_of(kind, decode(document)).items()
        ]
        if entries:
            connection.execute(insert(schema.fields), entries)


def _batches(connection: Connection, kind: Kind) -> Iterator[list[tuple[str, bytes]]]:
    """Uid and document of every object."""
    last = ""
    while True:
        some = select(_of.uid, _of.document).where(_of.kind == kind, _of.uid > last).order_by(_of.uid).limit(BATCH)
        rows = [(str(row.uid), bytes(row.document)) for row in connection.execute(some)]
        if not rows:
            return
        yield rows
        last = rows[-1][0]
