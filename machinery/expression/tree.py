"""A parsed condition as plain data. Every name is a declared field; every literal has the type that its comparison needs.

Each node has one meaning in Python (`machinery.expression.evaluation`) and one in SQL, where a missing value is NULL. Only
PatternMatch has no meaning in SQL: a store replaces it with the values that match (`replaced`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from machinery.expression.types import ListOf, MapOf, Scalar, Type

Comparator = Literal["==", "!=", "<", "<=", ">", ">="]
TextFunction = Literal["startsWith", "endsWith", "contains", "matches"]


@dataclass(frozen=True, slots=True)
class Value:
    type: Type
    value: Scalar


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class MapEntry:
    name: str
    key: str
    type: Type


@dataclass(frozen=True, slots=True)
class CollectionField:
    """A whole list or map, only in `Has` and `In`."""

    name: str
    type: ListOf | MapOf


Operand = Value | Field | MapEntry


@dataclass(frozen=True, slots=True)
class Has:
    """Whether a value is present. The result is never unknown."""

    what: Field | MapEntry | CollectionField


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A field of type BOOLEAN, or a literal, used as a condition."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two operands of one type."""

    operator: Comparator
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a field equals one of several literals."""

    operand: Operand
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class In:
    """Whether a value is in a list, or is a key of a map."""

    operand: Operand
    collection: CollectionField


@dataclass(frozen=True, slots=True)
class Match:
    """A text function with a literal argument."""

    function: TextFunction
    operand: Operand
    argument: str


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """Whether a text matches a regular expression. `column`: position for errors."""

    operand: Field | MapEntry
    pattern: str
    column: int = field(compare=False)
    matches: Callable[[str], bool] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Condition"


@dataclass(frozen=True, slots=True)
class All:
    operands: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Any:
    operands: tuple["Condition", ...]


Condition = Has | IsTrue | Compare | OneOf | In | Match | PatternMatch | Not | All | Any


def patterns(node: Condition) -> Iterator[PatternMatch]:
    match node:
        case PatternMatch():
            yield node
        case Not(operand):
            yield from patterns(operand)
        case All(operands) | Any(operands):
            for operand in operands:
                yield from patterns(operand)


def replaced(node: Condition, found: Mapping[PatternMatch, OneOf]) -> Condition:
    """Return the condition with `found[each]` in place of each regular expression `each`."""
    match node:
        case PatternMatch():
            return found[node]
        case Not(operand):
            return Not(replaced(operand, found))
        case All(operands):
            return All(tuple(replaced(operand, found) for operand in operands))
        case Any(operands):
            return Any(tuple(replaced(operand, found) for operand in operands))
    return node


def names(node: Condition | Operand | CollectionField) -> Iterator[str]:
    """Yield the names of the fields in a condition. A name may occur several times."""
    if isinstance(node, Field | MapEntry | CollectionField):
        yield node.name
        return
    for part in (getattr(node, name) for name in node.__slots__):
        for inner in part if isinstance(part, tuple) else (part,):
            if isinstance(inner, Condition | Operand | CollectionField):
                yield from names(inner)
