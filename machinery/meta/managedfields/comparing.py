"""Operations on documents and their fields: differences, the fields of a document, and removal of fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from machinery.meta.managedfields import fieldset
from machinery.meta.managedfields.fieldset import SELF, Fields, has_itself, joined, parts_of, place_of
from machinery.meta.managedfields.structure import LEAF, OPEN, FieldForm, Structure

ABSENT: Any = object()
"""Marks a missing value, because null is a value."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of two documents, as unordered sets: removed fields, and written (added or changed) fields."""

    removed: Fields = field(default_factory=dict)
    written: Fields = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.removed or self.written)


def compare(structure: Structure, old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Return the fields that `new` removes, and those that it changes or adds."""
    removed, written = _compared(structure, old, new)
    return Comparison(removed or {}, written or {})


_Parts = tuple[Fields | None, Fields | None]
"""Removed and written fields at one place of the document and below it; None: none."""
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
    """Return the form of a value; None if the form of the other value applies."""
    return None if value is None else structure.divides(value)


def _compared_as(form: FieldForm, structure: Structure, old: Any, new: Any) -> _Parts:
    if form is FieldForm.LEAF:
        return _WRITTEN
    kind: type[Any] = dict if form is FieldForm.MAP else list
    before, after = (value if isinstance(value, kind) else kind() for value in (old, new))
    if not before and not after:
        return _WRITTEN
    if form is not FieldForm.MAP:
        return _compared_entries(structure, before, after)
    removed: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for name in after if before.keys() <= after.keys() else {**before, **after}:
        was, is_now = before.get(name, ABSENT), after.get(name, ABSENT)
        if was != is_now:  # most values are equal, so this saves the call
            _keep(removed, written, fieldset.FIELD + name, _compared(structure.of(name), was, is_now))
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
    """Compare the old and new entries of one key. Several entries with the same key are one field without parts."""
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
    """Return all fields of an added or removed value: the place itself and every place in it."""
    form = structure.divides(value) if value and isinstance(value, dict | list) else FieldForm.LEAF
    if form is FieldForm.LEAF:
        return {}
    place: dict[str, Any] = {SELF: {}}
    if form is FieldForm.MAP:
        for name, part in value.items():
            place[fieldset.FIELD + name] = _everything(structure.of(name), part)
        return place
    for name, entries in by_element(structure, value).items():
        place[name] = _everything(structure.element or LEAF, entries[0]) if len(entries) == 1 else {}
    return place


def _either(one: _Parts, other: _Parts) -> _Parts:
    return _joined(one[0], other[0]), _joined(one[1], other[1])


def _joined(one: Fields | None, other: Fields | None) -> Fields | None:
    return joined(one, other) if one is not None and other is not None else other if one is None else one


def by_element(structure: Structure, entries: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the entries of a list map or set by path element, in the order of their first occurrence."""
    found: dict[str, list[Any]] = {}
    for entry in entries:
        name = structure.names(entry)
        if name is not None:
            found.setdefault(name, []).append(entry)
    return found


def fields_of(structure: Structure, document: Mapping[str, Any]) -> Fields:
    """Return the fields that an applier of this document owns: of a map in the schema, its entries and not the map itself."""
    return _fields(structure, document) or {}


def _fields(structure: Structure, value: Any) -> Fields | None:
    if value is None:
        return None
    form = structure.divides(value)
    if form is FieldForm.LEAF:
        return {}
    found: dict[str, Any] = {}
    if form is FieldForm.MAP:
        for name, part in value.items():
            below = _fields(structure.of(name), part)
            itself = part is None or part == {} or not structure.declares(name)
            place = place_of(parts_of(below or {}), member=itself or (below is not None and has_itself(below)))
            if place is not None:
                found[fieldset.FIELD + name] = place
        return found or None
    for name, entries in by_element(structure, value).items():  # entries with equal keys have one owner for all of them
        inner = _fields(structure.element or OPEN, entries[0]) if len(entries) == 1 else None
        found[name] = place_of(parts_of(inner or {}), member=True)
    return found or None


def without(structure: Structure, document: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the document without these fields. A map or list that becomes empty becomes null, as in structured-merge-diff."""
    return _without(structure, document, fields) or {}


def _without(structure: Structure, value: Any, fields: Fields) -> Any:
    form = FieldForm.LEAF if value is None else structure.divides(value)
    if form is FieldForm.LEAF or not parts_of(fields) or not value:
        return value
    if form is FieldForm.MAP:
        rest = {name: _rest(structure.of(name), part, fields.get(fieldset.FIELD + name)) for name, part in value.items()}
        return {name: left for name, left in rest.items() if left is not ABSENT} or None
    entries = (_rest(structure.element or OPEN, entry, fields.get(str(structure.names(entry)))) for entry in value)
    return [entry for entry in entries if entry is not ABSENT and entry is not None] or None


def _rest(structure: Structure, value: Any, gone: Fields | None) -> Any:
    if gone is None:
        return value
    return ABSENT if has_itself(gone) else _without(structure, value, gone)


def without_emptied(structure: Structure, left: Any, before: Any) -> Any:
    """Return `left`, but omit declared maps and lists that became null. `without` has made `left` from `before`.

    Kubernetes drops these when it decodes the object or prunes nulls of a custom resource. Undeclared maps and lists stay null.
    """
    if isinstance(left, dict) and isinstance(before, dict):
        kept = {}
        for name, part in left.items():
            inner, was = structure.of(name), before.get(name)
            if part is not None or was is None or inner.form is FieldForm.OPEN:
                kept[name] = without_emptied(inner, part, was)
        return kept
    if isinstance(left, list) and isinstance(before, list) and structure.divides(before) is FieldForm.KEYED:
        whole, element = by_element(structure, before), structure.element or OPEN
        return [without_emptied(element, entry, whole[str(structure.names(entry))][0]) for entry in left]
    return left


def with_named(structure: Structure, fields: Fields) -> dict[str, Any]:
    """Return `fields`, plus each declared map or list that has a member below it, so that `without` removes it as a whole."""
    result: dict[str, Any] = {}
    for element, below in parts_of(fields).items():
        inner, declared = _below(structure, element)
        parts = with_named(inner, below)
        result[element] = place_of(parts, member=has_itself(below) or (declared and bool(parts)))
    return result


def _below(structure: Structure, element: str) -> tuple[Structure, bool]:
    if element.startswith(fieldset.FIELD):
        name = element.removeprefix(fieldset.FIELD)
        return structure.of(name), structure.declares(name)
    return structure.element or OPEN, False


def reconciled(structure: Structure, fields: Fields) -> dict[str, Any]:
    """Adapt `fields` to the current `structure`. The owner of parts of a value that has become atomic owns the whole value."""
    result: dict[str, Any] = {}
    for element, below in parts_of(fields).items():
        inner, _ = _below(structure, element)
        whole = inner.form is FieldForm.LEAF
        result[element] = {} if whole else place_of(reconciled(inner, below), member=has_itself(below))
    return result
