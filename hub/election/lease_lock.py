"""The lock as a Lease of the cluster that the hub runs in; its winner takes the term in the database, so that the fence holds.

Whoever holds the Lease and renews has the newest term in the end: one that took its term late, having been frozen between the
two, costs the holder one more taking and nothing else, because no two writers ever have the same term.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

from hub.election.row_lock import RowLock
from machinery.election.lock import Candidate, Lock, LockRecord
from machinery.errors import ConflictError, UnavailableError
from machinery.runtime.clock import Clock

TRIES = 5


@dataclass(frozen=True, slots=True)
class _Both:
    lease: LockRecord
    row: LockRecord


class LeaseAndTerm(Lock):
    """`every`: how often the cluster's API is asked; between that the row tells whether the lock was released."""

    def __init__(self, lease: Lock, row: RowLock, *, clock: Clock, every: timedelta) -> None:
        self._lease = lease
        self._row = row
        self._clock = clock
        self._every = every.total_seconds()
        self._seen: LockRecord | None = None
        self._asked = float("-inf")
        self._held: _Both | None = None

    async def read(self) -> LockRecord | None:
        row = await self._row.read()
        is_fresh = self._clock.monotonic() - self._asked < self._every
        if not is_fresh or row is None or not row.holder:
            self._seen = await self._lease.read()
            self._asked = self._clock.monotonic()
        return self._seen

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        self._asked = float("-inf")
        held = await self._lease.take(seen, candidate, lease)
        row = await self._next_term(candidate, lease)
        self._held = _Both(held, row)
        return replace(held, term=row.term, version=held.version)

    async def _next_term(self, candidate: Candidate, lease: timedelta) -> LockRecord:
        for _ in range(TRIES):
            try:
                return await self._row.take(await self._row.read(), candidate, lease)
            except ConflictError:
                continue
        raise UnavailableError("the term could not be taken: others take it all the time")

    async def renew(self, held: LockRecord) -> LockRecord:
        """The row first: who is cut off from the database leads no more, and must not keep the Lease from the others."""
        both = self._of(held)
        row = await self._row.renew(both.row)
        lease = await self._lease.renew(both.lease)
        self._held = _Both(lease, row)
        return replace(lease, term=held.term)

    async def release(self, held: LockRecord) -> bool:
        """The row last: it is what the others look at."""
        if self._held is None or self._held.row.term != held.term:
            return await self._lease.release(held)  # its taking was not answered
        both = self._held
        try:
            return await self._lease.release(both.lease)
        finally:
            await self._row.release(both.row)

    def _of(self, held: LockRecord) -> _Both:
        if self._held is None or self._held.row.term != held.term:
            raise ConflictError("the lock is not held in that term")
        return self._held
