"""Server-side apply: merge a configuration, remove what its applier applied before and does not any more, refuse conflicts."""

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
    """What comes of an apply: the document, who holds what, and with whom it conflicts. `changed`: whether a field differs."""

    document: Document
    holdings: Mapping[FieldWriter, FieldHolding]
    conflicts: list[Conflict]
    changed: bool


@dataclass(frozen=True, slots=True)
class Application:
    """One configuration to apply to one live document of the same version ({}: there is none yet)."""

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
        """The conflicts are for the caller to refuse or to ignore: the rest is what a forced apply does."""
        structure = self._structure(self.api_version)
        held = current(self.versions, self.holdings)
        last = held.get(self.applier)
        said = fields_of(structure, self.config)
        fields = said - NOBODYS
        own = FieldHolding(self.api_version, fields, last.time if last else None)
        claimed = {**held, self.applier: own}
        merged = merge(structure, self.live, self.config)
        # The name is nobody's, but it is said again: whoever takes the last label back does not take the metadata along.
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
        """`merged` without what only the applier held, and does not apply any more.

        Everything of the last time goes; what anybody holds, and what the applier never held, comes back.
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
        """`pruned` with those fields of `merged` that are held in this version."""
        structure = self._structure(version)
        whole, kept = self.versions.converted(merged, version), self.versions.converted(pruned, version)
        stays = _named_fields(structure, kept) | with_named(structure, fields)
        return without(structure, whole, _named_fields(structure, whole) - stays, held=fields)


def _named_fields(structure: Structure, document: Document) -> FieldSet:
    return with_named(structure, fields_of(structure, document))


def _by_version(holdings: Holdings, first: str) -> dict[str, FieldSet]:
    """What is held, by the version it is spelled in; `first` comes first: others may need its fields to be converted."""
    found: dict[str, FieldSet] = {first: EMPTY}
    for holding in holdings.values():
        found[holding.api_version] = found.get(holding.api_version, EMPTY) | holding.fields
    return {version: fields for version, fields in found.items() if fields}


def configuration(document: Mapping[str, Any], parts: tuple[str, ...]) -> dict[str, Any]:
    """Of an applied document what its path can change: the envelope and these parts."""
    return {name: value for name, value in document.items() if name in ("apiVersion", "kind", "metadata", *parts)}
