"""Small facts, the audit trail and who leads."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from hub.domain.chain import AuditQuery, Head, Link
from machinery.election.lock import Candidate, Record


class Facts(Protocol):
    """Small facts about this hub: id, group suffix, schema."""

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def settle(self, name: str, value: str) -> str:
        """The fact; where there is none yet it is `value` from now on, whoever else settles it at the same moment."""


class AuditLog(Protocol):
    """Records of requests, a chain per replica. Links are added at an end and removed, by age, at a beginning; none changes."""

    def add(self, links: Sequence[Link]) -> None:
        """All of one chain, in one statement."""

    def head(self, replica: str) -> Head:
        """The last link; of a chain whose links were all removed the last one removed."""

    def anchors(self) -> Mapping[str, Head]:
        """By replica, the last link that was removed."""

    def replicas(self) -> Sequence[str]:
        """All that have links or an anchor."""

    def links(self, replica: str, *, after: int, limit: int) -> Sequence[Link]:
        """In the order of the chain, whatever they say."""

    def find(self, query: AuditQuery) -> Sequence[Link]:
        """In the order of time. One more than the query's limit, where there are more."""

    def trim(self, before: datetime, now: datetime, limit: int) -> int:
        """Removes what is older from the beginning of each chain, at most `limit` links, and keeps an anchor; how many went.

        A link with a time after `now`, of a clock that was ahead, is as old as the one after it.
        """

    def bytes(self) -> int:
        """What all records take. Reads the whole log."""

    def shorten(self, replica: str, limit: int) -> int:
        """Removes the oldest links of a chain, at most `limit`, and keeps an anchor; the bytes of what went."""


class Leaders(Protocol):
    """Who leads: the one lock that all replicas of a hub compete for; no news, so no change-log row.

    Renewing does not wait for the disk, taking and releasing do.
    """

    def record(self) -> Record | None:
        """The lock as it is; None: nobody ever held it."""

    def take(self, seen: Record | None, candidate: Candidate, lease: timedelta) -> Record:
        """Makes `candidate` the holder in a new term, when the record is as `seen`; else ConflictError.

        Waits for transactions that have called `require` in the term before: none of them commits afterwards.
        """

    def renew(self, held: Record) -> Record:
        """Raises ConflictError unless the lock is held as in `held`. Waits for no transaction that has called `require`."""

    def release(self, held: Record) -> bool:
        """Whether it was held as in `held`. The term stays: the next one is higher."""

    def require(self, term: int) -> None:
        """Raises NotLeaderError unless `term` is the newest, which it stays until this transaction has ended."""
