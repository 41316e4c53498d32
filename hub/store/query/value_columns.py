"""Where values of ManagedClusters are in SQL: in the inventory's columns, in entries of the side tables, in the heartbeats.

Entries are joined. One that an object must have is found by an index, by its name and, where the condition says it, its value;
another one is looked up for each cluster.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Table, and_, case, collate, literal, select

from hub.api.meta.field_sources import FieldSource, ValueSource
from hub.store import schema
from hub.store.query.inventory import KEPT, inventory
from machinery.expression import Type

TABLES: Mapping[FieldSource, Table] = {FieldSource.LABELS: schema.labels, FieldSource.FIELDS: schema.fields}
_SECOND = 1_000_000
MOST_JOINED = 24
"""Entries of a statement that are joined: SQLite joins 64 tables at most. Further ones are looked up by a subquery each."""


class Entries:
    """What one statement over the inventory joins. First say what is required, then ask for columns, then for the source."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._required: dict[tuple[FieldSource, str], FromClause] = {}
        self._optional: dict[tuple[FieldSource, str], FromClause] = {}
        self._beats = False

    def require(self, source: ValueSource) -> None:
        """Only objects that have this entry count. Values that are no entries are left as they are."""
        place = (source.of, source.key)
        if source.of in TABLES and place not in KEPT and len(self._required) < MOST_JOINED // 2:
            self._required.setdefault(place, TABLES[source.of].alias(f"entry_{len(self._required)}"))

    def compared(self, source: ValueSource) -> ColumnElement[Any]:
        """What the value is compared by: a text, or an instant in microseconds; null: it has none."""
        if source.of in TABLES:
            return self._column(source, "sort" if source.type is not Type.TEXT and _has_order(source) else "value")
        if source.of is FieldSource.CREATION:
            made = inventory.c.created_at
            return made - made % _SECOND
        if source.of is FieldSource.NAME:
            return inventory.c.name
        self._beats = True
        beats = schema.heartbeats.c
        return beats.at if source.of is FieldSource.BEAT else case((beats.session.is_not(None), "true"), else_="false")

    def text(self, source: ValueSource) -> ColumnElement[Any]:
        """The value as people read it."""
        return self._column(source, "value") if source.of in TABLES else self.compared(source)

    def _column(self, source: ValueSource, column: str) -> ColumnElement[Any]:
        place = (source.of, source.key)
        kept = KEPT.get(place)
        found = None if kept is None else kept.order if column == "sort" else kept.text
        if found is not None:
            return found
        entry = self._required.get(place)
        if entry is None:
            entry = self._looked_up(place)
        return self._plain(self._by_subquery(place, column) if entry is None else entry.c[column], column)

    def _plain(self, column: ColumnElement[Any], name: str) -> ColumnElement[Any]:
        """Texts compare by their bytes on every database."""
        return collate(column, "C") if self.dialect == "postgresql" and name == "value" else column

    def _looked_up(self, place: tuple[FieldSource, str]) -> FromClause | None:
        """None: enough is joined already."""
        if place not in self._optional and len(self._required) + len(self._optional) >= MOST_JOINED:
            return None
        return self._optional.setdefault(place, TABLES[place[0]].alias(f"looked_up_{len(self._optional)}"))

    def _by_subquery(self, place: tuple[FieldSource, str], column: str) -> ColumnElement[Any]:
        table = TABLES[place[0]]
        chosen = and_(table.c.uid == inventory.c.uid, table.c.name == literal(place[1]))
        return select(table.c[column]).where(chosen).correlate(inventory).scalar_subquery()

    @property
    def source(self) -> FromClause:
        """The inventory with all that was asked for."""
        found: FromClause = inventory
        for (_, key), entry in self._required.items():
            found = found.join(entry, and_(entry.c.uid == inventory.c.uid, entry.c.name == literal(key)))
        for (_, key), entry in self._optional.items():
            found = found.outerjoin(entry, and_(entry.c.uid == inventory.c.uid, entry.c.name == literal(key)))
        if self._beats:
            found = found.outerjoin(schema.heartbeats, schema.heartbeats.c.cluster == inventory.c.name)
        return found


def _has_order(source: ValueSource) -> bool:
    return isinstance(source.type, Type) and source.type.has_order
