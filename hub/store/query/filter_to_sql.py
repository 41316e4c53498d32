"""Compiles filter expressions to SQL without reading documents. A missing value is NULL, so a comparison with it is NULL."""

import json
from dataclasses import dataclass
from datetime import timedelta
from operator import eq, ge, gt, le, lt, ne
from typing import Any, assert_never

from sqlalchemy import ARRAY, ColumnElement, Text, and_, any_, case, exists, false, func, literal, not_, null, or_, select, true

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.expressions import FieldSource, ValueSource, Where
from hub.store.engine.encoding import to_micros
from hub.store.query.inventory import TABLES, Entries, inventory
from hub.store.schema import objects
from machinery.expression import Type, tree
from machinery.expression.types import Scalar, sort_key

_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_MICROSECOND = timedelta(microseconds=1)
MOST_LISTED = 32
"""Largest number of values in a list that a statement passes as separate SQL parameters."""


def condition(where: Where, entries: Entries) -> ColumnElement[bool]:
    """Return the expression of `where` as SQL, for the WHERE of a statement over the inventory that joins `entries`."""
    return _Compiler(where, entries).condition(where.expression.tree)


def require(where: Where, entries: Entries) -> None:
    """Mark in `entries` the values that an object must have for the condition to be true. An index then finds the objects."""
    for found in _required(where, where.expression.tree):
        entries.require(found)


def _required(where: Where, node: tree.Condition) -> list[ValueSource]:  # noqa: PLR0911 - one per kind of node
    match node:
        case tree.All(operands):
            return [found for operand in operands for found in _required(where, operand)]
        case tree.Not(tree.Compare() | tree.OneOf() | tree.Match() as operand):
            return _required(where, operand)  # without such an entry, the negation is also unknown
        case tree.Compare(_, left, right):
            return [source_of(where, each) for each in (left, right) if isinstance(each, tree.Field | tree.MapEntry)]
        case tree.OneOf(operand, _) | tree.Match(_, operand, _) | tree.IsTrue(operand):
            return [source_of(where, operand)] if isinstance(operand, tree.Field | tree.MapEntry) else []
        case tree.Has(tree.Field() | tree.MapEntry() as what):
            return [source_of(where, what)]
        case tree.In(tree.Value(value=str(key)), collection):
            return [_entry(where, collection.name, key)]
        case _:
            return []


def source_of(where: Where, operand: tree.Field | tree.MapEntry) -> ValueSource:
    source = where.sources[operand.name]
    key = source.key + operand.key if isinstance(operand, tree.MapEntry) else source.key
    return ValueSource(source.of, operand.type, key)


def _entry(where: Where, name: str, key: str) -> ValueSource:
    source = where.sources[name]
    return ValueSource(source.of, Type.TEXT, source.key + key)


@dataclass(frozen=True, slots=True)
class _Compiler:
    where: Where
    entries: Entries

    def condition(self, node: tree.Condition) -> ColumnElement[bool]:  # noqa: C901, PLR0911 - one per node
        match node:
            case tree.All(operands):
                return and_(true(), *(self.condition(operand) for operand in operands))
            case tree.Any(operands):
                return or_(false(), *(self.condition(operand) for operand in operands))
            case tree.Not(operand):
                return not_(self.condition(operand))
            case tree.Has(what):
                return self._whole(what.name) if isinstance(what, tree.CollectionField) else self._operand(what).is_not(None)
            case tree.IsTrue(operand):
                return self._operand(operand) == literal("true")
            case tree.Compare(sign, left, right):
                compared: ColumnElement[bool] = _COMPARE[sign](self._operand(left), self._operand(right))
                return compared
            case tree.OneOf(operand, values):
                found, listed = self._operand(operand), [self._literal(value) for value in values]
                if found is inventory.c.name:
                    return self._is_named(listed)
                return _unless_missing(found, self._among(found, listed))
            case tree.In(operand, collection):
                return self._is_key(operand, collection.name)
            case tree.Match(function, operand, argument):
                return self._matches(function, self._operand(operand), argument)
            case tree.PatternMatch():
                msg = "regular expressions are replaced before a statement is built"
                raise NotImplementedError(msg)
            case _:
                assert_never(node)

    def _among(self, found: ColumnElement[Any], values: list[str | int]) -> ColumnElement[bool]:
        """Pass many values (of a regular expression) as one parameter, because databases limit the number of parameters."""
        if len(values) <= MOST_LISTED:
            return found.in_(values)
        if self.entries.dialect == "sqlite":
            return found.in_(select(func.json_each(json.dumps(values)).table_valued("value").c.value))
        return found == any_(literal(values, ARRAY(Text)))

    def _is_named(self, names: list[str | int]) -> ColumnElement[bool]:
        """Compare the key of the objects, because the inventory has no index on names and would be read completely."""
        key = objects.c
        of_clusters = and_(key.kind == literal(MANAGED_CLUSTERS), key.namespace == "")
        return inventory.c.uid.in_(select(key.uid).where(of_clusters, self._among(key.name, names)))

    def _operand(self, operand: tree.Operand) -> ColumnElement[Any]:
        if isinstance(operand, tree.Value):
            return literal(self._literal(operand.value))
        source = source_of(self.where, operand)
        found = self.entries.compared(source)
        if source.type is not Type.DURATION:
            return found
        now = literal(to_micros(self.where.now))
        return found - now if source.of is FieldSource.CERTIFICATE else now - found

    def _literal(self, value: Scalar) -> str | int:
        """The value in the form of the operand to which it is compared."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, timedelta):
            return value // _MICROSECOND
        return value if isinstance(value, str) else sort_key(value)

    def _whole(self, name: str) -> ColumnElement[bool]:
        source = self.where.sources[name]
        table = TABLES[source.of]
        begins = func.substr(table.c.name, 1, len(source.key)) == source.key
        return exists().where(table.c.uid == inventory.c.uid, begins if source.key else true()).correlate(inventory)

    def _is_key(self, operand: tree.Operand, name: str) -> ColumnElement[bool]:
        if isinstance(operand, tree.Value):
            return self.entries.text(_entry(self.where, name, str(operand.value))).is_not(None)
        source, found = self.where.sources[name], self._operand(operand)
        table = TABLES[source.of]
        key = literal(source.key) + found if source.key else found
        named = select(table.c.uid).where(table.c.uid == inventory.c.uid, table.c.name == key)
        return _unless_missing(found, named.correlate_except(table).exists())

    def _matches(self, function: tree.TextFunction, text: ColumnElement[Any], argument: str) -> ColumnElement[bool]:
        length, is_sqlite = len(argument), self.entries.dialect == "sqlite"
        match function:
            case "startsWith":
                return func.substr(text, 1, length) == argument
            case "endsWith":
                long_enough = func.length(text) >= length
                return and_(long_enough, func.substr(text, func.length(text) - length + 1) == argument)
            case "contains":
                place = func.instr(text, argument) if is_sqlite else func.strpos(text, argument)
                return place > 0
            case "matches" if is_sqlite:
                return text.op("GLOB", is_comparison=True)(_glob(argument))
            case "matches":
                return text.like(_like(argument), escape="\\")
            case _:
                assert_never(function)


def _unless_missing(operand: ColumnElement[Any], found: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return NULL for a missing operand, because databases return false for NULL in an empty list."""
    return case((operand.is_(None), null()), else_=found)


def _glob(pattern: str) -> str:
    """GLOB pattern for SQLite, in which brackets are special and also quote."""
    return "".join(f"[{sign}]" if sign in "*?[" and quoted else sign for sign, quoted in _signs(pattern))


def _like(pattern: str) -> str:
    """LIKE pattern for PostgreSQL, with a backslash before literal wildcards."""
    wild = {"*": "%", "?": "_"}
    return "".join((f"\\{sign}" if sign in "%_\\" else sign) if quoted else wild[sign] for sign, quoted in _signs(pattern))


def _signs(pattern: str) -> list[tuple[str, bool]]:
    """The characters of a pattern, and whether each is literal."""
    found, escaped = [], False
    for sign in pattern:
        if escaped or sign not in "*?\\":
            found.append((sign, True))
            escaped = False
        elif sign == "\\":
            escaped = True
        else:
            found.append((sign, False))
    return found
