"""Conditions compiled to SQL. What is missing is NULL, so that unknown is unknown in both languages.

Values are found by the primary key of the side tables; versions and quantities by texts that sort as they do. No document is
read.
"""

from dataclasses import dataclass
from datetime import timedelta
from operator import eq, ge, gt, le, lt, ne
from typing import Any, assert_never

from sqlalchemy import ColumnElement, and_, case, exists, false, func, literal, not_, null, or_, select, true

from hub.domain.where import Of, Source, Where
from hub.store import schema
from hub.store.instants import to_micros
from machinery.expression import Type, tree
from machinery.expression.sorting import sort_key
from machinery.expression.types import Scalar
from machinery.selectors import Operator, Requirement

_COMPARE = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_SECOND = 1_000_000
_MICROSECOND = timedelta(microseconds=1)
_TABLES = {Of.LABELS: schema.labels, Of.FIELDS: schema.fields}


def condition(where: Where, dialect: str) -> ColumnElement[bool]:
    """For a statement over `objects`; it holds where it is true."""
    return _Compiler(where, dialect).condition(where.expression.tree)


def hoisted(where: Where) -> tuple[tuple[Requirement, ...], tuple[Requirement, ...]]:
    """What must be so in any case, as requirements of labels and of fields: those are found by an index."""
    found: dict[Of, list[Requirement]] = {Of.LABELS: [], Of.FIELDS: []}
    for name, key, wanted in _equal_texts(where.expression.tree):
        source = where.sources[name]
        if source.of in found and wanted:
            found[source.of].append(Requirement(source.key + key, Operator.EQUALS, (wanted,)))
    return tuple(found[Of.LABELS]), tuple(found[Of.FIELDS])


def _equal_texts(node: tree.Condition) -> list[tuple[str, str, str]]:
    """Word, key in its map ("" for none) and text of what the condition compares with == and cannot do without."""
    match node:
        case tree.All(operands):
            return [found for operand in operands for found in _equal_texts(operand)]
        case tree.Compare("==", tree.Field(name, Type.TEXT), tree.Value(value=str(wanted))):
            return [(name, "", wanted)]
        case tree.Compare("==", tree.Entry(name, key, Type.TEXT), tree.Value(value=str(wanted))):
            return [(name, key, wanted)]
        case _:
            return []


@dataclass(frozen=True, slots=True)
class _Compiler:
    where: Where
    dialect: str

    def condition(self, node: tree.Condition) -> ColumnElement[bool]:  # noqa: PLR0911 - one per node
        match node:
            case tree.All(operands):
                return and_(true(), *(self.condition(operand) for operand in operands))
            case tree.Any(operands):
                return or_(false(), *(self.condition(operand) for operand in operands))
            case tree.Not(operand):
                return not_(self.condition(operand))
            case tree.Has(what):
                return self._whole(what.name) if isinstance(what, tree.Whole) else self._operand(what).is_not(None)
            case tree.Truth(operand):
                return self._operand(operand) == literal("true")
            case tree.Compare(sign, left, right):
                compared: ColumnElement[bool] = _COMPARE[sign](self._operand(left), self._operand(right))
                return compared
            case tree.OneOf(operand, values):
                found = self._operand(operand)
                return _unless_missing(found, found.in_([self._literal(value) for value in values]))
            case tree.In(operand, whole):
                return self._is_key(self._operand(operand), whole.name)
            case tree.Match(function, operand, argument):
                return self._matches(function, self._operand(operand), argument)
            case _:
                assert_never(node)

    def _operand(self, operand: tree.Operand) -> ColumnElement[Any]:
        match operand:
            case tree.Value(value=value):
                return literal(self._literal(value))
            case tree.Field(name, kind):
                return self._value(self.where.sources[name], kind)
            case tree.Entry(name, key, kind):
                source = self.where.sources[name]
                return self._value(Source(source.of, kind, source.key + key), kind)

    def _value(self, source: Source, kind: Type) -> ColumnElement[Any]:
        if source.of is Of.NAME:
            return schema.objects.c.name
        if source.of is Of.CREATION:
            made = schema.objects.c.created_at
            return literal(to_micros(self.where.now)) - (made - made % _SECOND)
        table = _TABLES[source.of]
        column = table.c.sort if kind.has_order else table.c.value
        found = select(column).where(table.c.uid == schema.objects.c.uid, table.c.name == source.key)
        return found.correlate(schema.objects).scalar_subquery()

    def _literal(self, value: Scalar) -> str | int:
        """As the operand that it is compared with has it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, timedelta):
            return value // _MICROSECOND
        return value if isinstance(value, str) else sort_key(value)

    def _whole(self, name: str) -> ColumnElement[bool]:
        source = self.where.sources[name]
        table = _TABLES[source.of]
        begins = func.substr(table.c.name, 1, len(source.key)) == source.key
        return exists().where(table.c.uid == schema.objects.c.uid, begins if source.key else true()).correlate(schema.objects)

    def _is_key(self, operand: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        source = self.where.sources[name]
        table = _TABLES[source.of]
        key = literal(source.key) + operand if source.key else operand
        entry = exists().where(table.c.uid == schema.objects.c.uid, table.c.name == key).correlate(schema.objects)
        return _unless_missing(operand, entry)

    def _matches(self, function: tree.TextFunction, text: ColumnElement[Any], argument: str) -> ColumnElement[bool]:
        length = len(argument)
        match function:
            case "startsWith":
                return func.substr(text, 1, length) == argument
            case "endsWith":
                long_enough = func.length(text) >= length
                return and_(long_enough, func.substr(text, func.length(text) - length + 1) == argument)
            case "contains":
                place = func.instr(text, argument) if self.dialect == "sqlite" else func.strpos(text, argument)
                return place > 0
            case "matches" if self.dialect == "sqlite":
                return text.op("GLOB", is_comparison=True)(_glob(argument))
            case "matches":
                return text.like(_like(argument), escape="\\")
            case _:
                assert_never(function)


def _unless_missing(operand: ColumnElement[Any], found: ColumnElement[bool]) -> ColumnElement[bool]:
    """Databases say of NULL in nothing that it is false."""
    return case((operand.is_(None), null()), else_=found)


def _glob(pattern: str) -> str:
    """For SQLite, in which brackets are wild, too, and quote."""
    return "".join(f"[{sign}]" if sign in "*?[" and quoted else sign for sign, quoted in _signs(pattern))


def _like(pattern: str) -> str:
    """For PostgreSQL, with a backslash before what is meant itself."""
    wild = {"*": "%", "?": "_"}
    return "".join((f"\\{sign}" if sign in "%_\\" else sign) if quoted else wild[sign] for sign, quoted in _signs(pattern))


def _signs(pattern: str) -> list[tuple[str, bool]]:
    """Each sign of a pattern, and whether it stands for itself."""
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
