"""The lock of a hub with an SQLite database, which only one process uses."""

from datetime import timedelta

from hub.election.row_lock import RowLock
from machinery.election.lock import Candidate, Lock, LockRecord


class SoleLock(Lock):
    """Each start takes the row and the next term. Renewing and releasing do nothing, because no other process waits."""

    def __init__(self, row: RowLock) -> None:
        self._row = row

    async def read(self) -> LockRecord | None:
        return await self._row.read()

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        return await self._row.take(seen, candidate, lease)

    async def renew(self, held: LockRecord) -> LockRecord:
        return held

    async def release(self, held: LockRecord) -> bool:
        del held
        return True
