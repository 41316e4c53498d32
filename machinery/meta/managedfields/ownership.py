"""Owners of fields, as stored in `metadata.managedFields`, and how a write changes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any, Protocol

from machinery.meta.managedfields import fieldset
from machinery.meta.managedfields.comparing import Comparison, compare, reconciled
from machinery.meta.managedfields.fieldset import Fields, decoded, in_order, intersects, minus, of_paths, union
from machinery.meta.managedfields.structure import Structure
from machinery.meta.timestamps import is_go_time

Document = Mapping[str, Any]
MOST_UPDATERS = 10
"""Largest number of owners with the operation Update. If there are more, the oldest owners of a version are merged into one."""
ANCIENT = "ancient-changes"
FIELDS_TYPE = "FieldsV1"
_OF_THE_SERVER = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation")
NOBODYS = of_paths(
    *((fieldset.field(name),) for name in ("apiVersion", "kind", "metadata")),
    *((fieldset.field("metadata"), fieldset.field(name)) for name in (*_OF_THE_SERVER, "managedFields", "resourceVersion")),
)
"""Fields that never have owners: those that identify the object, and those that only the server writes."""


class Operation(StrEnum):
    APPLY = "Apply"
    UPDATE = "Update"


_ORDERED_BY = ("time", "manager", "apiVersion", "subresource")
_OPERATIONS = {str(operation): operation for operation in Operation}


@dataclass(frozen=True, slots=True, order=True)
class FieldWriter:
    """A field manager and how it writes. Requests with equal FieldWriters are one owner. An applier has no `api_version`."""

    manager: str
    operation: Operation
    subresource: str = ""
    api_version: str = ""
    """The version in which an updater writes; "" for an applier."""


@dataclass(frozen=True, slots=True)
class FieldHolding:
    """The fields of one owner in a version's notation. `time`: RFC 3339, as stored; None: the owner has changed nothing."""

    api_version: str
    fields: Fields
    time: str | None = None
    entry: Document | None = field(default=None, compare=False, repr=False)
    """The stored entry with this content, so that it need not be encoded again."""


Holdings = Mapping[FieldWriter, FieldHolding]
InVersion = Callable[[str], Comparison | None]
"""Returns the fields that a write has changed, in the notation of an apiVersion; None if the version is no longer served."""


def updater(manager: str, api_version: str, subresource: str = "") -> FieldWriter:
    return FieldWriter(manager or "unknown", Operation.UPDATE, subresource, api_version)


def applier(manager: str, subresource: str = "") -> FieldWriter:
    return FieldWriter(manager, Operation.APPLY, subresource)


class UnreadableError(ValueError):
    """The managedFields cannot be decoded."""


def read(entries: Any) -> dict[FieldWriter, FieldHolding]:
    """Decode managedFields that a client sent. Raises UnreadableError."""
    if not isinstance(entries, list):
        raise UnreadableError("managedFields is a list")
    try:
        return dict(_read(entry) for entry in entries)
    except ValueError as error:
        raise UnreadableError(str(error)) from None


def of_object(document: Document) -> dict[FieldWriter, FieldHolding]:
    """Return the owners of a stored object's fields; none if managedFields cannot be decoded."""
    try:
        return read(document.get("metadata", {}).get("managedFields") or [])
    except UnreadableError:
        return {}


def of_entries(entries: list[Document]) -> dict[FieldWriter, FieldHolding]:
    """Return the owners in entries that `written` has encoded. Nothing is validated or decoded."""
    holdings = {}
    for entry in entries:
        operation, version = _OPERATIONS[entry["operation"]], entry["apiVersion"]
        own_version = "" if operation is Operation.APPLY else version
        writer = FieldWriter(entry.get("manager", ""), operation, entry.get("subresource", ""), own_version)
        holdings[writer] = FieldHolding(version, entry["fieldsV1"], entry.get("time"), entry)
    return holdings


def _read(entry: Any) -> tuple[FieldWriter, FieldHolding]:
    if not isinstance(entry, dict) or entry.get("fieldsType") != FIELDS_TYPE:
        raise UnreadableError("an entry of managedFields is an object with fields of type FieldsV1")
    operation, api_version = Operation(str(entry.get("operation"))), entry.get("apiVersion")
    manager, subresource, time = entry.get("manager") or "", entry.get("subresource") or "", entry.get("time") or None
    are_texts = all(isinstance(part, str) for part in (api_version, manager, subresource, time or ""))
    if not api_version or not are_texts or (time and not is_go_time(time)):
        raise UnreadableError("apiVersion, manager, subresource and time are texts, the first is there, the last is RFC 3339")
    writer = FieldWriter(manager, operation, subresource, "" if operation is Operation.APPLY else api_version)
    return writer, FieldHolding(api_version, decoded(entry.get("fieldsV1") or {}), time)


def written(holdings: Holdings) -> list[Document]:
    """Return the managedFields to store: appliers before updaters, and each group by time, manager, version and subresource."""
    entries = (holding.entry or _entry(writer, holding) for writer, holding in holdings.items())
    return sorted(entries, key=lambda each: [each["operation"], *(each.get(name) or "" for name in _ORDERED_BY)])


def _entry(writer: FieldWriter, holding: FieldHolding) -> Document:
    entry = {
        "apiVersion": holding.api_version,
        "fieldsType": FIELDS_TYPE,
        "fieldsV1": in_order(holding.fields),
        "manager": writer.manager,
        "operation": str(writer.operation),
        "subresource": writer.subresource,
        "time": holding.time,
    }
    return {name: part for name, part in entry.items() if part not in (None, "")}


def is_same(new: Document, old: Document) -> bool:
    """Whether two objects differ at most in revision and times of managedFields, so that no write is needed."""
    if any(new.get(part) != old.get(part) for part in (*new, *old) if part != "metadata"):
        return False
    return _timeless(new) == _timeless(old)


def _timeless(document: Document) -> tuple[dict[str, Any], list[Any]]:
    metadata = dict(document.get("metadata") or {})
    metadata.pop("resourceVersion", None)
    entries = metadata.pop("managedFields", None) or []
    timeless = [{name: part for name, part in entry.items() if name != "time"} for entry in entries]
    by = ("operation", "manager", "apiVersion", "subresource")
    return {**document, "metadata": metadata}, sorted(timeless, key=lambda each: [str(each.get(name, "")) for name in by])


class Versions(Protocol):
    """The served versions of a kind. Every document has its version in `apiVersion`."""

    def structure(self, api_version: str) -> Structure | None:
        """Return the structure of a version; None if it is no longer served."""

    def converted(self, document: Document, api_version: str) -> Document:
        """Convert the document to the served version `api_version`."""


def comparisons(versions: Versions, old: Document, new: Document) -> InVersion:
    """Return a function that compares two documents in a version. It returns None if the version is no longer served."""

    @cache
    def compared(api_version: str) -> Comparison | None:
        structure = versions.structure(api_version)
        if structure is None:
            return None
        before, after = (versions.converted(document, api_version) if document else {} for document in (old, new))
        return compare(structure, before, after)

    return compared


def updated(
    changed: InVersion, holdings: Holdings, taken: Mapping[FieldWriter, Fields], time: str
) -> dict[FieldWriter, FieldHolding]:
    """Return the owners after a create, update or patch. `taken`: the written fields that each updater now owns."""
    left = released(changed, holdings, taken)
    for writer, fields in taken.items():
        if not fields:
            continue
        before = left.get(writer)
        if before is None:
            left[writer] = FieldHolding(writer.api_version, fields, time)
        elif before.entry is not None and fieldset.covers(before.fields, fields):
            left[writer] = FieldHolding(writer.api_version, before.fields, time, {**before.entry, "time": time})
        else:
            left[writer] = FieldHolding(writer.api_version, union(before.fields, fields), time)
    return _capped(left)


def released(
    changed: InVersion, holdings: Holdings, keeping: Mapping[FieldWriter, Fields] | None = None
) -> dict[FieldWriter, FieldHolding]:
    """Return the owners with the fields that they still own after a write. `keeping`: written fields that an owner keeps."""
    left = {}
    for writer, holding in holdings.items():
        comparison = changed(holding.api_version)
        if comparison is None:
            continue
        kept = keeping.get(writer) if keeping else None
        lost = comparison.written if kept is None else minus(comparison.written, kept)
        fields = holding.fields
        for gone in (comparison.removed, lost):
            fields = minus(fields, gone) if gone and intersects(fields, gone) else fields
        if fields:
            left[writer] = holding if fields is holding.fields else replace(holding, fields=fields, entry=None)
    return left


def _capped(holdings: dict[FieldWriter, FieldHolding]) -> dict[FieldWriter, FieldHolding]:
    """If there are more than MOST_UPDATERS updaters, merge the oldest updaters of each version into one."""
    updaters = [writer for writer in holdings if writer.operation is Operation.UPDATE]
    surplus, first = len(updaters) - MOST_UPDATERS, dict[str, FieldWriter]()
    for writer in sorted(updaters, key=lambda writer: (holdings[writer].time or "", writer)) if surplus > 0 else ():
        if surplus <= 0:
            break
        version = holdings[writer].api_version
        if version not in first:
            first[version] = writer
            continue
        bucket = FieldWriter(ANCIENT, Operation.UPDATE, api_version=version)
        if bucket not in holdings:
            holdings[bucket] = holdings.pop(first[version])
        older, newer = holdings[bucket], holdings.pop(writer)
        holdings[bucket] = FieldHolding(version, union(older.fields, newer.fields), newer.time)
        surplus -= 1
    return holdings


def current(versions: Versions, holdings: Holdings) -> dict[FieldWriter, FieldHolding]:
    """Return the owners with their fields in the current structure of their version. Drop owners in versions not served now."""
    structures = {writer: versions.structure(holding.api_version) for writer, holding in holdings.items()}
    return {
        writer: replace(holding, fields=reconciled(structure, holding.fields), entry=None)
        for writer, holding in holdings.items()
        if (structure := structures[writer]) is not None
    }
