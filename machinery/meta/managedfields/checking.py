"""Checks that an applied configuration fits its structure: declared fields, correct types, no duplicate entries.

Fields are owned by name, so an unknown field cannot be applied, whatever fieldValidation says.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from machinery.meta.managedfields import elements
from machinery.meta.managedfields.structure import FieldForm, Structure

_TYPES = {"boolean": bool, "string": str, "array": list, "object": dict}


def misfits(structure: Structure, config: Mapping[str, Any]) -> list[str]:
    """Errors in the form `<path>: <why>`; a wrong type is reported only for the topmost value."""
    return [f"{elements.shown(path)}: {why}" for path, why in _misfits(structure, config, ())]


_Misfit = tuple[tuple[str, ...], str]


def _misfits(structure: Structure, value: Any, path: tuple[str, ...]) -> Iterator[_Misfit]:
    if value is None or structure.form is FieldForm.OPEN:
        return
    if not _fits(structure.json_type, value):
        yield path, f"expected {structure.json_type}, got {_type_of(value)}"
    elif isinstance(value, dict):
        yield from _of_map(structure, value, path)
    elif isinstance(value, list):
        yield from _of_list(structure, value, path)


def _of_map(structure: Structure, value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[_Misfit]:
    if structure.json_type != "object":
        return
    for name, part in value.items():
        here = (*path, elements.field(name))
        if structure.declares(name) or structure.element is not None:
            yield from _misfits(structure.of(name), part, here)
        else:
            yield here, "field not declared in schema"


def _of_list(structure: Structure, value: list[Any], path: tuple[str, ...]) -> Iterator[_Misfit]:
    seen: set[str] = set()
    for index, entry in enumerate(value):
        name = f"{elements.INDEX}{index}" if structure.form is FieldForm.LEAF else structure.names(entry)
        if name is None:
            yield (*path, f"{elements.INDEX}{index}"), _why_nameless(structure)
            continue
        if name in seen:
            yield path, f"duplicate entries for key {elements.shown((name,))}"
        seen.add(name)
        if structure.element is not None:
            yield from _misfits(structure.element, entry, (*path, name))


def _why_nameless(structure: Structure) -> str:
    if structure.form is FieldForm.SET:
        return "an entry of a set is a scalar"
    keys = " ".join(f'"{name}"' for name in structure.keys)
    return f"associative list with keys has an element that omits all key fields [{keys}]"


def _fits(wanted: str, value: Any) -> bool:
    if wanted in ("integer", "number"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return wanted not in _TYPES or isinstance(value, _TYPES[wanted])


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
