"""Maps values of ManagedClusters to SQL columns of the inventory, of joined entries or of heartbeats.

A required entry is an inner join that an index on name and value finds; an optional one is looked up per cluster.
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
"""Joined entries of a statement; further ones are subqueries, because SQLite joins at most 64 tables."""


class Entries:
    """Joins of a statement over the inventory. Call `require` first, then ask for columns, then for `source`."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._required: dict[tuple[FieldSource, str], FromClause] = {}
        self._optional: dict[tuple[FieldSource, str], FromClause] = {}
        self._beats = False

    def require(self, source: ValueSource) -> None:
        """Select only objects that have this entry. No effect for values that are not entries."""
        place = (source.of, source.key)
        if source.of in TABLES and place not in KEPT and len(self._required) < MOST_JOINED // 2:
            self._required.setdefault(place, TABLES[source.of].alias(f"entry_{len(self._required)}"))

    def compared(self, source: ValueSource) -> ColumnElement[Any]:
        """The comparison key: a text, or an instant in microseconds; null if missing."""
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
        """The value as displayed."""
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
        """Collate text by bytes, as SQLite does."""
        return collate(column, "C") if self.dialect == "postgresql" and name == "value" else column

    def _looked_up(self, place: tuple[FieldSource, str]) -> FromClause | None:
        """None: MOST_JOINED entries are joined already."""
        if place not in self._optional and len(self._required) + len(self._optional) >= MOST_JOINED:
            return None
        return self._optional.setdefault(place, TABLES[place[0]].alias(f"looked_up_{len(self._optional)}"))

    def _by_subquery(self, place: tuple[FieldSource, str], column: str) -> ColumnElement[Any]:
        table = TABLES[place[0]]
        chosen = and_(table.c.uid == inventory.c.uid, table.c.name == literal(place[1]))
        return select(table.c[column]).where(chosen).correlate(inventory).scalar_subquery()

    @property
    def source(self) -> FromClause:
        """The inventory with all joins."""
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
