"""The fields of a document, and a document without some fields."""

from collections.abc import Mapping
from typing import Any

from machinery.meta.managedfields import elements
from machinery.meta.managedfields.comparing import ABSENT, by_element
from machinery.meta.managedfields.fieldset import EMPTY, LEAF, FieldSet
from machinery.meta.managedfields.structure import OPEN, FieldForm, Structure


def fields_of(structure: Structure, document: Mapping[str, Any]) -> FieldSet:
    """Fields that an applier of this document owns. A declared map itself is not owned, only its content."""
    return _fields(structure, document)


def _fields(structure: Structure, value: Any) -> FieldSet:
    if value is None:
        return EMPTY
    form = structure.divides(value)
    if form is FieldForm.LEAF:
        return LEAF
    if form is FieldForm.MAP:
        parts = {elements.field(name): _field(structure, name, part) for name, part in value.items()}
    else:
        parts = {name: _entry(structure, entries) for name, entries in by_element(structure, value).items()}
    return FieldSet(children={element: part for element, part in parts.items() if part})


def _field(structure: Structure, name: str, value: Any) -> FieldSet:
    below = _fields(structure.of(name), value)
    itself = value is None or value == {} or not structure.declares(name)
    return FieldSet(below.member or itself, below.children)


def _entry(structure: Structure, entries: list[Any]) -> FieldSet:
    """Entries with equal keys are owned together, as a whole."""
    below = _fields(structure.element or OPEN, entries[0]) if len(entries) == 1 else EMPTY
    return FieldSet(member=True, children=below.children)


def without(structure: Structure, document: Mapping[str, Any], fields: FieldSet, *, held: FieldSet = EMPTY) -> dict[str, Any]:
    """The document without these fields, and without maps and lists that become empty, unless they are in `held`."""
    left = _without(structure, document, fields, held)
    return left if isinstance(left, dict) else {}


def _without(structure: Structure, value: Any, fields: FieldSet, held: FieldSet) -> Any:
    form = FieldForm.LEAF if value is None else structure.divides(value)
    if form is FieldForm.LEAF or not fields.children or not value:
        return value
    if form is FieldForm.MAP:
        names = {name: elements.field(name) for name in value}
        parts = ((name, _rest(structure.of(name), value[name], fields, held, names[name])) for name in names)
        kept = {name: left for name, left in parts if left is not ABSENT}
        return kept if kept or held.member else ABSENT
    element = structure.element or OPEN
    entries = (_rest(element, entry, fields, held, str(structure.names(entry))) for entry in value)
    left = [entry for entry in entries if entry is not ABSENT]
    return left if left or held.member else ABSENT


def _rest(structure: Structure, value: Any, fields: FieldSet, held: FieldSet, element: str) -> Any:
    gone = fields.children.get(element, EMPTY)
    return ABSENT if gone.member else _without(structure, value, gone, held.children.get(element, EMPTY))


def with_named(structure: Structure, fields: FieldSet) -> FieldSet:
    """The set with every declared map and list that has a member below, so that an emptied container is removed too."""
    children = {}
    for element, below in fields.children.items():
        inner, declared = _below(structure, element)
        deeper = with_named(inner, below)
        children[element] = FieldSet(below.member or (declared and bool(below.children)), deeper.children)
    return FieldSet(fields.member, children)


def _below(structure: Structure, element: str) -> tuple[Structure, bool]:
    """Structure at a path element, and whether the element is a declared field."""
    if element.startswith(elements.FIELD):
        name = element.removeprefix(elements.FIELD)
        return structure.of(name), structure.declares(name)
    return structure.element or OPEN, False


def reconciled(structure: Structure, fields: FieldSet) -> FieldSet:
    """The fields in the current structure: an owner of parts of a value that is now atomic owns the whole value."""
    if structure.form is FieldForm.LEAF:
        return LEAF if fields else EMPTY
    children = {element: reconciled(_below(structure, element)[0], below) for element, below in fields.children.items()}
    return FieldSet(fields.member, {element: child for element, child in children.items() if child})
