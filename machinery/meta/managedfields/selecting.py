"""The fields of a document, and a document without some fields."""

from collections.abc import Mapping
from typing import Any

from machinery.meta.managedfields import elements
from machinery.meta.managedfields.comparing import ABSENT, by_element
from machinery.meta.managedfields.fieldset import Fields, has_itself, parts_of, place_of
from machinery.meta.managedfields.structure import OPEN, FieldForm, Structure


def fields_of(structure: Structure, document: Mapping[str, Any]) -> Fields:
    """Fields that an applier of this document owns. A declared map itself is not owned, only its content."""
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
                found[elements.FIELD + name] = place
        return found or None
    for name, entries in by_element(structure, value).items():  # entries with equal keys are owned together, as a whole
        inner = _fields(structure.element or OPEN, entries[0]) if len(entries) == 1 else None
        found[name] = place_of(parts_of(inner or {}), member=True)
    return found or None


def without(structure: Structure, document: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """The document without these fields. As in structured-merge-diff, a map or list that becomes empty is null."""
    return _without(structure, document, fields) or {}


def _without(structure: Structure, value: Any, fields: Fields) -> Any:
    form = FieldForm.LEAF if value is None else structure.divides(value)
    if form is FieldForm.LEAF or not parts_of(fields) or not value:
        return value
    if form is FieldForm.MAP:
        rest = {name: _rest(structure.of(name), part, fields.get(elements.FIELD + name)) for name, part in value.items()}
        return {name: left for name, left in rest.items() if left is not ABSENT} or None
    entries = (_rest(structure.element or OPEN, entry, fields.get(str(structure.names(entry)))) for entry in value)
    return [entry for entry in entries if entry is not ABSENT and entry is not None] or None


def _rest(structure: Structure, value: Any, gone: Fields | None) -> Any:
    if gone is None:
        return value
    return ABSENT if has_itself(gone) else _without(structure, value, gone)


def without_emptied(structure: Structure, left: Any, before: Any) -> Any:
    """The result `left` of `without` on the document `before`, without the declared maps and lists that became null.

    Kubernetes drops them when it decodes the object or prunes nulls of a custom resource; undeclared ones stay null.
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
    """The set with every declared map and list that has a member below, so that an emptied container is removed too."""
    result: dict[str, Any] = {}
    for element, below in parts_of(fields).items():
        inner, declared = _below(structure, element)
        parts = with_named(inner, below)
        result[element] = place_of(parts, member=has_itself(below) or (declared and bool(parts)))
    return result


def _below(structure: Structure, element: str) -> tuple[Structure, bool]:
    """Structure at a path element, and whether the element is a declared field."""
    if element.startswith(elements.FIELD):
        name = element.removeprefix(elements.FIELD)
        return structure.of(name), structure.declares(name)
    return structure.element or OPEN, False


def reconciled(structure: Structure, fields: Fields) -> dict[str, Any]:
    """The fields in the current structure: an owner of parts of a value that is now atomic owns the whole value."""
    result: dict[str, Any] = {}
    for element, below in parts_of(fields).items():
        inner, _ = _below(structure, element)
        whole = inner.form is FieldForm.LEAF
        result[element] = {} if whole else place_of(reconciled(inner, below), member=has_itself(below))
    return result
