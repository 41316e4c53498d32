"""Read parts of Kubernetes objects, and copy objects with changes. No function modifies its arguments."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from machinery.meta.conditions import Condition, with_condition
from machinery.meta.objects import Document, Key
from machinery.meta.timestamps import format_time, parse_time

OWNED_BY_STORE = ("uid", "creationTimestamp", "resourceVersion", "generation")


def mapping(document: Document, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path`; empty if it is absent or null."""
    part: Any = document
    for step in path:
        # `isinstance` with an abstract class is slow, and this runs tens of times per write
        part = part.get(step) if type(part) is dict or isinstance(part, Mapping) else None
    return part if type(part) is dict or isinstance(part, Mapping) else {}


def sequence(document: Document, *path: str) -> Sequence[Any]:
    """Return the list at `path`; empty if it is absent or null."""
    part = mapping(document, *path[:-1]).get(path[-1])
    return part if isinstance(part, list | tuple) else ()


def name(document: Document) -> str:
    return str(mapping(document, "metadata").get("name") or "")


def key(document: Document) -> Key:
    metadata = mapping(document, "metadata")
    return Key(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))


def labels(document: Document) -> dict[str, str]:
    return {str(label): str(value) for label, value in mapping(document, "metadata", "labels").items()}


def annotations(document: Document) -> dict[str, str]:
    return {str(note): str(value) for note, value in mapping(document, "metadata", "annotations").items()}


def finalizers(document: Document) -> Sequence[Any]:
    return sequence(document, "metadata", "finalizers")


def is_deleting(document: Document) -> bool:
    return bool(mapping(document, "metadata").get("deletionTimestamp"))


def deleted_at(document: Document) -> datetime | None:
    """Return the start of the deletion; None if the object is not being deleted."""
    began = mapping(document, "metadata").get("deletionTimestamp")
    return parse_time(str(began)) if began else None


def created_at(document: Document) -> datetime | None:
    created = mapping(document, "metadata").get("creationTimestamp")
    return parse_time(str(created)) if created else None


def conditions(document: Document) -> list[Mapping[str, Any]]:
    entries = sequence(document, "status", "conditions")
    return [entry for entry in entries if type(entry) is dict or isinstance(entry, Mapping)]


def typed(document: Document, api_version: str, kind: str) -> dict[str, Any]:
    """Return a copy of `document` with `apiVersion` and `kind`, as the first fields."""
    kept = {part: value for part, value in document.items() if part not in ("apiVersion", "kind")}
    return {"apiVersion": api_version, "kind": kind, **kept}


def with_part(document: Document, part: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `document` with the top-level field `part` replaced."""
    return {**document, part: dict(value)}


def with_metadata(document: Document, **fields: Any) -> dict[str, Any]:
    """Return a copy of `document` with these metadata fields set; the value None removes a field."""
    metadata = {**mapping(document, "metadata"), **fields}
    return with_part(document, "metadata", {field: value for field, value in metadata.items() if value is not None})


def with_annotations(document: Document, notes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a copy of `document` with these annotations added or replaced; the value None removes an annotation."""
    merged = {**annotations(document), **notes}
    kept = {note: text for note, text in merged.items() if text is not None}
    return with_metadata(document, annotations=kept or None) if notes else dict(document)


def with_spec(document: Document, **fields: Any) -> dict[str, Any]:
    return with_part(document, "spec", {**mapping(document, "spec"), **fields})


def with_status(document: Document, **fields: Any) -> dict[str, Any]:
    return with_part(document, "status", {**mapping(document, "status"), **fields})


def with_status_condition(document: Document, condition: Condition, now: datetime) -> dict[str, Any]:
    return with_status(document, conditions=with_condition(conditions(document), condition, now))


def stamped(new: Document, old: Document | None, *, uid: str, now: datetime, generations: bool) -> dict[str, Any]:
    """Return `new` with the metadata that clients cannot set: uid, creation time and generation.

    The generation starts at 1 and increases when anything but metadata and status changes, or when deletion begins.
    """
    metadata = {field: value for field, value in mapping(new, "metadata").items() if field not in OWNED_BY_STORE}
    before = mapping(old, "metadata") if old is not None else {}
    metadata["uid"] = before.get("uid") or uid
    metadata["creationTimestamp"] = before.get("creationTimestamp") or format_time(now)
    if generations:
        desired, known = (
            {part: value for part, value in (each or {}).items() if part not in ("metadata", "status")} for each in (new, old)
        )
        changed = old is not None and (desired != known or is_deleting(new) != is_deleting(old))
        metadata["generation"] = int(before.get("generation") or 1) + changed
    return with_part(new, "metadata", metadata)


def differs(new: Document, old: Document) -> bool:
    """Return whether the objects differ in more than their resourceVersion."""
    return with_metadata(new, resourceVersion=None) != with_metadata(old, resourceVersion=None)


def deleting(document: Document, now: datetime) -> dict[str, Any]:
    """Return a copy of `document` with a deletion timestamp, for an object with finalizers."""
    return with_metadata(document, deletionTimestamp=format_time(now), deletionGracePeriodSeconds=0)


def base64_text(raw: bytes) -> str:
    """Return bytes in base64, as in Kubernetes' JSON."""
    return b64encode(raw).decode("ascii")
