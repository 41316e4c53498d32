"""The storage port of the generic API server.

Two adapters: `MemoryStorage` (hollow clusters, tests) and the hub's storage over its database. One contract suite runs on both.

A document is the JSON object with its `metadata`; documents are never changed in place. Revisions (`metadata.resourceVersion`)
are integers that increase over all resources of one storage.
"""

from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from machinery.meta.selectors import FieldSelector, LabelSelector

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupResource:
    """A resource independent of its version, such as `managedclusters` in `cluster.open-cluster-management.io`."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Namespace and name of an object; `namespace` is "" for cluster-scoped objects."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Actor:
    """The user of a request, as recorded in the change log and in `spec.username` of a CSR."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Further attributes from the authenticator, such as `authentication.kubernetes.io/credential-id`."""
    holder: object = field(default=None, compare=False)
    """The authenticator's own record of the user, for an authorizer that understands it. No header can set it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as served: the JSON has `metadata.resourceVersion` = `revision`."""

    key: Key
    revision: int
    document: bytes


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of a resource's objects. `namespace` None: all namespaces."""

    namespace: str | None = None
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)
    where: Hashable | None = None
    """A condition from `Resource.where`, which the resource's storage evaluates."""
    order: Hashable | None = None
    """An order from `Resource.order` in place of the key order; it includes the position after which a page begins."""


Standing = tuple[str | int | None, ...]
"""The values by which an object is ordered."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list, ordered by key.

    `after`: last key if there are more objects; `remaining`: how many follow (None: unknown). `place`: position of the last
    object in the requested order. `moves`: following pages show the current state, not that of this page's revision.
    """

    items: tuple[Stored, ...]
    revision: int
    after: Key | None = None
    remaining: int | None = None
    place: Standing = ()
    moves: bool = False


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """One change as a watcher with a selection sees it: entering the selection is ADDED, leaving it is DELETED.

    DELETED carries the object as it last was in the selection if the storage still has that state, otherwise its new state; the
    revision is that of the change.
    """

    type: EventType
    stored: Stored
    lines: dict[Hashable, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Encoded event by output form, cached for other watchers."""


Change = Callable[[Document], Document | None]
"""Computes the new object from the old one; None removes it; the same object writes nothing. It runs inside the storage's
transaction, may run again, does no I/O, and raises a MusterError to refuse. The storage sets `metadata.resourceVersion`, `uid`
and `creationTimestamp` and overrides the returned values."""


class Storage(Protocol):
    """Objects of several resources under one revision. All methods raise errors of `machinery.errors`."""

    @property
    def portion(self) -> int | None:
        """Batch size in which a list without limit is read and sent, all of one revision; None: all at once."""
        return None

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        """Raises NotFoundError."""

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        """Return a page. `at` (from a continue token): as of that revision; raises ExpiredError if it is compacted."""

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        """Store a new object with uid, creationTimestamp and resourceVersion. Raises AlreadyExistsError."""

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        """Apply `change` atomically. A removed object is returned in its last state with the revision of the removal.

        Raises NotFoundError.
        """

    def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[StorageEvent | int]]:
        """Endless events with a revision above `after`, in order. An int is a bookmark: all events up to it were delivered.

        Entering raises ExpiredError when `after` is compacted; the iterator raises it for a watcher that is too slow.
        """

    async def revision(self) -> int:
        """Newest visible revision."""

    async def wait_for(self, revision: int) -> None:
        """Wait until `revision` is visible. The caller bounds the wait."""


@dataclass(frozen=True, slots=True)
class PastRevision:
    """A past revision and the instant at which it was the newest."""

    revision: int
    moment: datetime


class Past(Protocol):
    """Earlier states of some resources. All methods raise ExpiredError for states that are no longer kept."""

    async def place(self, asked: datetime | int) -> PastRevision:
        """Newest revision at an instant, or the instant of a revision."""

    async def get_at(self, resource: GroupResource, key: Key, at: int) -> Stored:
        """Object as of that revision. Raises NotFoundError."""

    async def list_at(
        self, resource: GroupResource, selection: Selection, *, limit: int | None, after: Key | None, at: int
    ) -> Page:
        """Page as of that revision."""
