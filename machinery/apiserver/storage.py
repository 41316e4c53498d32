"""The storage interface of the generic API server.

`MemoryStorage` (hollow clusters, tests) and the hub's storage over its database implement it. One test suite checks both.

Revisions (`metadata.resourceVersion`) are integers that increase over all resources of one storage.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from machinery.errors import ErrorSubject, ForbiddenError, MethodNotAllowedError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject, WatchEvent


@dataclass(frozen=True, slots=True)
class GroupResource:
    """A resource without its version, such as `managedclusters` in `cluster.open-cluster-management.io`."""

    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource


@dataclass(frozen=True, slots=True)
class Actor:
    """The user of a request, as recorded in the change log and in `spec.username` of a CSR."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Further attributes from the authenticator, such as `authentication.kubernetes.io/credential-id`."""
    holder: object = field(default=None, compare=False)
    """The authenticator's own record of the user, for an authorizer that can read it. No header of a request can set it."""


UpdateFunc = Callable[[Document], Document | None]
"""Computes the new object from the old one. The result None removes the object; an unchanged object writes nothing.

It runs inside the storage's transaction, may run again, does no I/O, and raises a MusterError to refuse. The storage itself
sets `metadata.resourceVersion`, `uid` and `creationTimestamp`."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A create (`old` None) or update before it happens. The start of a termination is an update. Removals are not checked."""

    resource: GroupResource
    key: Key
    new: Document
    old: Document | None
    actor: Actor

    def refusal(self, why: str) -> ForbiddenError:
        subject = ErrorSubject(name=self.key.name, group=self.resource.group, kind=self.resource.resource)
        return ForbiddenError(f'{self.resource} "{self.key.name}" is forbidden: {why}', subject=subject)


Admit = Callable[[Admission], Document]
"""Returns the object to store. Raises a MusterError to refuse. Runs with the UpdateFunc, possibly on a thread; does no I/O."""


class Storage(Protocol):
    """Objects of several resources under one revision. All methods raise errors of `machinery.errors`.

    A storage without `create`, `update` or `watch` raises MethodNotAllowedError.
    """

    @property
    def portion(self) -> int | None:
        """Number of objects per batch for lists without a limit. All batches have the same revision. None: one batch."""
        return None

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        """Return the object. Raises NotFoundError."""

    async def list(self, resource: GroupResource, query: Query) -> Page:
        """Return a page of the objects that `query` selects. Raises ExpiredError if the revision `query.at` was compacted."""

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Store a new object with uid, creationTimestamp and resourceVersion. Raises AlreadyExistsError."""
        del key, document, actor, dry_run
        raise MethodNotAllowedError(f"{resource} cannot be written")

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        """Apply `change` atomically. For a removed object, return its last state with the revision of the removal.

        Raises NotFoundError.
        """
        del key, change, actor, dry_run
        raise MethodNotAllowedError(f"{resource} cannot be written")

    def watch(
        self, resource: GroupResource, query: Query, *, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent | int]]:
        """Yield events above revision `after`, in order, without end. An int is a bookmark: all events up to it were yielded.

        Entering the block raises ExpiredError if `after` was compacted. The iterator raises it if the watcher is too slow.
        """
        del query, after
        raise MethodNotAllowedError(f"{resource} cannot be watched")

    async def revision(self) -> int:
        """Return the newest visible revision."""

    async def wait_for(self, revision: int) -> None:
        """Wait until `revision` is visible. The caller bounds the wait."""


COUNT = "Count"


@dataclass(frozen=True, slots=True)
class CountedGroups:
    """Result of `groupBy`: one row per group. `columns`: names of the group's values, COUNT, names of sums. None: no value."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | int | None]]
    revision: int


Counts = Callable[[Mapping[str, str], Query], Awaitable[CountedGroups]]
"""Evaluates the query parameters `groupBy`, `sum` and `sortBy` for a selection. Raises BadRequestError."""

Past = Callable[[datetime | int], Awaitable[tuple[Storage, datetime]]]
"""Returns the storage as of an instant or a revision, and the instant. Raises ExpiredError if this state is not kept."""

FieldExtractor = Callable[[Document], Mapping[str, str]]
"""Returns the values of selectable fields by path, without metadata.name and metadata.namespace."""

DeletionWarnings = Callable[[Sequence[Key], bool], Awaitable[Sequence[str]]]
"""Returns the warnings for the response to a deletion: (keys of the deleted objects, whether it was a dry run)."""
