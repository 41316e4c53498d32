"""Effect of a write on field owners, and conflict errors.

A writer becomes the only owner of a field that it writes, beside appliers of the same value; a removed field has no owner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from machinery.errors import Cause, ConflictError, ErrorSubject
from machinery.meta.managedfields import elements
from machinery.meta.managedfields.comparing import Comparison, compare
from machinery.meta.managedfields.elements import field
from machinery.meta.managedfields.fieldset import EMPTY, FieldSet, of_paths
from machinery.meta.managedfields.holdings import FieldHolding, FieldWriter, Holdings, Operation, capped
from machinery.meta.managedfields.selecting import reconciled
from machinery.meta.managedfields.structure import Structure

Document = Mapping[str, Any]
CONFLICT = "FieldManagerConflict"
_OF_THE_SERVER = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation")
NOBODYS = of_paths(
    (field("apiVersion"),),
    (field("kind"),),
    (field("metadata"),),
    *((field("metadata"), field(name)) for name in (*_OF_THE_SERVER, "managedFields", "resourceVersion")),
)
"""Fields without owners: those that name the object, and those that only the server writes."""


class Versions(Protocol):
    """The served versions of a kind. Every document has its version in `apiVersion`."""

    def structure(self, api_version: str) -> Structure | None:
        """None: the version is no longer served."""

    def converted(self, document: Document, api_version: str) -> Document:
        """Convert to a served version."""


@dataclass(frozen=True, slots=True)
class OneVersion:
    """A kind written in one version; fields owned in other versions are assumed to have the same names."""

    only: Structure

    def structure(self, api_version: str) -> Structure | None:
        del api_version
        return self.only

    def converted(self, document: Document, api_version: str) -> Document:
        del api_version
        return document


class Comparisons:
    """Compares two documents in each version in which fields are owned; each comparison is computed once."""

    def __init__(self, versions: Versions, old: Document, new: Document) -> None:
        self._versions = versions
        self._old = old
        self._new = new
        self._made: dict[str, Comparison | None] = {}

    def in_version(self, api_version: str) -> Comparison | None:
        """None: the version is no longer served."""
        if api_version not in self._made:
            self._made[api_version] = self._compared(api_version)
        return self._made[api_version]

    def _compared(self, api_version: str) -> Comparison | None:
        structure = self._versions.structure(api_version)
        if structure is None:
            return None
        old, new = (self._versions.converted(document, api_version) if document else {} for document in (self._old, self._new))
        return compare(structure, old, new)


def updated(
    comparisons: Comparisons, holdings: Holdings, writer: FieldWriter, time: str, *, of: FieldSet | None = None
) -> dict[FieldWriter, FieldHolding]:
    """The owners after a create, update or patch by `writer`, an updater.

    `of`: the fields that it meant to write, if others changed too; None: all changed fields.
    """
    own = comparisons.in_version(writer.api_version)
    left = released(comparisons, holdings)
    gained = (own.written if own is not None else EMPTY) - NOBODYS
    gained = gained if of is None else gained & of
    if gained:
        before = left.get(writer)
        left[writer] = FieldHolding(writer.api_version, gained | before.fields if before else gained, time)
    return capped(left)


def released(
    comparisons: Comparisons, holdings: Holdings, keeping: FieldWriter | None = None
) -> dict[FieldWriter, FieldHolding]:
    """The fields that other owners keep after a write. `keeping` keeps all its fields."""
    left = {}
    for writer, holding in holdings.items():
        comparison = comparisons.in_version(holding.api_version)
        if comparison is None:
            continue
        lost = EMPTY if writer == keeping else comparison.written | comparison.removed
        if fields := holding.fields - lost:
            left[writer] = holding if fields is holding.fields else replace(holding, fields=fields)
    return left


def current(versions: Versions, holdings: Holdings) -> dict[FieldWriter, FieldHolding]:
    """Owners in the current structures; versions that are no longer served are dropped."""
    result = {}
    for writer, holding in holdings.items():
        structure = versions.structure(holding.api_version)
        if structure is not None:
            result[writer] = replace(holding, fields=reconciled(structure, holding.fields))
    return result


Conflict = tuple[FieldWriter, FieldHolding, tuple[str, ...]]


def conflicts(comparisons: Comparisons, holdings: Holdings, applier: FieldWriter) -> list[Conflict]:
    """Fields that an apply would change and that have another owner."""
    found: list[Conflict] = []
    for writer, holding in sorted(holdings.items(), key=lambda item: item[0]):
        comparison = comparisons.in_version(holding.api_version)
        if writer != applier and comparison is not None:
            found.extend((writer, holding, path) for path in (holding.fields & comparison.written).paths())
    return found


def conflict_error(found: list[Conflict]) -> ConflictError:
    """The error with Kubernetes' messages: one cause per field with its owner."""
    causes = [Cause(CONFLICT, f"conflict with {_named(*each[:2])}", elements.shown(each[2])) for each in found]
    if len(found) == 1:
        text = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
        return ConflictError(text, subject=ErrorSubject(), causes=causes)
    by_holder: dict[str, list[str]] = {}
    for writer, holding, path in found:
        by_holder.setdefault(f"conflicts with {_named(writer, holding)}:", []).append(f"- {elements.shown(path)}")
    lines = [line for holder, fields in by_holder.items() for line in (holder, *fields)]
    text = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    return ConflictError(text, subject=ErrorSubject(), causes=causes)


def _named(writer: FieldWriter, holding: FieldHolding) -> str:
    part = f' with subresource "{writer.subresource}"' if writer.subresource else ""
    using = f" using {holding.api_version}" if writer.operation is Operation.UPDATE else ""
    return f'"{writer.manager}"{part}{using}'
