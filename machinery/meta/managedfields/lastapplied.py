"""Migration from client-side apply, which stores its configuration in an annotation, to server-side apply.

Applies only to kubectl's own manager: fields that are unchanged since the annotation are no conflict, and the annotation is
kept up to date for users who still apply on the client side.
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
    """Conflicts without those over fields that an earlier client-side apply set and that have not changed since."""
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
    """The object with an updated annotation, if it has one; the annotation is removed if all would exceed `most` bytes."""
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
