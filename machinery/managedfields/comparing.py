"""Which fields two documents differ in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machinery.managedfields import elements
from machinery.managedfields.fieldset import EMPTY, LEAF, FieldSet
from machinery.managedfields.structure import Form, Structure

ABSENT: Any = object()
"""In place of a value that is not there; null is there."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """No field is in more than one of the three."""

    removed: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    added: FieldSet = EMPTY

    def __bool__(self) -> bool:
        return bool(self.removed or self.modified or self.added)

    def __or__(self, other: "Comparison") -> "Comparison":
        return Comparison(self.removed | other.removed, self.modified | other.modified, self.added | other.added)

    @property
    def written(self) -> FieldSet:
        """What the newer document says that the older one did not."""
        return self.modified | self.added


SAME = Comparison()
_REMOVED, _MODIFIED, _ADDED = Comparison(removed=LEAF), Comparison(modified=LEAF), Comparison(added=LEAF)


def compare(structure: Structure, old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """The fields that `new` lacks, has otherwise, and has in addition."""
    return _compared(structure, old, new)


def _compared(structure: Structure, old: Any, new: Any) -> Comparison:
    if old is not ABSENT and new is not ABSENT and old == new:
        return SAME
    here, there = _form(structure, old), _form(structure, new)
    if here is None or there is None or here is there:
        return _compared_as(here or there or Form.LEAF, structure, old, new)
    return _compared_as(here, structure, old, new) | _compared_as(there, structure, old, new)


def _form(structure: Structure, value: Any) -> Form | None:
    """None: whatever the other side is."""
    return None if value is ABSENT or value is None else structure.divides(value)


def _compared_as(form: Form, structure: Structure, old: Any, new: Any) -> Comparison:
    match form:
        case Form.LEAF:
            return _leaf(old, new)
        case Form.MAP:
            before, after = _map(old), _map(new)
            if not before and not after:
                return _leaf(old, new)
            parts = {
                elements.field(name): part
                for name in {**before, **after}
                if (part := _compared(structure.of(name), before.get(name, ABSENT), after.get(name, ABSENT))) is not SAME
            }
        case _:
            if not _list(old) and not _list(new):
                return _leaf(old, new)
            parts = _entries(structure, _list(old), _list(new))
    if not parts and old is not ABSENT and new is not ABSENT:
        return SAME
    return Comparison(
        _gathered({element: part.removed for element, part in parts.items() if part.removed}, member=new is ABSENT),
        _gathered({element: part.modified for element, part in parts.items() if part.modified}, member=False),
        _gathered({element: part.added for element, part in parts.items() if part.added}, member=old is ABSENT),
    )


def _gathered(children: dict[str, FieldSet], *, member: bool) -> FieldSet:
    return FieldSet(member, children) if member or children else EMPTY


def _leaf(old: Any, new: Any) -> Comparison:
    if old is ABSENT:
        return _ADDED
    return _REMOVED if new is ABSENT else _MODIFIED


def _entries(structure: Structure, old: Sequence[Any], new: Sequence[Any]) -> dict[str, Comparison]:
    """By path element. Entries with the same keys are one field together, without parts."""
    before, after = by_element(structure, old), by_element(structure, new)
    element = structure.element or LEAF_ENTRY
    parts = {}
    for name in {**before, **after}:
        olds, news = before.get(name, ()), after.get(name, ())
        if len(olds) <= 1 and len(news) <= 1:
            parts[name] = _compared(element, olds[0] if olds else ABSENT, news[0] if news else ABSENT)
        elif len(olds) > 1 and len(news) > 1:
            parts[name] = SAME if olds == news else _MODIFIED
        elif len(olds) > 1:
            parts[name] = _REMOVED | (_compared(element, ABSENT, news[0]) if news else SAME)
        else:
            parts[name] = _ADDED | (_compared(element, olds[0], ABSENT) if olds else SAME)
    return parts


LEAF_ENTRY = Structure(Form.LEAF)


def by_element(structure: Structure, entries: Sequence[Any]) -> dict[str, list[Any]]:
    """The entries of a list map or set by path element, in the order of their first appearance."""
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
