"""Set operations directly on FieldsV1 (see `fieldset`), for callers that write many sets and decode none.

A place is a map: empty for a member without parts, with "." for a member with parts, without "." for a place of which only
parts are members. Elements must be in canonical form.
"""

from collections.abc import Mapping
from typing import Any

from machinery.meta.managedfields.elements import order
from machinery.meta.managedfields.fieldset import SELF

Notation = Mapping[str, Any]


def has_itself(place: Notation) -> bool:
    return not place or SELF in place


def covers(one: Notation, other: Notation) -> bool:
    """Whether `one` contains all fields of `other`."""
    for element, below in other.items():
        if element == SELF:
            continue
        there = one.get(element)
        if there is None or (has_itself(below) and not has_itself(there)) or not covers(there, below):
            return False
    return True


def touches(one: Notation, other: Notation) -> bool:
    """Whether two sets share a field."""
    for element, below in other.items():
        there = None if element == SELF else one.get(element)
        if there is not None and ((has_itself(below) and has_itself(there)) or touches(there, below)):
            return True
    return False


def minus(one: Notation, other: Notation) -> dict[str, Any]:
    """Difference. Removing a field does not remove the fields below it."""
    left: dict[str, Any] = {}
    for element, here in one.items():
        there = other.get(element)
        if element == SELF or there is None:
            left[element] = here
            continue
        below = minus(here, there)
        if has_itself(here) and not has_itself(there):
            left[element] = below if below.keys() - {SELF} else {}
            continue
        below.pop(SELF, None)
        if below:
            left[element] = below
    return left


def union(one: Notation, other: Notation) -> dict[str, Any]:
    """Union, unordered."""
    both = dict(one)
    for element, below in other.items():
        there = both.get(element)
        both[element] = below if there is None or element == SELF else joined(there, below)
    return both


def joined(one: Notation, other: Notation) -> dict[str, Any]:
    """Union at one place, the place itself included."""
    both = union(one, other)
    if both and SELF not in both and (has_itself(one) or has_itself(other)):
        both[SELF] = {}
    return both


def in_order(notation: Notation) -> dict[str, Any]:
    """Sort like `fieldset.encoded`."""
    names = sorted(notation, key=_order) if len(notation) > 1 else notation
    return {element: in_order(notation[element]) if notation[element] else {} for element in names}


def _order(element: str) -> tuple[Any, ...]:
    return () if element == SELF else order(element)
