"""Locks of the leader election: a row of the database, the row of a hub with one replica, or a Lease together with the row.

The holder of a Lease also takes the term in the database, for the fence. A suspended process may take its term late. Then the
holder of the Lease takes another term. So the process that renews the Lease finally has the newest term. Two writers never have
the same term.
"""

from dataclasses import replace
from datetime import timedelta

from hub.ports.liveness import LeaderLockConnection
from machinery.election.lock import Candidate, Lock, LockRecord
from machinery.errors import ConflictError, UnavailableError
from machinery.runtime.clock import Clock


class RowLock(Lock):
    """The lock in a row of the database, over a connection that nothing else uses."""

    def __init__(self, lifeline: LeaderLockConnection) -> None:
        self._lifeline = lifeline

    async def read(self) -> LockRecord | None:
        return await self._lifeline.ask(lambda leaders: leaders.record())

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        return await self._lifeline.ask(lambda leaders: leaders.take(seen, candidate, lease))

    async def renew(self, held: LockRecord) -> LockRecord:
        return await self._lifeline.ask(lambda leaders: leaders.renew(held))

    async def release(self, held: LockRecord) -> bool:
        return await self._lifeline.ask(lambda leaders: leaders.release(held))


class SingleReplicaLock(RowLock):
    """The lock of a hub with one replica. Each start takes the row and the next term. Renewals and releases do nothing."""

    async def renew(self, held: LockRecord) -> LockRecord:
        return held

    async def release(self, held: LockRecord) -> bool:
        del held
        return True


TRIES = 5


class LeaseAndTerm(Lock):
    """The lock of a Lease and the row. `every`: interval between reads of the Lease. A released row causes an earlier read."""

    def __init__(self, lease: Lock, row: RowLock, *, clock: Clock, every: timedelta) -> None:
        self._lease = lease
        self._row = row
        self._clock = clock
        self._every = every.total_seconds()
        self._seen: LockRecord | None = None
        self._asked = float("-inf")
        self._held: tuple[LockRecord, LockRecord] | None = None
        """The records of the Lease and of the row."""

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
        self._held = held, row
        return replace(held, term=row.term, version=held.version)

    async def _next_term(self, candidate: Candidate, lease: timedelta) -> LockRecord:
        for _ in range(TRIES):
            try:
                return await self._row.take(await self._row.read(), candidate, lease)
            except ConflictError:
                continue
        raise UnavailableError("the term could not be taken: other replicas took it first each time")

    async def renew(self, held: LockRecord) -> LockRecord:
        """Renew the row first and then the Lease, so that a leader that cannot reach the database lets the Lease expire."""
        if self._held is None or self._held[1].term != held.term:
            raise ConflictError("the lock is not held in that term")
        lease, row = self._held
        row = await self._row.renew(row)
        lease = await self._lease.renew(lease)
        self._held = lease, row
        return replace(lease, term=held.term)

    async def release(self, held: LockRecord) -> bool:
        """Release the Lease, then the row, because other replicas watch the row."""
        if self._held is None or self._held[1].term != held.term:
            return await self._lease.release(held)  # the answer to `take` was lost
        lease, row = self._held
        try:
            return await self._lease.release(lease)
        finally:
            await self._row.release(row)
