"""A lock in memory: the trick is that it can be away, slow, or somebody else's, whenever a test says so."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from machinery.election.lock import Candidate, Lock, LockRecord
from machinery.errors import ConflictError, UnavailableError
from machinery.runtime.clock import Clock


class MemoryLock(Lock):
    """What candidates share. Each uses it through a `way` of its own."""

    def __init__(self, clock: Clock) -> None:
        self.record: LockRecord | None = None
        self.clock = clock
        self.terms = 0
        self.status = ""  # what a holder reports with its next renewal
        self.written: list[tuple[str, str, int]] = []  # what was done, by whom, in which term

    def way(self) -> "Way":
        return Way(self)

    async def read(self) -> LockRecord | None:
        return self.record

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        found = self.record
        if (found and found.version) != (seen and seen.version):
            raise ConflictError("another candidate has taken the lock")
        self.terms += 1
        now, changed = self.clock.now(), found is not None and found.holder != candidate.identity
        transitions = found.transitions + changed if found else 0
        version = str(int(found.version) + 1) if found else "1"
        self.record = LockRecord(candidate.identity, candidate.incarnation, self.terms, transitions, lease, now, now, version)
        self.written.append(("taken", candidate.identity, self.terms))
        return self.record

    async def renew(self, held: LockRecord) -> LockRecord:
        return self._change(held, renewed_at=self.clock.now(), status=self.status)

    async def release(self, held: LockRecord) -> bool:
        try:
            self._change(held, holder="")
        except ConflictError:
            return False
        self.written.append(("released", held.holder, held.term))
        return True

    def _change(self, held: LockRecord, **changes: Any) -> LockRecord:
        found = self.record
        if found is None or not found.holder or (found.incarnation, found.term) != (held.incarnation, held.term):
            raise ConflictError("another candidate holds the lock, or the term is another one")
        self.record = replace(found, version=str(int(found.version) + 1), **changes)
        return self.record


class Way(Lock):
    """One candidate's way to the lock: `before` is called before each call.

    `away` refuses, `swallows` does nothing and never answers, `swallows_answers` does it and never answers.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.away = False
        self.swallows = False
        self.swallows_answers = False
        self.takes_seconds = 0.0
        self.before: Callable[[str], None] = lambda _call: None

    async def _passes(self, call: str) -> None:
        self.before(call)
        if self.away:
            raise UnavailableError("the database does not answer")
        if self.swallows:
            await asyncio.Event().wait()
        await asyncio.sleep(self.takes_seconds)

    async def read(self) -> LockRecord | None:
        await self._passes("read")
        return await self._lock.read()

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        await self._passes("take")
        taken = await self._lock.take(seen, candidate, lease)
        if self.swallows_answers:
            await asyncio.Event().wait()
        return taken

    async def renew(self, held: LockRecord) -> LockRecord:
        await self._passes("renew")
        return await self._lock.renew(held)

    async def release(self, held: LockRecord) -> bool:
        await self._passes("release")
        return await self._lock.release(held)
