"""Access to hub facts, the audit log and the leader lock."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Protocol

from hub.api.auditrecords import AuditEntry, AuditQuery, AuditSize
from hub.api.meta.change import Change
from machinery.election.lock import Candidate, LockRecord


class Facts(Protocol):
    """Small facts about this hub: id, group suffix, schema."""

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def settle(self, name: str, value: str) -> str:
        """Return the fact, after setting it to `value` if it does not exist. Safe against concurrent calls."""


class AuditLog(Protocol):
    """Audit records of requests. They are added, and removed by age or for space, but never changed."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add all entries in one statement. Existing entries stay: an earlier attempt stored them and its answer was lost."""

    def find(self, query: AuditQuery) -> Sequence[AuditEntry]:
        """Matching records ordered by time, plus one more than the query's limit if there are more."""

    def sizes(self, *, strangers: bool) -> Mapping[str, AuditSize]:
        """Size per caller, of refused strangers' records or of all other records. Reads the whole log."""

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

        `before`: only older ones; `strangers`: as in `sizes`; `user`: only this caller's; `since`: no matching record is older.
        """


class Recording(Protocol):
    """The audit record of a request in progress, written in the transaction of the request's changes."""

    def entry(self, changes: Sequence[Change]) -> AuditEntry | None:
        """The record of these changes; None if no record is wanted or one is stored. Runs on the store's thread."""

    def committed(self, entry: AuditEntry) -> None:
        """Called when the transaction of the entry is committed."""


RECORDING: ContextVar[Recording | None] = ContextVar("recording", default=None)
"""The recording of the request that the current task answers."""


class Leaders(Protocol):
    """The leader lock, for which all replicas of a hub compete. Writes are not news: they add no change-log row.

    A renewal does not wait for the disk; taking and releasing the lock do.
    """

    def record(self) -> LockRecord | None:
        """The current lock; None if nobody ever held it."""

    def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Make `candidate` the holder in a new term. Raises ConflictError unless the record equals `seen`.

        Waits for transactions that have called `require` in the previous term: none of them commits later.
        """

    def renew(self, held: LockRecord) -> LockRecord:
        """Raises ConflictError unless the lock equals `held`. Does not wait for transactions that have called `require`."""

    def release(self, held: LockRecord) -> bool:
        """Release the lock; return whether it was as in `held`. The term stays, and the next one is higher."""

    def require(self, term: int) -> None:
        """Raise NotLeaderError unless `term` is the newest. It then stays the newest until this transaction ends."""
