"""Evaluation of a parsed condition for one object. It never raises or blocks, and takes time proportional to its length."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from machinery.expression import tree
from machinery.expression.parsing import read
from machinery.expression.patterns import glob_matches
from machinery.expression.types import Fields, ListOf, MapOf, Scalar

Values = Mapping[str, Any]
"""Values of one object by the name of the declared field. Absent values, None and values of a wrong type count as missing."""

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Expression:
    """A condition over declared fields."""

    text: str
    tree: tree.Condition

    def names(self) -> frozenset[str]:
        return frozenset(tree.names(self.tree))

    def evaluate(self, values: Values) -> bool | None:
        """Return True, False, or None if the result depends on a missing value."""
        return _condition(self.tree, values)

    def holds(self, values: Values) -> bool:
        """Whether the condition is true. An unknown result is not true."""
        return self.evaluate(values) is True


def parse(text: str, fields: Fields) -> Expression:
    """Parse a condition. Raises ExpressionError with the column, and with what is valid there."""
    return Expression(text, read(text, fields))


def _condition(node: tree.Condition, values: Values) -> bool | None:  # noqa: C901, PLR0911 - one per node
    match node:
        case tree.All(operands):
            return _all([_condition(operand, values) for operand in operands])
        case tree.Any(operands):
            return _not(_all([_not(_condition(operand, values)) for operand in operands]))
        case tree.Not(operand):
            return _not(_condition(operand, values))
        case tree.Has(what):
            return bool(values.get(what.name)) if isinstance(what, tree.CollectionField) else _value(what, values) is not None
        case tree.IsTrue(operand):
            value = _value(operand, values)
            return None if value is None else bool(value)
        case tree.Compare(sign, left, right):
            first, second = _value(left, values), _value(right, values)
            return None if first is None or second is None else _COMPARE[sign](first, second)
        case tree.OneOf(operand, accepted):
            value = _value(operand, values)
            return None if value is None else value in accepted
        case tree.In(operand, collection):
            return _is_in(_value(operand, values), collection, values)
        case tree.Match(function, operand, argument):
            text = _value(operand, values)
            return _FUNCTIONS[function](text, argument) if isinstance(text, str) else None
        case tree.PatternMatch(operand=operand, matches=matches):
            text = _value(operand, values)
            return matches(text) if isinstance(text, str) else None
        case _:
            assert_never(node)


def _all(results: Sequence[bool | None]) -> bool | None:
    if False in results:
        return False
    return None if None in results else True


def _not(result: bool | None) -> bool | None:  # noqa: FBT001 - negates a truth value
    return None if result is None else not result


def _value(operand: tree.Operand, values: Values) -> Scalar | None:
    match operand:
        case tree.Value(value=value):
            return value
        case tree.Field(name, kind):
            return kind.read(values.get(name))
        case tree.MapEntry(name, key, kind):
            return MapOf(kind).read(values.get(name), key)


def _is_in(value: Scalar | None, collection: tree.CollectionField, values: Values) -> bool | None:
    raw = values.get(collection.name)
    if value is None:
        return None
    if isinstance(collection.type, ListOf):
        entries = collection.type.read(raw)
        return None if entries is None else value in entries
    return value in raw if isinstance(raw, Mapping) else None


_FUNCTIONS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
    "matches": glob_matches,
}
