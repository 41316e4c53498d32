"""`metadata.managedFields` as values: owners, their fields in a version's notation, and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from machinery.meta.managedfields.fieldset import EMPTY, FieldSet, decoded, encoded

MOST_UPDATERS = 10
"""Most separate updaters; the oldest beyond this number are merged into one."""
ANCIENT = "ancient-changes"
FIELDS_TYPE = "FieldsV1"


class Operation(StrEnum):
    APPLY = "Apply"
    UPDATE = "Update"


@dataclass(frozen=True, slots=True, order=True)
class FieldWriter:
    """A field manager. Requests with equal writers are one owner. An applier is the same in every version."""

    manager: str
    operation: Operation
    subresource: str = ""
    api_version: str = ""
    """For an updater; "" for an applier."""


@dataclass(frozen=True, slots=True)
class FieldHolding:
    """Owned fields in a version's notation. `time`: as stored, RFC 3339; None for an owner without changes."""

    api_version: str
    fields: FieldSet
    time: str | None = None


Holdings = Mapping[FieldWriter, FieldHolding]


def updater(manager: str, api_version: str, subresource: str = "") -> FieldWriter:
    return FieldWriter(manager or "unknown", Operation.UPDATE, subresource, api_version)


def applier(manager: str, subresource: str = "") -> FieldWriter:
    return FieldWriter(manager, Operation.APPLY, subresource)


class UnreadableError(ValueError):
    """managedFields that cannot be decoded."""


def read(entries: Any) -> dict[FieldWriter, FieldHolding]:
    """Decode managedFields. Raises UnreadableError."""
    if not isinstance(entries, list):
        raise UnreadableError("managedFields is a list")
    try:
        return dict(_read(entry) for entry in entries)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def of_object(document: Mapping[str, Any]) -> dict[FieldWriter, FieldHolding]:
    """Owners of a stored object's fields; none when managedFields cannot be decoded."""
    try:
        return read(document.get("metadata", {}).get("managedFields") or [])
    except UnreadableError:
        return {}


def _read(entry: Any) -> tuple[FieldWriter, FieldHolding]:
    if not isinstance(entry, dict) or entry.get("fieldsType") != FIELDS_TYPE:
        raise UnreadableError("an entry of managedFields is an object with fields of type FieldsV1")
    operation, api_version = Operation(str(entry.get("operation"))), entry.get("apiVersion")
    manager, subresource, time = entry.get("manager") or "", entry.get("subresource") or "", entry.get("time")
    if not api_version or not all(isinstance(part, str) for part in (api_version, manager, subresource, time or "")):
        raise UnreadableError("apiVersion, manager, subresource and time are texts, and the first is there")
    writer = FieldWriter(manager, operation, subresource, "" if operation is Operation.APPLY else api_version)
    return writer, FieldHolding(api_version, decoded(entry.get("fieldsV1") or {}), time)


def written(holdings: Holdings) -> list[Mapping[str, Any]]:
    """Encode the entries to store."""
    return sorted_entries([entry_of(writer, holding) for writer, holding in holdings.items()])


def sorted_entries(entries: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Appliers first, then by time, name, version and subresource."""
    return sorted(entries, key=_order)


def _order(entry: Mapping[str, Any]) -> tuple[str, ...]:
    time, subresource = entry.get("time") or "", entry.get("subresource", "")
    return (entry["operation"], time, entry.get("manager", ""), entry["apiVersion"], subresource)


def entry_of(writer: FieldWriter, holding: FieldHolding) -> dict[str, Any]:
    entry = {
        "apiVersion": holding.api_version,
        "fieldsType": FIELDS_TYPE,
        "fieldsV1": encoded(holding.fields),
        "manager": writer.manager,
        "operation": str(writer.operation),
        "subresource": writer.subresource,
        "time": holding.time,
    }
    return {name: part for name, part in entry.items() if part not in (None, "")}


def is_reset(entries: Any) -> bool:
    """Whether a client resets the ownership: `[]`, or `[{}]` for clients that omit empty lists."""
    return entries in ([], [{}])


def capped(holdings: Holdings) -> dict[FieldWriter, FieldHolding]:
    """Merge the oldest updaters of each version into one when there are more than MOST_UPDATERS."""
    result = dict(holdings)
    updaters = sorted(
        (writer for writer in holdings if writer.operation is Operation.UPDATE),
        key=lambda writer: (holdings[writer].time or "", writer),
    )
    surplus, first = len(updaters) - MOST_UPDATERS, dict[str, FieldWriter]()
    for writer in updaters:
        if surplus <= 0:
            break
        version = holdings[writer].api_version
        if version not in first:
            first[version] = writer
            continue
        bucket = FieldWriter(ANCIENT, Operation.UPDATE, api_version=version)
        if bucket not in result:
            result[bucket] = result.pop(first[version])
        older, newer = result[bucket], result.pop(writer)
        result[bucket] = FieldHolding(version, older.fields | newer.fields, newer.time)
        surplus -= 1
    return result


def is_same(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Whether two objects differ only in revision and times of managedFields, so that nothing must be written."""
    if any(new.get(part) != old.get(part) for part in (*new, *old) if part != "metadata"):
        return False
    return _timeless(new) == _timeless(old)


def _timeless(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    metadata = dict(document.get("metadata") or {})
    metadata.pop("resourceVersion", None)
    entries = metadata.pop("managedFields", None) or []
    timeless = [{name: part for name, part in entry.items() if name != "time"} for entry in entries]
    return {**document, "metadata": metadata}, sorted(timeless, key=_place)


def _place(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name, "")) for name in ("operation", "manager", "apiVersion", "subresource"))


def all_fields(holdings: Holdings) -> FieldSet:
    """All owned fields."""
    held = EMPTY
    for holding in holdings.values():
        held = held | holding.fields
    return held
