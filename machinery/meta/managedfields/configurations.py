"""Applied configurations: the part that a URL's path can change, type errors, and kubectl's annotation of client-side apply.

An unknown field cannot be applied, regardless of fieldValidation, because fields are owned by name. The annotation matters only
for kubectl's own field manager. A field that has not changed since the annotation was written does not conflict. An apply
updates the annotation, for users who still use client-side apply.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from machinery.meta.managedfields import fieldset
from machinery.meta.managedfields.applying import Conflict
from machinery.meta.managedfields.comparing import compare, fields_of
from machinery.meta.managedfields.fieldset import Fields, contains, minus
from machinery.meta.managedfields.structure import FieldForm, Structure

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"
_TYPES = {"boolean": bool, "string": str, "array": list, "object": dict}


def configuration(document: Mapping[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the part of an applied document that the URL's path can change: apiVersion, kind, metadata and `parts`."""
    return {name: value for name, value in document.items() if name in ("apiVersion", "kind", "metadata", *parts)}


def type_errors(structure: Structure, config: Mapping[str, Any]) -> list[str]:
    """Return errors in the form `<path>: <why>`. A value of a wrong type is reported without errors about its parts."""
    return [f"{fieldset.shown(path)}: {why}" for path, why in _type_errors(structure, config, ())]


def _type_errors(structure: Structure, value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if value is None or structure.form is FieldForm.OPEN:
        return
    if not _fits(structure.json_type, value):
        yield path, f"expected {structure.json_type}, got {_type_of(value)}"
    elif isinstance(value, dict) and structure.json_type == "object":
        for name, part in value.items():
            here = (*path, fieldset.field(name))
            if structure.declares(name) or structure.element is not None:
                yield from _type_errors(structure.of(name), part, here)
            else:
                yield here, "field not declared in schema"
    elif isinstance(value, list):
        yield from _list_errors(structure, value, path)


def _list_errors(structure: Structure, value: list[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    seen: set[str] = set()
    for index, entry in enumerate(value):
        position = f"{fieldset.INDEX}{index}"
        name = position if structure.form is FieldForm.LEAF else structure.names(entry)
        if name is None:
            keys = " ".join(f'"{key}"' for key in structure.keys)
            nameless = f"associative list with keys has an element that omits all key fields [{keys}]"
            yield (*path, position), "an entry of a set is a scalar" if structure.form is FieldForm.SET else nameless
            continue
        if name in seen:
            yield path, f"duplicate entries for key {fieldset.shown((name,))}"
        seen.add(name)
        if structure.element is not None:
            yield from _type_errors(structure.element, entry, (*path, name))


def _fits(wanted: str, value: Any) -> bool:
    if wanted in ("integer", "number"):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return wanted not in _TYPES or isinstance(value, _TYPES[wanted])


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def real_conflicts(structure: Structure, live: Mapping[str, Any], found: list[Conflict]) -> list[Conflict]:
    """Return `found` without conflicts about fields that a client-side apply has set and that have not changed since."""
    own = _still_applied(structure, live)
    return [conflict for conflict in found if not contains(own, conflict[2])]


def _still_applied(structure: Structure, live: Mapping[str, Any]) -> Fields:
    noted = (live.get("metadata", {}).get("annotations") or {}).get(ANNOTATION)
    try:
        applied = json.loads(noted or "null")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(applied, dict) or applied.get("apiVersion") != live.get("apiVersion"):
        return {}
    comparison = compare(structure, applied, live)
    return minus(minus(fields_of(structure, applied), comparison.written), comparison.removed)


def with_note(document: Mapping[str, Any], config: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """Set ANNOTATION, if `document` has it, to `config`. Remove it if all annotations would exceed `most` characters."""
    metadata = document.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    if not annotations.get(ANNOTATION):
        return document
    others = _without_note(annotations)
    config_metadata = config.get("metadata", {})
    if ANNOTATION in (config_metadata.get("annotations") or {}):
        config = {**config, "metadata": {**config_metadata, "annotations": _without_note(config_metadata["annotations"])}}
    noted = {**others, ANNOTATION: json.dumps(config, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n"}
    size = sum(len(name) + len(str(note)) for name, note in noted.items())
    return {**document, "metadata": {**metadata, "annotations": noted if size <= most else others}}


def _without_note(annotations: Mapping[str, Any]) -> dict[str, Any]:
    return {name: note for name, note in annotations.items() if name != ANNOTATION}
