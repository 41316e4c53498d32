"""The lock as a row of the hub's database."""

from datetime import timedelta

from hub.ports import Lifeline
from machinery.election.lock import Candidate, Lock, LockRecord


class RowLock(Lock):
    """The lock row, accessed over its own connection."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline

    async def read(self) -> LockRecord | None:
        return await self._lifeline.ask(lambda leaders: leaders.record())

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        return await self._lifeline.ask(lambda leaders: leaders.take(seen, candidate, lease))

    async def renew(self, held: LockRecord) -> LockRecord:
        return await self._lifeline.ask(lambda leaders: leaders.renew(held))

    async def release(self, held: LockRecord) -> bool:
        return await self._lifeline.ask(lambda leaders: leaders.release(held))
