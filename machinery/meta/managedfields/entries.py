"""managedFields changed entry by entry: a cheap form of `updating` for writers that never apply.

Entries that a write does not affect are neither decoded nor encoded. The entries must be in this package's canonical form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machinery.meta.managedfields.comparing import Noted
from machinery.meta.managedfields.holdings import (
    FIELDS_TYPE,
    MOST_UPDATERS,
    FieldWriter,
    Operation,
    capped,
    read,
    sorted_entries,
    written,
)
from machinery.meta.managedfields.notation import Notation, covers, in_order, minus, touches, union

Entry = Mapping[str, Any]
InVersion = Callable[[str], Noted]
"""Returns the fields that a write changed, in the notation of an apiVersion."""


@dataclass(frozen=True, slots=True)
class Taking:
    """The fields that an updater has written and now owns."""

    writer: FieldWriter
    fields: Notation

    def is_of(self, entry: Entry) -> bool:
        writer = self.writer
        return (
            entry.get("manager") == writer.manager
            and entry["operation"] == writer.operation
            and entry["apiVersion"] == writer.api_version
            and entry.get("subresource", "") == writer.subresource
        )


def after(entries: Sequence[Entry], changed: InVersion, takings: Sequence[Taking], time: str) -> list[Entry]:
    """The entries after a write that changed these fields; the writers own what they wrote, removed fields have no owner."""
    left, waiting = [], list(takings)
    for entry in entries:
        noted = changed(entry["apiVersion"])
        taking = next((each for each in waiting if each.is_of(entry)), None)
        kept = _without(entry, noted.removed)
        if taking is not None:
            waiting.remove(taking)
            kept = _with(kept, taking, time)
        elif kept is not None:
            kept = _without(kept, noted.written)
        if kept is not None:
            left.append(kept)
    return _few(sorted_entries([*left, *(_entry(taking, time) for taking in waiting)]))


def _entry(taking: Taking, time: str) -> Entry:
    writer = taking.writer
    return {
        "apiVersion": writer.api_version,
        "fieldsType": FIELDS_TYPE,
        "fieldsV1": in_order(taking.fields),
        "manager": writer.manager,
        "operation": str(writer.operation),
        **({"subresource": writer.subresource} if writer.subresource else {}),
        "time": time,
    }


def _without(entry: Entry, lost: Notation) -> Entry | None:
    if not lost or not touches(entry["fieldsV1"], lost):
        return entry
    fields = minus(entry["fieldsV1"], lost)
    return {**entry, "fieldsV1": fields} if fields else None


def _with(entry: Entry | None, taking: Taking, time: str) -> Entry:
    if entry is None:
        return _entry(taking, time)
    if covers(entry["fieldsV1"], taking.fields):
        return {**entry, "time": time}
    return {**entry, "fieldsV1": in_order(union(entry["fieldsV1"], taking.fields)), "time": time}


def _few(entries: list[Entry]) -> list[Entry]:
    if sum(entry["operation"] == Operation.UPDATE for entry in entries) <= MOST_UPDATERS:
        return entries
    return list(written(capped(read(entries))))
