"""Columns for queries over clusters: columns of the inventory, and labels and fields that the inventory does not have.

Triggers fill the inventory from `objects`, `fields` and `labels`, whichever release writes these tables. Only `reindex` writes
the inventory directly. Backups omit it.

A required entry (a row of `labels` or `fields`) is an inner join, which can use the index on name and value. An optional entry
is looked up per cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Table,
    Text,
    and_,
    case,
    cast,
    collate,
    func,
    literal,
    null,
    select,
)

from hub.api.certificates import Purpose
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.query.expressions import FieldSource, ValueSource
from hub.api.query.selection import AGENT_VERSION, CAPACITY, CLUSTER_ALIASES, HUB_ACCEPTS, VERSION
from hub.store import schema
from hub.store.schema import Counter, KeyText, columns, metadata
from hub.store.tables.liveness import FALLS_BY_CLUSTER
from machinery.expression import Type, parse_version
from machinery.expression.types import sort_key

inventory = Table(
    "inventory",
    metadata,
    Column("uid", Text, primary_key=True),
    *columns(KeyText, "namespace", "name", nullable=False),
    Column("created_at", Counter, nullable=False),
    *columns(KeyText, "cluster_set", "version", "version_order", "agent_version", "agent_order"),
    *columns(KeyText, "accepted", "joined", "available", "clock_synced", "cpu", "memory", "nodes"),
    sqlite_with_rowid=False,
)


@dataclass(frozen=True, slots=True)
class InventoryColumns:
    """Columns of a value: its text, and its comparison key. None: not in the inventory."""

    text: Column[Any] | None = None
    order: Column[Any] | None = None


_column = inventory.c
KEPT: Mapping[tuple[FieldSource, str], InventoryColumns] = {
    (FieldSource.LABELS, SET_LABEL): InventoryColumns(_column.cluster_set),
    (FieldSource.FIELDS, VERSION): InventoryColumns(_column.version, _column.version_order),
    (FieldSource.FIELDS, AGENT_VERSION): InventoryColumns(_column.agent_version, _column.agent_order),
    (FieldSource.FIELDS, HUB_ACCEPTS): InventoryColumns(_column.accepted),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.joined"]): InventoryColumns(_column.joined),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.available"]): InventoryColumns(_column.available),
    (FieldSource.FIELDS, CLUSTER_ALIASES["status.clockSynced"]): InventoryColumns(_column.clock_synced),
    (FieldSource.FIELDS, f"{CAPACITY}cpu"): InventoryColumns(order=_column.cpu),
    (FieldSource.FIELDS, f"{CAPACITY}memory"): InventoryColumns(order=_column.memory),
    (FieldSource.FIELDS, f"{CAPACITY}nodes"): InventoryColumns(order=_column.nodes),
}
"""The inventory's columns, by source and key of the value that database triggers copy into them."""


TABLES: Mapping[FieldSource, Table] = {FieldSource.LABELS: schema.labels, FieldSource.FIELDS: schema.fields}
_SECOND = 1_000_000
MOST_JOINED = 24
"""Largest number of joined entries. Further entries are subqueries, because SQLite joins at most 64 tables."""
_beat = schema.heartbeats.c
_falls = FALLS_BY_CLUSTER.subquery("falls")
_certificate = schema.certificates.c
_ends = (
    select(_certificate.cluster, func.max(_certificate.not_after).label("at"))
    .where(_certificate.purpose == Purpose.AGENT.value, _certificate.revoked_at.is_(None))
    .group_by(_certificate.cluster)
    .subquery("ends")
)
_FLAPS = func.coalesce(_falls.c.falls, 0)
_DIGITS = cast(_FLAPS, Text)
_AGENT: Mapping[FieldSource, ColumnElement[Any]] = {
    FieldSource.BEAT: _beat.at,
    FieldSource.SESSION: case((_beat.session.is_not(None), "true"), else_="false"),
    FieldSource.REPLICA: schema.sessions.c.replica,
    FieldSource.DRIVER: case((_beat.agent_version.is_not(None), "grpc"), (_beat.at.is_not(None), "csr")),
    FieldSource.FLAPS: _DIGITS,
    FieldSource.CERTIFICATE: func.coalesce(_ends.c.at, null()),
}
"""Only a session records the version of its agent, so a cluster with beats and without a version uses the Kubernetes API. The
subqueries FLAPS and CERTIFICATE are always outer joins: for an inner join, SQLite would read the whole inventory for each row
of the subquery.
"""
_ONE = sort_key(Fraction(1))
_FLAPS_ORDER = case(
    (_FLAPS == 0, sort_key(Fraction())),
    else_=literal(_ONE[0]).concat(cast(func.length(_DIGITS) + (int(_ONE[1:4]) - 1), Text)).concat(func.rtrim(_DIGITS, "0")),
)
"""SQL that computes the `sort_key` of the number of flaps."""
_version = inventory.c.version_order
_MAJOR_LENGTH = cast(func.substr(_version, 1, 2), Integer)
_MINOR_LENGTH = cast(func.substr(_version, 3 + _MAJOR_LENGTH, 2), Integer)
_MINOR = func.substr(_version, 3, _MAJOR_LENGTH).concat(".").concat(func.substr(_version, 5 + _MAJOR_LENGTH, _MINOR_LENGTH))
_MINOR_ORDER = func.substr(_version, 1, 4 + _MAJOR_LENGTH + _MINOR_LENGTH).concat(sort_key(parse_version("0.0"))[6:])
"""Text and sort key of the minor version, from the sort key of the whole version, in which a two-digit length precedes each
number."""


class Entries:
    """Collects the joins of a statement over the inventory. Call `require` first, then `compared` and `text`, then `source`."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._required: dict[tuple[FieldSource, str], FromClause] = {}
        self._optional: dict[tuple[FieldSource, str], FromClause] = {}
        self._agent: set[FieldSource] = set()

    def require(self, source: ValueSource) -> None:
        """Select only objects that have this entry. A source whose values are not entries has no effect."""
        place = (source.of, source.key)
        if source.of in TABLES and place not in KEPT and len(self._required) < MOST_JOINED // 2:
            self._required.setdefault(place, TABLES[source.of].alias(f"entry_{len(self._required)}"))

    def compared(self, source: ValueSource) -> ColumnElement[Any]:
        """Return the column with the value's comparison key: a text, or an instant in microseconds. A missing value is NULL."""
        if source.of in TABLES:
            return self._column(source, "sort" if source.type is not Type.TEXT and _has_order(source) else "value")
        if source.of is FieldSource.CREATION:
            made = inventory.c.created_at
            return made - made % _SECOND
        if source.of is FieldSource.NAME:
            return inventory.c.name
        if source.of is FieldSource.MINOR:
            return _MINOR_ORDER
        self._agent.add(source.of)
        if source.of is FieldSource.FLAPS:
            return self._plain(_FLAPS_ORDER, "value")
        found = _AGENT[source.of]
        return self._plain(found, "value") if source.of is FieldSource.REPLICA else found

    def text(self, source: ValueSource) -> ColumnElement[Any]:
        """Return the column with the value as displayed."""
        if source.of is FieldSource.MINOR:
            return _MINOR
        if source.of is FieldSource.FLAPS:
            self._agent.add(source.of)
            return _DIGITS
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
        """The optional join for this entry; None: the statement already joins MOST_JOINED entries."""
        if place not in self._optional and len(self._required) + len(self._optional) >= MOST_JOINED:
            return None
        return self._optional.setdefault(place, TABLES[place[0]].alias(f"looked_up_{len(self._optional)}"))

    def _by_subquery(self, place: tuple[FieldSource, str], column: str) -> ColumnElement[Any]:
        table = TABLES[place[0]]
        chosen = and_(table.c.uid == inventory.c.uid, table.c.name == literal(place[1]))
        return select(table.c[column]).where(chosen).correlate(inventory).scalar_subquery()

    @property
    def source(self) -> FromClause:
        found: FromClause = inventory
        for (_, key), entry in self._required.items():
            found = found.join(entry, and_(entry.c.uid == inventory.c.uid, entry.c.name == literal(key)))
        for (_, key), entry in self._optional.items():
            found = found.outerjoin(entry, and_(entry.c.uid == inventory.c.uid, entry.c.name == literal(key)))
        if not self._agent <= {FieldSource.FLAPS, FieldSource.CERTIFICATE}:
            found = found.outerjoin(schema.heartbeats, _beat.cluster == inventory.c.name)
        if FieldSource.REPLICA in self._agent:
            here = schema.sessions.c
            found = found.outerjoin(schema.sessions, and_(here.cluster == _beat.cluster, here.session == _beat.session))
        for of, table in ((FieldSource.FLAPS, _falls), (FieldSource.CERTIFICATE, _ends)):
            if of in self._agent:
                found = found.outerjoin(table, table.c.cluster == inventory.c.name)
        return found


def _has_order(source: ValueSource) -> bool:
    return isinstance(source.type, Type) and source.type.has_order
