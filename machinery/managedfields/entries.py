"""managedFields changed entry by entry: what `updating` does, for writers that never apply, and must be cheap.

An entry that a write does not touch is neither read nor written anew. The entries must be as this package writes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machinery.managedfields.comparing import Comparison
from machinery.managedfields.fieldset import EMPTY, SELF, FieldSet, decoded, encoded
from machinery.managedfields.holdings import (
    MOST_UPDATERS,
    Holding,
    Operation,
    Writer,
    capped,
    entry_of,
    read,
    sorted_entries,
    written,
)

Entry = Mapping[str, Any]
InVersion = Callable[[str], Comparison]
"""What a write changed, in the spelling of an apiVersion."""


@dataclass(frozen=True, slots=True)
class Taking:
    """An updater takes fields that it has written."""

    writer: Writer
    fields: FieldSet

    def is_of(self, entry: Entry) -> bool:
        writer = self.writer
        return (
            entry.get("manager") == writer.manager
            and entry["operation"] == writer.operation
            and entry["apiVersion"] == writer.api_version
            and entry.get("subresource", "") == writer.subresource
        )


def after(entries: Sequence[Entry], changed: InVersion, takings: Sequence[Taking], time: str) -> list[Entry]:
    """The entries after a write that changed this, by writers that took what they changed; nobody holds what is gone."""
    left, waiting = [], list(takings)
    for entry in entries:
        comparison = changed(entry["apiVersion"])
        taking = next((each for each in waiting if each.is_of(entry)), None)
        kept = _without(entry, comparison.removed if taking is not None else comparison.written | comparison.removed)
        if taking is not None:
            waiting.remove(taking)
            kept = _with(kept or entry_of(taking.writer, Holding(taking.writer.api_version, EMPTY)), taking, time)
        if kept is not None:
            left.append(kept)
    new = [entry_of(taking.writer, Holding(taking.writer.api_version, taking.fields, time)) for taking in waiting]
    return _few(sorted_entries([*left, *new]))


def _without(entry: Entry, lost: FieldSet) -> Entry | None:
    if not _touches(entry["fieldsV1"], lost):
        return entry
    fields = decoded(entry["fieldsV1"]) - lost
    return {**entry, "fieldsV1": encoded(fields)} if fields else None


def _with(entry: Entry, taking: Taking, time: str) -> Entry:
    if _covers(entry["fieldsV1"], taking.fields):
        return {**entry, "time": time}
    return {**entry, "fieldsV1": encoded(decoded(entry["fieldsV1"]) | taking.fields), "time": time}


def _covers(notation: Mapping[str, Any], fields: FieldSet) -> bool:
    """Whether a set in its notation has all the fields of another one."""
    for element, below in fields.children.items():
        there = notation.get(element)
        if there is None or (below.member and there and SELF not in there) or not _covers(there, below):
            return False
    return True


def _touches(notation: Mapping[str, Any], fields: FieldSet) -> bool:
    """Whether a set in its notation and another one share a field."""
    for element, below in fields.children.items():
        there = notation.get(element)
        if there is None:
            continue
        if below.member and (not there or SELF in there):
            return True
        if below.children and _touches(there, below):
            return True
    return False


def _few(entries: list[Entry]) -> list[Entry]:
    if sum(entry["operation"] == Operation.UPDATE for entry in entries) <= MOST_UPDATERS:
        return entries
    return list(written(capped(read(entries))))
