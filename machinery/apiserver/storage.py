"""The port behind the generic API server: where the objects of a resource live.

Two adapters: `MemoryStorage` (hollow clusters, tests) and the hub's own over its database. One contract suite runs on both.

A document is the JSON object with its `metadata`; documents are never changed in place. Revisions (`metadata.resourceVersion`)
are integers that ascend over all resources of one storage.
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
    """What a storage knows objects by: `managedclusters` in `cluster.open-cluster-management.io`, whatever the version."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """An object's place within its resource; `namespace` is "" for cluster-scoped ones."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks: the authenticated user, as it goes into the change log and into `spec.username` of a CSR."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """What else the authenticator knows, by key: `authentication.kubernetes.io/credential-id`, ..."""
    holder: object = field(default=None, compare=False)
    """What the authenticator's own records say of the asker, for an authorizer that knows them. No header can claim it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it is served: the bytes carry `metadata.resourceVersion` = `revision`."""

    key: Key
    revision: int
    document: bytes


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource: None as namespace means all namespaces."""

    namespace: str | None = None
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)
    where: Hashable | None = None
    """A condition of the resource's own (`Resource.where`), which its storage knows how to ask."""
    order: Hashable | None = None
    """An order of the resource's own (`Resource.order`), not that of the keys; it knows behind which place a page begins."""


Standing = tuple[str | int | None, ...]
"""The values that an object is ordered by."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list, ordered by key.

    `after` is the last key when there is more, `remaining` how many follow (None: unknown). `place`: where the last object
    stands in the order that was asked for. `moves`: what follows is known as of now alone, whatever changes in between.
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

    With a DELETED comes the object as it last was in the selection, where the storage still knows that, else as it became; the
    revision is that of the change.
    """

    type: EventType
    stored: Stored
    lines: dict[Hashable, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The event as it was written for a watcher, by form: kept with it, for the others."""


Change = Callable[[Document], Document | None]
"""From the object as it is to the object as it shall be; None removes it; the same value writes nothing. It runs inside the
storage's transaction, may run again, does no I/O, and raises a MusterError to refuse. `metadata.resourceVersion`, `uid` and
`creationTimestamp` are the storage's: whatever the change returns there is replaced by the right ones."""


class Storage(Protocol):
    """Objects of several resources under one revision. All methods raise the tree of `machinery.errors`."""

    @property
    def portion(self) -> int | None:
        """How many objects of a list without limit are read and sent at a time, all of one revision; None: all at once."""
        return None

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        """The object. Raises NotFoundError."""

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        """A page. With `at` (from a continue token) as of that revision, or ExpiredError if it is compacted."""

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        """Stores a new object; gives it uid, creationTimestamp and resourceVersion. Raises AlreadyExistsError."""

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        """Applies `change` atomically; a removed object is returned as it last was, with the revision of the removal.

        Raises NotFoundError.
        """

    def watch(
        self, resource: GroupResource, selection: Selection, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[StorageEvent | int]]:
        """Events with a revision above `after`, in order, without end.

        An int among them is a revision up to which all was told (a bookmark).

        Entering raises ExpiredError when `after` is compacted. A watcher that is too slow gets ExpiredError from the iterator.
        """

    async def revision(self) -> int:
        """The newest revision that is visible."""

    async def wait_for(self, revision: int) -> None:
        """Returns when `revision` is visible. The caller bounds the wait."""


@dataclass(frozen=True, slots=True)
class PastRevision:
    """A place in the past: the newest revision there, and when it was that."""

    revision: int
    moment: datetime


class Past(Protocol):
    """What some resources were at earlier times. All methods raise ExpiredError for what is forgotten."""

    async def place(self, asked: datetime | int) -> PastRevision:
        """Where an instant, or a revision, is."""

    async def get_at(self, resource: GroupResource, key: Key, at: int) -> Stored:
        """The object as it was. Raises NotFoundError."""

    async def list_at(
        self, resource: GroupResource, selection: Selection, *, limit: int | None, after: Key | None, at: int
    ) -> Page:
        """A page as of that revision."""
