"""Kubernetes objects as a storage keeps and serves them, with keys, queries, pages and watch events, as values."""

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
    """An object with the exact bytes that the server sends. They contain `revision` as `metadata.resourceVersion`."""

    key: Key
    revision: int
    encoded: bytes
    uid: str = ""
    """`metadata.uid`; empty: the object is computed when it is read."""
    _decoded: list[Document] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def document(self) -> Document:
        """The decoded object. It is decoded at the first access."""
        if not self._decoded:
            self._decoded.append(msgspec.json.decode(self.encoded))
        return self._decoded[0]


SortPosition = tuple[str | int | None, ...]
"""The values by which an object is sorted, one per sort key: a text, or microseconds since 1970; None: the value is missing."""


@dataclass(frozen=True, slots=True)
class Query:
    """Selects objects of a kind, ordered by key.

    `namespace` None: all namespaces. `after`: the page begins after this key. `at`: the revision to read; None: the newest one.
    `past`: `at` may be a revision that is kept only for history, from which no watch can resume.
    """

    namespace: str | None = None
    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    limit: int | None = None
    after: Key | None = None
    at: int | None = None
    where: Hashable | None = None
    """A condition that `Resource.where` has parsed. The storage evaluates it."""
    past: bool = False
    order: Hashable | None = None
    """An order that `Resource.order` has parsed, instead of the order by key. It contains the sort position of `after`."""

    def matches(self, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """Whether namespace, labels and fields match. A missing field counts as the empty string, as in Kubernetes."""
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
    """A page of the objects of a query, and its revision.

    `after`: the last key, if there are more objects; `remaining`: their number (None: unknown). `place`: sort position of the
    last object. `moves`: a later page shows the state at the time of its request, not at this page's revision.
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
    """A change, for a watcher with a query. ADDED: the query now selects the object; DELETED: it no longer selects the object.

    The object of DELETED is its last state in the selection if the storage still has it, otherwise the new state. The revision
    is that of the change.
    """

    type: ChangeType
    stored: StoredObject
    lines: dict[Hashable, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The encoded event by output form, cached for other watchers."""
