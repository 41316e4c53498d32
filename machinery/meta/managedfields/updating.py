"""What a write does to everybody's holdings, and the words of a conflict.

Whoever writes a field holds it, and nobody else does, unless they applied the same value; a field that goes is held by nobody.
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
"""What is never held: what names the object, and what only the server writes."""


class Versions(Protocol):
    """The served versions of a kind. Every document says its own in `apiVersion`."""

    def structure(self, api_version: str) -> Structure | None:
        """None: the version is not served any more."""

    def converted(self, document: Document, api_version: str) -> Document:
        """The document in a version that is served."""


@dataclass(frozen=True, slots=True)
class OneVersion:
    """A kind that is written in one version; what others hold in another one is taken to be spelled alike."""

    only: Structure

    def structure(self, api_version: str) -> Structure | None:
        del api_version
        return self.only

    def converted(self, document: Document, api_version: str) -> Document:
        del api_version
        return document


class Comparisons:
    """Two documents compared in whatever version somebody holds fields in; each comparison is made once."""

    def __init__(self, versions: Versions, old: Document, new: Document) -> None:
        self._versions = versions
        self._old = old
        self._new = new
        self._made: dict[str, Comparison | None] = {}

    def in_version(self, api_version: str) -> Comparison | None:
        """None: the version is not served any more."""
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
    """The holdings after a create, update or patch by `writer`, an updater.

    `of`: the fields that it meant to write, when others changed with them; None: all that changed is its doing.
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
    """What stays with its holders when somebody writes. `keeping` holds what it holds."""
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
    """Holdings as today's structures divide the document; those of versions that are not served any more go."""
    result = {}
    for writer, holding in holdings.items():
        structure = versions.structure(holding.api_version)
        if structure is not None:
            result[writer] = replace(holding, fields=reconciled(structure, holding.fields))
    return result


Conflict = tuple[FieldWriter, FieldHolding, tuple[str, ...]]


def conflicts(comparisons: Comparisons, holdings: Holdings, applier: FieldWriter) -> list[Conflict]:
    """The fields that an apply would change and somebody else holds."""
    found: list[Conflict] = []
    for writer, holding in sorted(holdings.items(), key=lambda item: item[0]):
        comparison = comparisons.in_version(holding.api_version)
        if writer != applier and comparison is not None:
            found.extend((writer, holding, path) for path in (holding.fields & comparison.written).paths())
    return found


def conflict_error(found: list[Conflict]) -> ConflictError:
    """The refusal in Kubernetes' words: one cause per field, naming field and holder."""
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
