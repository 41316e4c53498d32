"""Server-side apply: merge a configuration, remove fields that its applier no longer applies, find conflicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from machinery.meta.managedfields.comparing import SAME
from machinery.meta.managedfields.fieldset import EMPTY, FieldSet
from machinery.meta.managedfields.holdings import FieldHolding, FieldWriter, Holdings
from machinery.meta.managedfields.merging import merge
from machinery.meta.managedfields.selecting import fields_of, with_named, without
from machinery.meta.managedfields.structure import Structure
from machinery.meta.managedfields.updating import (
    NOBODYS,
    Comparisons,
    Conflict,
    Document,
    Versions,
    conflicts,
    current,
    released,
)


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an apply: document, owners and conflicts. `changed`: whether any field differs."""

    document: Document
    holdings: Mapping[FieldWriter, FieldHolding]
    conflicts: list[Conflict]
    changed: bool


@dataclass(frozen=True, slots=True)
class Application:
    """One configuration to apply to one live document of the same version ({}: none exists)."""

    versions: Versions
    live: Document
    config: Document
    holdings: Holdings
    applier: FieldWriter
    time: str

    @property
    def api_version(self) -> str:
        return str(self.config["apiVersion"])

    def result(self) -> Applied:
        """Apply. The caller refuses or ignores the conflicts; the rest of the result is that of a forced apply."""
        structure = self._structure(self.api_version)
        held = current(self.versions, self.holdings)
        last = held.get(self.applier)
        said = fields_of(structure, self.config)
        fields = said - NOBODYS
        own = FieldHolding(self.api_version, fields, last.time if last else None)
        claimed = {**held, self.applier: own}
        merged = merge(structure, self.live, self.config)
        # The name has no owner, but counts as applied here: otherwise removing the last label would remove the metadata.
        stays = {**claimed, self.applier: FieldHolding(self.api_version, said, None)}
        new = self._pruned(merged, stays, last) if last is not None else merged
        comparisons = Comparisons(self.versions, self.live, new)
        found = conflicts(comparisons, claimed, self.applier)
        after = released(comparisons, claimed, keeping=self.applier)
        changed = (comparisons.in_version(self.api_version) or SAME) != SAME
        if changed and self.applier in after:
            after[self.applier] = FieldHolding(self.api_version, fields, self.time)
        return Applied(new, after, found, changed)

    def _structure(self, api_version: str) -> Structure:
        structure = self.versions.structure(api_version)
        if structure is None:
            msg = f"version {api_version} is not served"
            raise LookupError(msg)
        return structure

    def _pruned(self, merged: Document, held: Holdings, last: FieldHolding) -> Document:
        """`merged` without the fields that only the applier owned and no longer applies.

        All fields of its last apply are removed; those with another owner, and those that the applier never owned, are
        restored.
        """
        version = last.api_version
        structure = self._structure(version)
        whole = self.versions.converted(merged, version)
        pruned: Document = without(structure, whole, with_named(structure, last.fields))
        for other, fields in _by_version(held, version).items():
            pruned = self._with_held(merged, pruned, other, fields)
        pruned = self.versions.converted(pruned, version)
        gone = _named_fields(structure, whole) - _named_fields(structure, pruned)
        pruned = without(structure, whole, gone & with_named(structure, last.fields))
        return self.versions.converted(pruned, self.api_version)

    def _with_held(self, merged: Document, pruned: Document, version: str, fields: FieldSet) -> Document:
        """`pruned` with the fields of `merged` that have an owner in this version."""
        structure = self._structure(version)
        whole, kept = self.versions.converted(merged, version), self.versions.converted(pruned, version)
        stays = _named_fields(structure, kept) | with_named(structure, fields)
        return without(structure, whole, _named_fields(structure, whole) - stays, held=fields)


def _named_fields(structure: Structure, document: Document) -> FieldSet:
    return with_named(structure, fields_of(structure, document))


def _by_version(holdings: Holdings, first: str) -> dict[str, FieldSet]:
    """Owned fields by version; `first` comes first, because conversions may need its fields."""
    found: dict[str, FieldSet] = {first: EMPTY}
    for holding in holdings.values():
        found[holding.api_version] = found.get(holding.api_version, EMPTY) | holding.fields
    return {version: fields for version, fields in found.items() if fields}


def configuration(document: Mapping[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    """The part of an applied document that its path can change: the envelope and `parts`."""
    return {name: value for name, value in document.items() if name in ("apiVersion", "kind", "metadata", *parts)}
