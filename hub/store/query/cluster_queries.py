"""Queries over ManagedClusters that select, sort and group by the inventory.

Only the returned documents are read, at the end. All statements have the parameter `since`: flaps count from this time.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, false, func, literal, or_, select, true

from hub.api.meta.change import MANAGED_CLUSTERS, Kind
from hub.api.query.expressions import (
    PATTERN_TEXTS,
    PRESENT,
    By,
    FieldReference,
    FieldSource,
    PatternBudget,
    SortOrder,
    ValueSource,
)
from hub.api.query.selection import order_in, where_in
from hub.store import schema
from hub.store.query import filter_to_sql
from hub.store.query.inventory import KEPT, TABLES, Entries, inventory
from machinery.expression import Type, tree
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import Operator, Requirement

objects = schema.objects
ROW = (objects.c.namespace, objects.c.name, objects.c.uid, objects.c.revision, objects.c.document)
PLACE = len(ROW)
"""Columns from this index on contain the row's sort position."""
_KEYS = {"metadata.name": inventory.c.name, "metadata.namespace": inventory.c.namespace}
_WANTED = (Operator.EQUALS, Operator.IN)


def answers(kind: Kind, query: Query) -> bool:
    """Whether `page` and `number` serve the query: it selects or sorts ManagedClusters by more than namespace and name."""
    if kind != MANAGED_CLUSTERS:
        return False
    return bool(query.where or query.order or query.labels or any(term.name not in _KEYS for term in query.fields))


def page(query: Query, limit: int | None, dialect: str) -> Select[Any]:
    """Return the statement that selects the objects of `query` in its order, each row followed by its sort position."""
    compiled = _ClusterQuery(query, dialect)
    places = compiled.places()
    named = [place.label(f"by_{index}") for index, place in enumerate(places)]
    ordered = _ordered(compiled.keys, places, inventory.c.namespace, inventory.c.name)
    some = compiled.chosen(inventory.c.namespace, inventory.c.name, *named).order_by(*ordered).limit(limit)
    chosen = some.subquery("chosen")
    same = and_(
        objects.c.kind == literal(MANAGED_CLUSTERS), objects.c.namespace == chosen.c.namespace, objects.c.name == chosen.c.name
    )
    kept = [chosen.c[f"by_{index}"] for index in range(len(places))]
    ordered = _ordered(compiled.keys, kept, chosen.c.namespace, chosen.c.name)
    return select(*ROW, *kept).select_from(chosen.join(objects, same)).order_by(*ordered)


def number(query: Query, dialect: str) -> Select[Any]:
    return _ClusterQuery(query, dialect).chosen(func.count())


def groups(query: Query, facets: Sequence[FieldReference], dialect: str, sums: Sequence[FieldReference] = ()) -> Select[Any]:
    """Return the statement that counts the objects per combination of the texts of `facets` and the sort keys of `sums`."""
    compiled = _ClusterQuery(query, dialect)
    texts = [compiled.entries.text(facet.source) for facet in facets]
    keys = [compiled.entries.compared(facet.source) for facet in sums]
    named = [column.label(f"by_{index}") for index, column in enumerate((*texts, *keys))]
    chosen = compiled.chosen(*named).subquery("chosen")
    columns = [chosen.c[f"by_{index}"] for index in range(len(named))]
    return select(*columns, func.count()).group_by(*columns)


def agents(dialect: str) -> Select[Any]:
    """Return the statement that selects the name of each cluster and the cluster's values of the sources in PRESENT."""
    entries = Entries(dialect)
    columns = [entries.text(ValueSource(of, Type.TEXT)) for of in PRESENT]
    return select(inventory.c.name, *columns).select_from(entries.source)


def resolve_patterns(connection: Connection, query: Query, since: int) -> Query:
    """Replace each regular expression in `query.where` by the matching values of clusters that fulfil the query's other terms.

    Only flaps after `since` (in microseconds) count. Raises BadRequestError if an expression needs too many values or too much
    time.
    """
    where = where_in(query)
    if where is None or not where.patterns():
        return query
    whole = where.expression.tree
    others = [each for each in (whole.operands if isinstance(whole, tree.All) else (whole,)) if not any(tree.patterns(each))]

    def texts(operand: tree.Field | tree.MapEntry) -> list[str]:
        some = replace(query, where=where.with_tree(tree.All((*others, tree.Has(operand)))))
        compiled = _ClusterQuery(some, connection.dialect.name)
        column = compiled.entries.compared(filter_to_sql.source_of(where, operand))
        statement = compiled.chosen(column).distinct().limit(PATTERN_TEXTS + 1)
        return list(connection.execute(statement, {"since": since}).scalars())

    return replace(query, where=PatternBudget(time.thread_time).resolve(where, texts))


class _ClusterQuery:
    """A query's WHERE terms, and the entries that its columns need."""

    def __init__(self, query: Query, dialect: str) -> None:
        self._order = order_in(query) or SortOrder(())
        self.keys: Sequence[By] = self._order.keys
        self.entries = Entries(dialect)
        where = where_in(query)
        if where is not None:  # first, because columns depend on the required entries
            filter_to_sql.require(where, self.entries)
        self.terms: list[ColumnElement[bool]] = [true()]
        self.terms += [self._term(term, FieldSource.LABELS) for term in query.labels]
        self.terms += [self._term(term, FieldSource.FIELDS) for term in query.fields]
        if query.namespace is not None:
            self.terms.append(inventory.c.namespace == query.namespace)
        if where is not None:
            self.terms.append(filter_to_sql.condition(where, self.entries))
        if query.after is not None:
            self.terms.append(self._follows(query.after))

    def places(self) -> list[ColumnElement[Any]]:
        """Return the values by which the query sorts, one per sort key."""
        return [self.entries.compared(by.facet.source) for by in self.keys]

    def chosen(self, *columns: ColumnElement[Any]) -> Select[Any]:
        return select(*columns).select_from(self.entries.source).where(*self.terms)

    def _term(self, term: Requirement, of: FieldSource) -> ColumnElement[bool]:
        kept = KEPT.get((of, term.name))
        if of is FieldSource.FIELDS and term.name in _KEYS:
            return _among(_KEYS[term.name], term)
        if kept is not None and kept.text is not None:
            return _kept(kept.text, term, of)
        source = ValueSource(of, Type.TEXT, term.name)
        empty = of is FieldSource.FIELDS and "" in term.values
        if _is_joined(term, empty=empty):
            return self._joined(source, term, empty=empty)
        table = TABLES[of]
        named = select(table.c.uid).where(table.c.name == literal(term.name))
        if term.operator is not Operator.NOT_EXISTS:
            named = named.where(table.c.value.not_in(term.values) if empty else table.c.value.in_(term.values))
        return inventory.c.uid.not_in(named)

    def _joined(self, source: ValueSource, term: Requirement, *, empty: bool) -> ColumnElement[bool]:
        """A term that requires an entry of the object. A field with an empty value has no entry."""
        self.entries.require(source)
        value = self.entries.text(source)
        if term.operator is Operator.EXISTS:
            return value.is_not(None)
        return value.not_in(term.values) if empty else value.in_(term.values)

    def _follows(self, last: Key) -> ColumnElement[bool]:
        """The condition for objects after `last`, the last object of the previous page."""
        name = and_(inventory.c.namespace == last.namespace, inventory.c.name > last.name)
        behind: ColumnElement[bool] = or_(inventory.c.namespace > last.namespace, name)
        for by, value in reversed(list(zip(self.keys, self._order.after or (), strict=False))):
            column = self.entries.compared(by.facet.source)
            if value is None:
                behind = and_(column.is_(None), behind)
            else:
                beyond = column < value if by.falls else column > value
                behind = or_(column.is_(None), beyond, and_(column == value, behind))
        return behind


def _is_joined(term: Requirement, *, empty: bool) -> bool:
    """Whether an object must have an entry to fulfil the term."""
    if term.operator in (Operator.EXISTS, Operator.NOT_EXISTS):
        return term.operator is Operator.EXISTS
    return (term.operator in _WANTED) != empty


def _kept(column: ColumnElement[Any], term: Requirement, of: FieldSource) -> ColumnElement[bool]:
    """A term about an inventory column. A missing field equals ""; a missing label equals nothing."""
    if term.operator is Operator.EXISTS:
        return column.is_not(None)
    if term.operator is Operator.NOT_EXISTS:
        return column.is_(None)
    if of is FieldSource.FIELDS:
        return _among(func.coalesce(column, ""), term)
    return (
        and_(column.is_not(None), _among(column, term))
        if term.operator in _WANTED
        else or_(column.is_(None), _among(column, term))
    )


def _among(column: ColumnElement[Any], term: Requirement) -> ColumnElement[bool]:
    if not term.values:
        return false()
    return column.in_(term.values) if term.operator in _WANTED else column.not_in(term.values)


def _ordered(
    keys: Sequence[By], columns: Sequence[ColumnElement[Any]], namespace: ColumnElement[Any], name: ColumnElement[Any]
) -> list[ColumnElement[Any]]:
    """ORDER BY columns: missing values last, equal values by key."""
    found: list[ColumnElement[Any]] = []
    for by, column in zip(keys, columns, strict=True):
        found += [column.is_(None), column.desc() if by.falls else column.asc()]
    return [*found, namespace, name]
