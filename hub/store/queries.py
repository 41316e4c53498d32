"""Queries over stored objects, compiled to SQL: labels and fields are joined, no document is read to filter."""

from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, exists, func, select, tuple_

from hub.domain.change import Key, Kind, Query
from hub.store import schema
from machinery.selectors import Operator, Requirement

objects = schema.objects
KEY_FIELDS = {"metadata.name": objects.c.name, "metadata.namespace": objects.c.namespace}
ROW = (objects.c.namespace, objects.c.name, objects.c.uid, objects.c.revision, objects.c.document)


def one(kind: Kind, key: Key) -> Select[Any]:
    return select(*ROW).where(objects.c.kind == kind, objects.c.namespace == key.namespace, objects.c.name == key.name)


def many(kind: Kind, query: Query, limit: int | None) -> Select[Any]:
    """The objects of a query, in the order of their keys."""
    statement = select(*ROW).where(_selected(kind, query)).order_by(objects.c.namespace, objects.c.name)
    return statement if limit is None else statement.limit(limit)


def count(kind: Kind, query: Query) -> Select[Any]:
    return select(func.count()).select_from(objects).where(_selected(kind, query))


def _selected(kind: Kind, query: Query) -> ColumnElement[bool]:
    terms: list[ColumnElement[bool]] = [objects.c.kind == kind]
    if query.namespace is not None:
        terms.append(objects.c.namespace == query.namespace)
    if query.after is not None:
        terms.append(tuple_(objects.c.namespace, objects.c.name) > tuple_(query.after.namespace, query.after.name))
    terms += [_label_term(requirement) for requirement in query.labels]
    terms += [_field_term(requirement) for requirement in query.fields]
    return and_(*terms)


def _label_term(term: Requirement) -> ColumnElement[bool]:
    match term.operator:
        case Operator.EXISTS:
            return _has(schema.labels, term.name)
        case Operator.NOT_EXISTS:
            return ~_has(schema.labels, term.name)
        case Operator.EQUALS | Operator.IN:
            return _has(schema.labels, term.name, term.values)
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return ~_has(schema.labels, term.name, term.values)


def _field_term(term: Requirement) -> ColumnElement[bool]:
    wanted = term.operator in (Operator.EQUALS, Operator.IN)
    if term.name in KEY_FIELDS:
        column = KEY_FIELDS[term.name]
        return column.in_(term.values) if wanted else column.not_in(term.values)
    present = _has(schema.fields, term.name, term.values)
    if "" in term.values:
        present = present | ~_has(schema.fields, term.name)
    return present if wanted else ~present


def _has(table: Table, name: str, values: tuple[str, ...] | None = None) -> ColumnElement[bool]:
    """The object has an entry `name` in the side table, with one of the values if they are given."""
    entry = (table.c.uid == objects.c.uid) & (table.c.name == name)
    return exists().where(entry if values is None else entry & table.c.value.in_(values))
