"""Small facts, the audit trail and who leads."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Protocol

from hub.api.auditrecords.query import AuditEntry, AuditQuery, AuditSize
from hub.api.meta.change import Change
from machinery.election.lock import Candidate, LockRecord


class Facts(Protocol):
    """Small facts about this hub: id, group suffix, schema."""

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def settle(self, name: str, value: str) -> str:
        """The fact; where there is none yet it is `value` from now on, whoever else settles it at the same moment."""


class AuditLog(Protocol):
    """Records of requests. They are added and, by age or for room, removed; none changes."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """In one statement. What is there already, because the answer of an earlier attempt was lost, stays as it is."""

    def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """In the order of time. One more than the query's limit, where there are more."""

    def sizes(self, *, strangers: bool) -> Mapping[str, AuditSize]:
        """By caller, of the refusals of strangers, or of all other records. Reads the whole log."""

    def remove(
        self,
        limit: int,
        *,
        before: datetime | None = None,
        strangers: bool | None = None,
        user: str | None = None,
        since: datetime | None = None,
    ) -> AuditSize:
        """Removes the oldest records, at most `limit`; what went.

        `before`: only older ones; `strangers`: as in `sizes`; `user`: of this caller; `since`: none of these is older.
        """


class Recording(Protocol):
    """The audit record of a request on its way, to be written in the transaction of what the request changes."""

    def entry(self, changes: Sequence[Change]) -> AuditEntry | None:
        """The record of these changes, on the store's thread; None: no record is wanted, or one is stored already."""

    def committed(self, entry: AuditEntry) -> None:
        """The transaction of the entry is committed."""


RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)
"""The request that the current task answers."""


class Leaders(Protocol):
    """Who leads: the one lock that all replicas of a hub compete for; no news, so no change-log row.

    Renewing does not wait for the disk, taking and releasing do.
    """

    def record(self) -> LockRecord | None:
        """The lock as it is; None: nobody ever held it."""

    def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Makes `candidate` the holder in a new term, when the record is as `seen`; else ConflictError.

        Waits for transactions that have called `require` in the term before: none of them commits afterwards.
        """

    def renew(self, held: LockRecord) -> LockRecord:
        """Raises ConflictError unless the lock is held as in `held`. Waits for no transaction that has called `require`."""

    def release(self, held: LockRecord) -> bool:
        """Whether it was held as in `held`. The term stays: the next one is higher."""

    def require(self, term: int) -> None:
        """Raises NotLeaderError unless `term` is the newest, which it stays until this transaction has ended."""
