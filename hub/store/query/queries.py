"""Compiles queries over stored objects to SQL. Filters use the tables of labels and fields and read no documents.

Building a statement costs more than running it, so statements are cached by the shape of their query, without its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    and_,
    bindparam,
    exists,
    func,
    select,
    tuple_,
)

from hub.api.meta.change import MANAGED_CLUSTERS, Kind
from hub.api.query.expressions import FieldSource
from hub.store import schema
from hub.store.engine.statements import Rows, Statement
from hub.store.query import cluster_queries
from hub.store.query.inventory import KEPT
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import Operator, Requirement

objects = schema.objects
KEY_FIELDS = {"metadata.name": objects.c.name, "metadata.namespace": objects.c.namespace}
ROW = cluster_queries.ROW
PLACE = cluster_queries.PLACE
_OF_VALUES = (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN, Operator.NOT_IN)
_OF_KIND = objects.c.kind == bindparam("kind")

ONE = Statement(
    select(*ROW).where(_OF_KIND, objects.c.namespace == bindparam("namespace"), objects.c.name == bindparam("name"))
)
"""Selects one object. Parameters: kind, namespace and name."""

ANY = Statement(select(objects.c.uid).where(_OF_KIND).limit(1))
"""Selects the uid of any one object of a kind. Parameter: kind."""

_OF_NAMES = select(*ROW).where(
    _OF_KIND, objects.c.namespace == bindparam("namespace"), objects.c.name.in_(bindparam("names", expanding=True))
)
"""Parameters: kind, namespace and names."""

_VALUE = func.coalesce(schema.fields.c.value, "")
_NAMED = and_(schema.fields.c.uid == objects.c.uid, schema.fields.c.name == bindparam("field"))
MOST_JOINED = 8
"""Largest number of joined terms per selector. Further terms are subqueries, because SQLite joins at most 64 tables."""
_WITH_FIELD = objects.outerjoin(schema.fields, _NAMED)
_TALLY = select(_VALUE, func.count()).select_from(_WITH_FIELD).where(_OF_KIND).group_by(_VALUE)
"""Parameters: kind and field."""

VALUES = (
    select(objects.c.namespace, objects.c.name, schema.fields.c.value)
    .select_from(objects.join(schema.fields, _NAMED))
    .where(_OF_KIND, schema.fields.c.value != "")
)
"""Selects the keys of objects with their values of a field, without empty values. Parameters: kind and field."""


def tally(kind: Kind, field: str) -> Select[Any, int]:
    """Return the statement that counts objects per value of the field ("": without a value). Parameters: kind and field."""
    kept = KEPT.get((FieldSource.FIELDS, field)) if kind == MANAGED_CLUSTERS else None
    if kept is None or kept.text is None:
        return _TALLY
    value = func.coalesce(kept.text, "")
    return select(value, func.count()).group_by(value)


# the change log has the last change of every existing object, even if it is old
WRITTEN_BEFORE = Statement(
    select(objects.c.namespace, objects.c.name, objects.c.revision)
    .join(schema.changes, schema.changes.c.revision == objects.c.revision)
    .where(_OF_KIND, schema.changes.c.at < bindparam("moment"))
    .order_by(objects.c.revision)
    .limit(bindparam("limit", type_=Integer))
)
"""Selects keys and revisions, by a scan over all objects of the kind. Parameters: kind, moment (in microseconds) and limit."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A requirement of a selector without its values, so that statements can be cached."""

    name: str
    operator: Operator
    is_field: bool
    has_empty: bool
    is_one: bool
    """The requirement has one value, so the statement needs no list that is expanded at each execution."""


@dataclass(frozen=True, slots=True)
class _Shape:
    namespaced: bool
    after: bool
    labels: tuple[_Term, ...]
    fields: tuple[_Term, ...]


def many(kind: Kind, query: Query, limit: int | None, dialect: str) -> tuple[Select[Any], dict[str, Any]]:
    """Return the statement that selects the objects of a query in the query's order, and the values of its parameters."""
    if cluster_queries.answers(kind, query):
        return cluster_queries.page(query, limit, dialect), {}
    statement, values = _many(_shape(query)), _values(kind, query)
    return (statement, values) if limit is None else (statement.limit(limit), values)


def count(kind: Kind, query: Query, dialect: str) -> tuple[Select[Any], dict[str, Any]]:
    """Return the statement that counts the objects of a query, and the values of its parameters."""
    if cluster_queries.answers(kind, query):
        return cluster_queries.number(query, dialect), {}
    return _number(_shape(query)), _values(kind, query)


def found(connection: Connection, kind: Kind, query: Query, limit: int | None, since: int) -> Rows:
    """Run `many`, if possible as a prepared statement. Only flaps after `since` (in microseconds) count."""
    prepared = None if cluster_queries.answers(kind, query) else _prepared(_shape(query), limited=limit is not None)
    if prepared is not None:
        return prepared.rows(connection, {**_values(kind, query), "limit": limit})
    statement, values = many(kind, query, limit, connection.dialect.name)
    return [tuple(row) for row in connection.execute(statement, {**values, "since": since})]


def each(connection: Connection, kind: Kind, keys: Sequence[Key]) -> Rows:
    """Return the rows of the objects with these keys, unordered. Runs one statement per namespace."""
    rows: list[tuple[Any, ...]] = []
    for namespace in {key.namespace for key in keys}:
        names = [key.name for key in keys if key.namespace == namespace]
        values = {"kind": kind, "namespace": namespace, "names": names}
        rows += [tuple(row) for row in connection.execute(_OF_NAMES, values)]
    return rows


@lru_cache(maxsize=256)
def _many(shape: _Shape) -> Select[Any]:
    return select(*ROW).select_from(_source(shape)).where(_selected(shape)).order_by(objects.c.namespace, objects.c.name)


@lru_cache(maxsize=256)
def _number(shape: _Shape) -> Select[Any]:
    return select(func.count()).select_from(_source(shape)).where(_selected(shape))


@lru_cache(maxsize=256)
def _prepared(shape: _Shape, *, limited: bool) -> Statement | None:
    """Return the prepared statement; None if the statement's text depends on the number of values."""
    if any(term.operator in _OF_VALUES and not term.is_one for term in (*shape.labels, *shape.fields)):
        return None
    statement = _many(shape)
    return Statement(statement.limit(bindparam("limit", type_=Integer)) if limited else statement)


def _shape(query: Query) -> _Shape:
    return _Shape(
        namespaced=query.namespace is not None,
        after=query.after is not None,
        labels=tuple(_term(term, is_field=False) for term in query.labels),
        fields=tuple(_term(term, is_field=True) for term in query.fields),
    )


def _term(term: Requirement, *, is_field: bool) -> _Term:
    return _Term(term.name, term.operator, is_field, "" in term.values, len(term.values) == 1)


def _values(kind: Kind, query: Query) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": kind}
    if query.namespace is not None:
        values["namespace"] = query.namespace
    if query.after is not None:
        values |= {"after_name": query.after.name}
        values |= {"after_namespace": query.after.namespace} if query.namespace is None else {}
    for side, terms in (("label", query.labels), ("field", query.fields)):
        for index, term in enumerate(terms):
            if term.values:
                values[f"{side}{index}"] = term.values[0] if len(term.values) == 1 else list(term.values)
    return values


def _source(shape: _Shape) -> FromClause:
    """Objects, joined with a side-table entry for each term that requires one. At most one entry matches an object."""
    source: FromClause = objects
    for table, side, terms in ((schema.labels, "label", shape.labels), (schema.fields, "field", shape.fields)):
        for index, term in enumerate(terms):
            if _is_joined(term, index):
                entry = table.alias(f"{side}_{index}")
                chosen = None if term.operator is Operator.EXISTS else f"{side}{index}"
                source = source.join(entry, _entry(entry, term, chosen))
    return source


def _selected(shape: _Shape) -> ColumnElement[bool]:
    terms: list[ColumnElement[bool]] = [_OF_KIND]
    if shape.namespaced:
        terms.append(objects.c.namespace == bindparam("namespace"))
    if shape.after and shape.namespaced:
        terms.append(objects.c.name > bindparam("after_name"))
    elif shape.after:
        key = tuple_(objects.c.namespace, objects.c.name)
        terms.append(key > tuple_(bindparam("after_namespace"), bindparam("after_name")))
    terms += [_label_term(term, f"label{index}") for index, term in enumerate(shape.labels) if not _is_joined(term, index)]
    terms += [_field_term(term, f"field{index}") for index, term in enumerate(shape.fields) if not _is_joined(term, index)]
    return and_(*terms)


def _is_joined(term: _Term, index: int) -> bool:
    """Whether the term is a join: it requires an entry, and is one of the first terms. An empty field has no entry."""
    if index >= MOST_JOINED or term.name in KEY_FIELDS or (term.is_field and term.has_empty):
        return False
    return term.operator in (Operator.EQUALS, Operator.IN, Operator.EXISTS)


def _label_term(term: _Term, values: str) -> ColumnElement[bool]:
    present = _has(schema.labels, term, None if term.operator in (Operator.EXISTS, Operator.NOT_EXISTS) else values)
    return present if term.operator in (Operator.EQUALS, Operator.IN, Operator.EXISTS) else ~present


def _field_term(term: _Term, values: str) -> ColumnElement[bool]:
    wanted = term.operator in (Operator.EQUALS, Operator.IN)
    if term.name in KEY_FIELDS:
        chosen = _is_chosen(KEY_FIELDS[term.name], term, values)
        return chosen if wanted else ~chosen
    present = _has(schema.fields, term, values)
    if term.has_empty:
        present |= ~_has(schema.fields, term, None)
    return present if wanted else ~present


def _has(table: Table, term: _Term, values: str | None) -> ColumnElement[bool]:
    return exists().where(_entry(table, term, values))


def _entry(table: FromClause, term: _Term, values: str | None) -> ColumnElement[bool]:
    """Condition for the term's entry of the object in a side table, optionally with one of its values."""
    entry = (table.c.uid == objects.c.uid) & (table.c.name == term.name)
    return entry if values is None else entry & _is_chosen(table.c.value, term, values)


def _is_chosen(column: ColumnElement[str], term: _Term, values: str) -> ColumnElement[bool]:
    return column == bindparam(values) if term.is_one else column.in_(bindparam(values, expanding=True))
