"""Comparison of two documents by fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from machinery.meta.managedfields import elements
from machinery.meta.managedfields.fieldset import SELF, Fields, joined
from machinery.meta.managedfields.structure import LEAF, FieldForm, Structure

ABSENT: Any = object()
"""In place of a missing value; null is a value."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of two documents, unordered: fields that the newer one lacks, and fields that it adds or changes."""

    removed: Fields = field(default_factory=dict)
    written: Fields = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.removed or self.written)


def compare(structure: Structure, old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """The fields that `new` lacks, changes and adds."""
    removed, written = _compared(structure, old, new)
    return Comparison(removed or {}, written or {})


_Parts = tuple[Fields | None, Fields | None]
"""Removed and written fields at and below one place; None: none."""
_NOTHING: _Parts = (None, None)
_WRITTEN: _Parts = (None, {})


def _compared(structure: Structure, old: Any, new: Any) -> _Parts:
    if old is ABSENT:
        return None, _everything(structure, new)
    if new is ABSENT:
        return _everything(structure, old), None
    if old == new:
        return _NOTHING
    here, there = _form(structure, old), _form(structure, new)
    if here is None or there is None or here is there:
        return _compared_as(here or there or FieldForm.LEAF, structure, old, new)
    return _either(_compared_as(here, structure, old, new), _compared_as(there, structure, old, new))


def _form(structure: Structure, value: Any) -> FieldForm | None:
    """None: the form of the other value applies."""
    return None if value is None else structure.divides(value)


def _compared_as(form: FieldForm, structure: Structure, old: Any, new: Any) -> _Parts:
    if form is FieldForm.LEAF:
        return _WRITTEN
    if form is not FieldForm.MAP:
        return _compared_entries(structure, _list(old), _list(new)) if _list(old) or _list(new) else _WRITTEN
    before, after = _map(old), _map(new)
    if not before and not after:
        return _WRITTEN
    removed: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for name in after if before.keys() <= after.keys() else {**before, **after}:
        was, is_now = before.get(name, ABSENT), after.get(name, ABSENT)
        if was != is_now:  # most values are equal, and need no call
            _keep(removed, written, elements.FIELD + name, _compared(structure.of(name), was, is_now))
    return removed or None, written or None


def _compared_entries(structure: Structure, old: Sequence[Any], new: Sequence[Any]) -> _Parts:
    before, after = by_element(structure, old), by_element(structure, new)
    element = structure.element or LEAF
    removed: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for name in {**before, **after}:
        _keep(removed, written, name, _compared_entry(element, before.get(name, ()), after.get(name, ())))
    return removed or None, written or None


def _compared_entry(element: Structure, olds: Sequence[Any], news: Sequence[Any]) -> _Parts:
    """Entries with equal keys are one field together, without parts."""
    if len(olds) <= 1 and len(news) <= 1:
        return _compared(element, olds[0] if olds else ABSENT, news[0] if news else ABSENT)
    if len(olds) > 1 and len(news) > 1:
        return _NOTHING if olds == news else _WRITTEN
    if len(olds) > 1:
        return _either(({}, None), _compared(element, ABSENT, news[0]) if news else _NOTHING)
    return _either(_WRITTEN, _compared(element, olds[0], ABSENT) if olds else _NOTHING)


def _keep(removed: dict[str, Any], written: dict[str, Any], name: str, found: _Parts) -> None:
    if found[0] is not None:
        removed[name] = found[0]
    if found[1] is not None:
        written[name] = found[1]


def _everything(structure: Structure, value: Any) -> Fields:
    """All fields of an added or removed value: the place itself and every place in it."""
    form = structure.divides(value) if value and isinstance(value, dict | list) else FieldForm.LEAF
    if form is FieldForm.LEAF:
        return {}
    place: dict[str, Any] = {SELF: {}}
    if form is FieldForm.MAP:
        for name, part in value.items():
            place[elements.FIELD + name] = _everything(structure.of(name), part)
        return place
    for name, entries in by_element(structure, value).items():
        place[name] = _everything(structure.element or LEAF, entries[0]) if len(entries) == 1 else {}
    return place


def _either(one: _Parts, other: _Parts) -> _Parts:
    return _joined(one[0], other[0]), _joined(one[1], other[1])


def _joined(one: Fields | None, other: Fields | None) -> Fields | None:
    return joined(one, other) if one is not None and other is not None else other if one is None else one


def by_element(structure: Structure, entries: Sequence[Any]) -> dict[str, list[Any]]:
    """Entries of a list map or set by path element, in the order of their first appearance."""
    found: dict[str, list[Any]] = {}
    for entry in entries:
        name = structure.names(entry)
        if name is not None:
            found.setdefault(name, []).append(entry)
    return found


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
