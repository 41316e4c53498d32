"""The way from client-side apply, which notes its configuration in an annotation, to server-side apply.

Only kubectl's own manager takes it: what the annotation says and the object still says is no conflict, and the annotation is
kept up to date for those who still apply at the client's side.
"""

import json
from collections.abc import Mapping
from typing import Any

from machinery.meta.managedfields.comparing import compare
from machinery.meta.managedfields.fieldset import EMPTY, FieldSet
from machinery.meta.managedfields.selecting import fields_of
from machinery.meta.managedfields.structure import Structure
from machinery.meta.managedfields.updating import Conflict

ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL = "kubectl"


def real_conflicts(structure: Structure, live: Mapping[str, Any], found: list[Conflict]) -> list[Conflict]:
    """Without those over fields that the client-side apply of old set, and nobody changed since."""
    own = _still_applied(structure, live)
    return [conflict for conflict in found if conflict[2] not in own]


def _still_applied(structure: Structure, live: Mapping[str, Any]) -> FieldSet:
    noted = (live.get("metadata", {}).get("annotations") or {}).get(ANNOTATION)
    try:
        applied = json.loads(noted or "null")
    except (ValueError, RecursionError):
        return EMPTY
    if not isinstance(applied, dict) or applied.get("apiVersion") != live.get("apiVersion"):
        return EMPTY
    comparison = compare(structure, applied, live)
    return fields_of(structure, applied) - comparison.modified - comparison.added - comparison.removed


def with_note(document: Mapping[str, Any], config: Mapping[str, Any], most: int) -> Mapping[str, Any]:
    """The object with its annotation, if it has one, telling this configuration; without it when all would be over `most`."""
    metadata = document.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    if not annotations.get(ANNOTATION):
        return document
    others = {name: note for name, note in annotations.items() if name != ANNOTATION}
    noted = {**others, ANNOTATION: _note(config)}
    size = sum(len(name) + len(str(note)) for name, note in noted.items())
    return {**document, "metadata": {**metadata, "annotations": noted if size <= most else others}}


def _note(config: Mapping[str, Any]) -> str:
    metadata = config.get("metadata", {})
    annotations = metadata.get("annotations") or {}
    if ANNOTATION in annotations:
        kept = {name: note for name, note in annotations.items() if name != ANNOTATION}
        config = {**config, "metadata": {**metadata, "annotations": kept}}
    return json.dumps(config, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n"
