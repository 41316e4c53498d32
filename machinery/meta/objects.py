"""Kubernetes objects as a storage keeps and serves them: keys, queries, pages and watch events, as values.

A document is the JSON object with its `metadata`; documents are never changed in place.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from machinery.meta.selectors import Operator, Requirement

Document = Mapping[str, Any]
"""A Kubernetes object as decoded JSON; never modified in place."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Namespace and name of an object; `namespace` is "" for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object with the exact bytes that are served; their `metadata.resourceVersion` is `revision`."""

    key: Key
    revision: int
    encoded: bytes
    uid: str = ""
    """`metadata.uid`; empty for an object that is computed when it is read."""
    _decoded: list[Document] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def document(self) -> Document:
        """The object, decoded at the first access."""
        if not self._decoded:
            self._decoded.append(msgspec.json.decode(self.encoded))
        return self._decoded[0]


SortPosition = tuple[str | int | None, ...]
"""The values by which an object is ordered, one per sort key: a text, or microseconds since 1970; None for a missing value."""


@dataclass(frozen=True, slots=True)
class Query:
    """Selects objects of a kind, ordered by key.

    `namespace` None: all namespaces. `at`: as of an earlier revision. `past`: also of a revision that is kept for history only,
    from which no watch can resume.
    """

    namespace: str | None = None
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    limit: int | None = None
    after: Key | None = None
    """The last key of the previous page."""
    at: int | None = None
    where: Hashable | None = None
    """A condition from `Resource.where`, which the storage evaluates."""
    past: bool = False
    order: Hashable | None = None
    """An order from `Resource.order` in place of the key order, with the position after which the page begins."""

    def matches(self, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """Whether namespace, labels and fields match. A missing field is the empty string, as in Kubernetes."""
        if self.namespace is not None and key.namespace != self.namespace:
            return False
        if not all(term.matches(labels) for term in self.labels):
            return False
        if not self.fields:
            return True
        known = {**fields, "metadata.name": key.name, "metadata.namespace": key.namespace}
        return all(
            (known.get(term.name, "") in term.values) == (term.operator in (Operator.EQUALS, Operator.IN))
            for term in self.fields
        )


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of a query and the revision of the answer.

    `after`: last key if there are more objects; `remaining`: how many follow (None: unknown). `place`: sort position of the
    last object. `moves`: following pages show the current state, not that of this page's revision.
    """

    items: tuple[StoredObject, ...]
    revision: int
    after: Key | None = None
    remaining: int | None = None
    place: SortPosition = ()
    moves: bool = False


class ChangeType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change as a watcher with a query sees it: entering the selection is ADDED, leaving it is DELETED.

    DELETED carries the object as it last was in the selection if the storage still has that state, otherwise its new state; the
    revision is that of the change.
    """

    type: ChangeType
    stored: StoredObject
    lines: dict[Hashable, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Encoded event by output form, cached for other watchers."""
