"""One term of a leader: the flag that every leader write checks, and the renewal of the lock while the work runs."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

import structlog

from machinery.election.lock import Lock, LockRecord, Timings
from machinery.errors import ConflictError, MusterError, NotLeaderError
from machinery.runtime.clock import Clock

log = structlog.get_logger(__name__)


NOT_LEADING = "this replica does not lead: nothing was sent"


class Leadership:
    """The flag that this process leads in a term, until an instant. Writes of the leader check it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._term: int | None = None
        self._until = 0.0
        """Monotonic time until which the flag for `_term` is set."""
        self.deposed = asyncio.Event()
        """Set when a writer found a newer term."""
        self.refused = 0
        self.fenced = 0
        """Number of writes whose transaction found a newer term."""

    @property
    def term(self) -> int | None:
        """The term in which this process leads now; None if it does not lead."""
        return self._term if self._clock.monotonic() < self._until else None

    def require(self, term: int) -> None:
        """Raises NotLeaderError unless this process leads now, in `term`."""
        if self.term != term:
            self.refused += 1
            raise NotLeaderError(NOT_LEADING)

    def was_fenced(self, term: int) -> None:
        """Record that a write in `term` found a newer term in its transaction. If `term` leads now, clear the flag."""
        self.fenced += 1
        if self._term == term:
            self._term = None
            self.deposed.set()

    def hold(self, term: int, until: float) -> None:
        """Set the flag for `term` until `until` (seconds of the monotonic clock)."""
        if self._term != term:
            self.deposed.clear()
        self._term, self._until = term, until

    def extend(self, term: int, until: float) -> None:
        """Like `hold`, but only if the flag is set for `term`. An expired or cleared flag stays cleared."""
        if self._term == term:
            self._until = until

    def drop(self) -> None:
        self._term = None


NO_ANSWER = "no answer in time"


class TermEnd(StrEnum):
    STOPPED = "the process stops"
    NOT_RENEWED = "the lock could not be renewed in time"
    TAKEN = "another process holds the lock"
    DEPOSED = "a transaction found that a newer term began"
    WORK_ENDED = "the leader's work failed"


@dataclass(frozen=True, slots=True)
class Term:
    """A leader term that begins: the argument of the leader's work. `because`: why the candidate could take the lock."""

    number: int
    holder: str
    because: str
    transitions: int


Work = Callable[[Term], Coroutine[Any, Any, None]]
"""The leader's work. It is cancelled when the term ends."""


@dataclass(slots=True)
class ElectionCounts:
    gained: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    polls: int = 0
    renewals: int = 0
    failures: int = 0
    slowest_renewal_seconds: float = 0.0


class LeaderTerm:
    """Renews the lock while the work runs, and ends work and renewals in the right order.

    1. The flag is set when the lock is taken. When the term is lost, it is cleared before anything is awaited.
    2. When the process itself ends the term (a stop), the work stops first; then the flag is cleared, then the lock is
       released. If the work does not stop within `stop_within`, the lock is not released and expires.
    3. When the term is lost, the work must also end within `stop_within`. It can no longer write, because the flag is cleared.
    4. If the lock is not renewed in time, the flag is cleared and the work ends, unless `survives_renew_failure` returns true.
       Then the renewals are retried. A success sets the flag again. The term is lost when another holder is seen, or when
       `survives_renew_failure` returns false.
    """

    def __init__(
        self,
        lock: Lock,
        leadership: Leadership,
        timings: Timings,
        clock: Clock,
        tally: ElectionCounts,
        *,
        stop_within: timedelta,
        survives_renew_failure: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lock = lock
        self._leadership = leadership
        self._timings = timings
        self._deadline = timings.renew_deadline.total_seconds()
        self._clock = clock
        self._tally = tally
        self._stop_within = stop_within
        self._survives_renew_failure = survives_renew_failure

    async def run(self, held: LockRecord, since: float, work: Coroutine[Any, Any, None], stop: asyncio.Event) -> TermEnd:
        """Run the term and return why it ended. The flag is already set. `since`: monotonic time at which `take` began."""
        keeping = asyncio.create_task(self._keep(held, since), name="election/renewals")
        working = asyncio.create_task(work, name="election/work")
        stopping = asyncio.create_task(stop.wait(), name="election/stop")
        try:
            await asyncio.wait((keeping, working, stopping), return_when=asyncio.FIRST_COMPLETED)
            lost = keeping.result() if keeping.done() else None
            if lost is not None:
                _log_end(held.term, lost)  # before the wait for the work's end
        finally:
            try:
                ended = await self._ended(working)
            finally:
                self._leadership.drop()  # before the release, even after an error
                for task in (keeping, stopping):
                    task.cancel()
                await asyncio.wait((keeping, stopping))
        if lost is not None:
            return lost
        loss = TermEnd.STOPPED if stop.is_set() else TermEnd.WORK_ENDED
        if not keeping.cancelled():
            loss, ended = keeping.result(), False
        _log_end(held.term, loss)
        if ended:
            await self._release(held)
        return loss

    async def _ended(self, working: asyncio.Task[None]) -> bool:
        """Cancel the work and wait up to `stop_within`. Return whether it has ended."""
        working.cancel()
        await asyncio.wait((working,), timeout=self._stop_within.total_seconds())
        if not working.done():
            log.error("the leader's work did not stop in time", seconds=self._stop_within.total_seconds())
        elif not working.cancelled() and (error := working.exception()):
            log.error("the leader's work failed", exc_info=error)
        return working.done()

    async def _keep(self, held: LockRecord, since: float) -> TermEnd:
        """Renew the lock until renewals have failed for too long. Clear the flag before the return."""
        retry, attempt = self._timings.retry.total_seconds(), self._timings.attempt.total_seconds()
        is_overdue = False
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(retry, self._left(since)) or retry):  # an overdue renewal: also `retry`
                        await self._leadership.deposed.wait()
                        return TermEnd.DEPOSED
                begun, left = self._clock.monotonic(), self._left(since)
                if left <= 0:
                    self._leadership.drop()
                    if not self._survives_renew_failure():
                        return TermEnd.NOT_RENEWED
                    if not is_overdue:
                        log.warning(
                            "the work continues without the lock: no holder is known, and nothing is written", term=held.term
                        )
                    is_overdue = True
                try:
                    async with asyncio.timeout(min(left or self._deadline, attempt)):
                        held = await self._lock.renew(held)
                except ConflictError:
                    return TermEnd.TAKEN
                except Exception as error:
                    self._tally.failures += 1
                    how = {"error": error_text(error), "seconds_left": round(self._left(since), 3)}
                    log.warning("the leader's lock was not renewed", **how, exc_info=stack_of(error))
                    continue
                self._tally.renewals += 1
                seconds = round(self._clock.monotonic() - begun, 3)
                self._tally.slowest_renewal_seconds = max(self._tally.slowest_renewal_seconds, seconds)
                since = begun
                if is_overdue:
                    self._leadership.hold(held.term, since + self._deadline)
                    log.info("leadership resumed", term=held.term)
                    is_overdue = False
                else:
                    self._leadership.extend(held.term, since + self._deadline)
        finally:
            self._leadership.drop()

    def _left(self, since: float) -> float:
        return max(since + self._deadline - self._clock.monotonic(), 0.0)

    async def _release(self, held: LockRecord) -> None:
        """Release the lock. A failure is only logged: the lock expires."""
        try:
            async with asyncio.timeout(self._timings.retry.total_seconds()):
                released = await self._lock.release(held)
        except Exception as error:
            log.warning(
                "the leader's lock could not be released: it expires", error=error_text(error), exc_info=stack_of(error)
            )
        else:
            if released:
                log.info("leadership released", term=held.term)


def error_text(error: Exception) -> str:
    """Return the message of an error of the lock, for logs."""
    return str(error) or (NO_ANSWER if isinstance(error, TimeoutError) else type(error).__name__)


def stack_of(error: Exception) -> Exception | None:
    """Return an unexpected error, for a stack trace in the log; None if it is an error that locks may raise."""
    return None if isinstance(error, MusterError | TimeoutError) else error


def _log_end(term: int, loss: TermEnd) -> None:
    """Log the end of a term, after the flag was cleared."""
    write = log.info if loss is TermEnd.STOPPED else log.warning
    write("leadership lost", term=term, because=str(loss))
