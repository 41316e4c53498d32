"""Protocols of the database (this file, `liveness`), CAs and keys (`identities`), for use cases and servers.

Adapters implement the protocols; `hub.composition` creates the adapters. The store is split by subject, so that a use case
names what it uses. All methods of a `Transaction` are synchronous and run on a thread of the pool; `Store` is the asynchronous
interface around it. Use cases import `Store` and `Transaction` from this package.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from hub.api.auditrecords import AuditEntry, AuditQuery, AuditSize
from hub.api.history import Ledger, Trimmed, Volume
from hub.api.meta.change import Change, Kind
from hub.api.query.groups import Group, GroupQuery
from hub.ports.identities import AuthorityRecords, Bindings, CertificateRecords, Credentials, Trusts
from hub.ports.liveness import AgentSessions, Heartbeats, Leaders, Marks, Replicas, Transitions
from machinery.meta.objects import Key, Page, Query, StoredObject

HUB_ID = "hub-id"
"""Name of the fact (`Facts`) with this hub's id. A database without this fact belongs to no hub yet."""
BACKUP_MADE = "backup-made"
"""Name of the fact (`Facts`) with the time of the newest backup, as written in the backup's manifest."""
EVERYTHING = 2**31 - 1
"""Value of `limit` that processes everything in one transaction."""


class Written(Protocol):
    """An object that a transaction writes; revision and encoded bytes exist after the commit."""

    @property
    def stored(self) -> StoredObject:
        """The object as committed. Raises RuntimeError before the commit."""


class Objects(Protocol):
    """Kubernetes objects of all kinds, with their change log. Only `hub.registry` writes here."""

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        """Return the object, including this transaction's own writes; None: there is no such object."""

    def read_ahead(self, kind: Kind, keys: Collection[Key]) -> None:
        """Load these objects with one query, so that `get` does not query each object."""

    def find(self, kind: Kind, query: Query) -> Page: ...

    def has_any(self, kind: Kind) -> bool:
        """Whether an object of the kind exists, including this transaction's own writes. Cheaper than `find`."""

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        """Store `new` if the revision of `old` is current (None: must not exist). Raises ConflictError, AlreadyExistsError.

        The kind declares its selectable fields (`hub.api.meta.change.SELECTABLE`). The change-log row and the next revision are
        written at the end of the transaction.
        """

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written: ...

    def count(self, kind: Kind, query: Query) -> int:
        """Return the number of matching objects, with this transaction's own writes. Ignores the query's limit and revision."""

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        """Return the number of objects per value of a selectable field. The value "" stands for objects without this field."""

    def values(self, kind: Kind, field: str) -> Mapping[Key, str]:
        """Return the value of a selectable field for each object that has the field."""

    def groups(self, query: Query, grouping: GroupQuery) -> Sequence[Group]:
        """Return a group of the query's clusters per combination of field values, in the order of `grouping`.

        Without fields, returns one group. Can miss this transaction's own writes. Ignores the query's limit and order; uses the
        query's revision only in a query of the past. Such a query raises BadRequestError for a field without a history.
        """

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Mapping[Key, int]:
        """Return keys and revisions of the `limit` objects with the lowest revisions whose last write is before `moment`.

        Scans all objects of the kind: use it in a read, which blocks no writer.
        """


class ChangeLog(Protocol):
    """The log of all changes of objects."""

    def since(
        self,
        revision: int,
        *,
        kinds: Collection[Kind] | None = None,
        namespace: str | None = None,
        name: str | None = None,
        limit: int = 500,
    ) -> Sequence[Change]:
        """Return at most `limit` changes above `revision`, in order. A filter None selects all. Raises ExpiredError."""

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        """Return the last kept change of one object before `since`, if any, then all its changes from `since` on, in order."""

    def newest(self) -> int: ...

    def past(
        self, kind: Kind, key: Key, *, below: int | None = None, until: datetime | None = None, limit: int
    ) -> Sequence[Change]:
        """Return at most `limit` kept changes of one object, newest first: of lower revisions than `below`, up to `until`."""

    def one_at(self, kind: Kind, key: Key, at: int) -> StoredObject | None:
        """Return the object as it was at revision `at`; None: it did not exist. Raises ExpiredError if `at` is not kept."""

    def position(self, moment: datetime) -> int:
        """Return the newest revision at this instant. Raises ExpiredError if the log no longer reaches back to this time."""

    def instant(self, revision: int) -> datetime | None:
        """Return the time of the newest change up to this revision; None: no change. Raises ExpiredError like `position`."""

    def began(self) -> datetime | None:
        """Return the time of the oldest readable change; None: the log is empty."""

    def ledger(self) -> Ledger:
        """Return the oldest revision for watches, the oldest revision for reads of the past, and the size of the change log."""

    def oldest(self) -> int:
        """Return the oldest revision from which a watch can resume."""

    def compact(self, before: datetime, *, limit: int = EVERYTHING) -> Trimmed:
        """Compact the log: no watch can then resume from a time before `before`. Deletes rows that are not kept as the past.

        Processes at most `limit` rows. Returns the result of this batch. A row has a future time if the clock was ahead. Such
        a row is treated as being as old as the next row, here and in `forget`.
        """

    def forget(self, before: datetime | None, *, limit: int = EVERYTHING) -> Trimmed:
        """Delete the past before an instant (None: all that no watch needs). Processes at most `limit` rows.

        Never deletes rows that a watch may need.
        """

    def measure(self, *, limit: int = EVERYTHING) -> bool:
        """Measure the size of at most `limit` more rows; return whether rows may be left to measure."""


class Facts(Protocol):
    """Small facts about this hub: id, group suffix, schema."""

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def settle(self, name: str, value: str) -> str:
        """Return the fact. A fact that does not exist is first set to `value`. Safe against concurrent calls."""


class AuditLog(Protocol):
    """Audit records of requests. They are added, and removed by age or for space, but never changed."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add all entries in one statement. Existing entries stay: an earlier attempt stored them, but its answer was lost."""

    def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Return matching records in the query's order. If they exceed its limit, return one record more than the limit."""

    def sizes(self, *, strangers: bool) -> Mapping[str, AuditSize]:
        """Return record sizes per user. `strangers`: of refused callers without identity; else others. Reads all records."""

    def remove(
        self,
        limit: int,
        *,
        before: datetime | None = None,
        strangers: bool | None = None,
        user: str | None = None,
        since: datetime | None = None,
    ) -> AuditSize:
        """Remove the oldest records, at most `limit`; return the removed size.

        `before`: only older records. `strangers`: as in `sizes`. `user`: only records of this caller. `since`: a time before
        which there are no such records, if known; the search begins there.
        """


class Recording(Protocol):
    """The audit record of a request in progress, written in the transaction of the request's changes."""

    def entry(self, changes: Sequence[Change]) -> AuditEntry | None:
        """Return the record of these changes; None: none is required, or it is stored already. Runs on the store's thread."""

    def committed(self, entry: AuditEntry) -> None:
        """Note that the transaction that wrote `entry` is committed, so that the record is not written again."""


RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)
"""The recording of the request that the current task answers."""


P = ParamSpec("P")
T = TypeVar("T")


class Transaction(Protocol):
    """One unit of work. Its changes are invisible to others until it commits."""

    now: datetime
    """The database's time at the start of the transaction."""
    objects: Objects
    changes: ChangeLog
    certificates: CertificateRecords
    authorities: AuthorityRecords
    credentials: Credentials
    bindings: Bindings
    heartbeats: Heartbeats
    transitions: Transitions
    marks: Marks
    replicas: Replicas
    agent_sessions: AgentSessions
    trusts: Trusts
    facts: Facts
    audit: AuditLog
    leaders: Leaders

    def volume(self) -> Volume:
        """Return the used and the available space of the database, in bytes."""


class Store(Protocol):
    """The database, for callers on the event loop."""

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a use case in one writing transaction and commit it. Cancellation of the caller does not stop the transaction.

        Raises UnavailableError when the database cannot be written now.
        """

    async def run_first(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run`, but before all writes that wait."""
        return await self.run(use_case, *args, **kwargs)

    @property
    def write_delay(self) -> float:
        """Seconds for which the oldest waiting write of `run` has waited."""
        return 0.0

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query on one consistent snapshot."""

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, for short periodic queries that can wait a moment: several may share one snapshot."""
        return await self.read(query, *args, **kwargs)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        """Return the newest visible revision as soon as it is above `after`, or when `within` has passed."""

    def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        """Yield batches of changes above `after`, in order, without end. An empty batch means that no more are known now.

        Raises ExpiredError when `after` is compacted.
        """

    def subscribe_to_revocations(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block, call `wake` on the event loop soon after a revocation or a change of the hub's CAs on any replica.

        `wake` may be called more often. The block's value is a function that returns whether notifications arrive now. A
        notification can be lost, so callers also poll. They poll more often while the function returns False.
        """

    def subscribe_to_sessions(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block, call `wake` on the event loop soon after another replica has recorded new sessions.

        The block's value is a function that returns whether notifications arrive now. While it returns False, the caller polls.
        `wake` is also called whenever notifications stop.
        """

    async def check(self) -> None:
        """Raise UnavailableError unless the database answers."""

    async def close(self) -> None: ...
