"""Competes for the leader lock as long as the process runs.

It works like client-go's leaderelection, with three differences. A loss of the lock does not end the process. The leadership
flag is set in the step that takes the lock, together with the term. So a late callback cannot set the flag after a loss. The
lock is released only after the leader's work has ended.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random

import structlog

from machinery.election.leader_term import ElectionCounts, Leadership, LeaderTerm, Term, TermEnd, Work, error_text, stack_of
from machinery.election.lock import Candidate, Lock, LockRecord, Timings
from machinery.errors import ConflictError, InvalidError
from machinery.observability.logs import LogOnce
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock

log = structlog.get_logger(__name__)


class Observation:
    """The lock as one candidate has observed it. Instants are seconds of the candidate's monotonic clock.

    Rules (the first two are client-go's):

    - A lock without a holder may be taken immediately.
    - A held lock may be taken if the candidate has seen no change of its record for the duration of its lease.
    - A lock that this process itself holds may be taken immediately. Its earlier leadership ended without a release.
    - At its first poll, a process may take a lock whose holder has the same name. Replicas do not share names, so the holder is
      an earlier, ended process of this replica. The rule applies only to the first poll: two processes that share a name by
      mistake must not take the lock from each other forever.
    - With `alone`, no other process can use this lock, so any holder at the first poll has ended.
    """

    def __init__(self, candidate: Candidate, *, alone: bool = False) -> None:
        self._candidate = candidate
        self._alone = alone
        self._seen: LockRecord | None = None
        self._since: float | None = None
        self._inherits = False

    @property
    def record(self) -> LockRecord | None:
        return self._seen

    def observe(self, record: LockRecord | None, now: float) -> None:
        """Record the current state of the lock."""
        first = self._since is None
        if first or record is None or self._seen is None or record.version != self._seen.version:
            self._since = now
            self._inherits = first and record is not None and (self._alone or record.holder == self._candidate.identity)
        self._seen = record

    def free_at(self) -> float:
        """Return the instant from which the lock may be taken if it does not change; 0: immediately. Call `observe` first."""
        seen, since = self._seen, self._since
        if seen is None or since is None or not seen.holder or self._inherits:
            return 0.0
        if seen.incarnation == self._candidate.incarnation:
            return 0.0
        return since + seen.lease.total_seconds()

    def predecessor(self) -> str:
        """Return why the lock may be taken, for logs."""
        seen = self._seen
        if seen is None:
            return "the lock had no holder before"
        if not seen.holder:
            return "it was released"
        if seen.incarnation == self._candidate.incarnation:
            return "this replica held it before"
        if self._inherits:
            return "an earlier process of this replica held it"
        return f"{seen.holder} did not renew it for {seen.lease.total_seconds():g} s"


STOP_WITHIN = timedelta(seconds=10)
SPREAD = 0.25
"""A candidate polls earlier, by a random part of the poll period up to this fraction, so that polls do not coincide."""


class Elector:
    """One candidate. It runs `work` in each of its terms. Raises InvalidError for an empty identity or incarnation.

    `alone`: no other process can use this lock. `stop_within`: time limit for the end of the work. `survives_renew_failure`:
    called if the lock was not renewed in time; returns whether the work may continue, without the leadership flag, until
    another holder appears.
    """

    def __init__(
        self,
        lock: Lock,
        candidate: Candidate,
        work: Work,
        *,
        timings: Timings,
        clock: Clock,
        leadership: Leadership,
        alone: bool = False,
        stop_within: timedelta = STOP_WITHIN,
        survives_renew_failure: Callable[[], bool] = lambda: False,
    ) -> None:
        if not candidate.identity or not candidate.incarnation:
            raise InvalidError("a candidate for the leadership needs a name: the replica's")
        self._lock = lock
        self._candidate = candidate
        self._work = work
        self._timings = timings
        self._clock = clock
        self._leadership = leadership
        self._seen = Observation(candidate, alone=alone)
        self._random = Random()  # noqa: S311 - spreads polls
        self._stop = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._failure = LogOnce(log)
        self._unanswered = False
        self._ended = asyncio.Event()
        self._ended.set()
        self.leader_known = asyncio.Event()
        """Set when the candidate knows which process leads."""
        self.tried = asyncio.Event()
        """Set after the first attempt to read the lock, even if it failed."""
        self.tally = ElectionCounts()
        self._leader_term = LeaderTerm(
            lock, leadership, timings, clock, self.tally, stop_within=stop_within, survives_renew_failure=survives_renew_failure
        )

    def poll(self) -> None:
        """Read the lock now instead of at the next poll."""
        self._poll_now.set()

    @property
    def last_failure(self) -> str:
        """Why the last read of the lock failed; "": it succeeded."""
        return self._failure.text

    @property
    def leader(self) -> str:
        """The last seen holder of the lock; "": none, or unknown."""
        return self._seen.record.holder if self._seen.record is not None else ""

    async def run(self) -> None:
        """Compete for the lock until `stop`."""
        self._ended.clear()
        failing = Backoff(self._timings.retry, 8 * self._timings.retry, random=self._random)
        try:
            while not self._stop.is_set():
                taken = await self._taken()
                if taken is None:
                    continue
                loss = await self._lead(*taken)
                if loss is TermEnd.WORK_ENDED:
                    await self._pause(failing.next().total_seconds())
            if self._unanswered:
                await self._give_back()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the present term, if there is one, as LeaderTerm describes. Wait for its end. Idempotent."""
        self._stop.set()
        self._poll_now.set()
        await self._ended.wait()

    async def _lead(self, held: LockRecord, since: float, because: str) -> TermEnd:
        """Set the flag and run the work. There is no await between taking the lock and setting the flag."""
        self._leadership.hold(held.term, since + self._timings.renew_deadline.total_seconds())
        self.tally.gained += 1
        log.info("leadership gained", term=held.term, because=because)
        self._knows()
        work = self._work(Term(held.term, self._candidate.identity, because, held.transitions))
        loss = await self._leader_term.run(held, since, work, self._stop)
        self.tally.lost[loss.name] = self.tally.lost.get(loss.name, 0) + 1
        return loss

    async def _taken(self) -> tuple[LockRecord, float, str] | None:
        """Read the lock once, and take it if it is free. If it is not, wait until the next poll and return None."""
        self.tally.polls += 1
        self._poll_now.clear()
        attempt = self._timings.attempt.total_seconds()
        try:
            async with asyncio.timeout(attempt):
                record = await self._lock.read()
            self._failure.reset()
            now = self._clock.monotonic()
            self._seen.observe(record, now)
            free_at = self._seen.free_at()
            if now >= free_at:
                because = self._seen.predecessor()
                self._unanswered = True
                async with asyncio.timeout(attempt):
                    held = await self._lock.take(record, self._candidate, self._timings.lease)
                self._unanswered = False
                self._seen.observe(held, self._clock.monotonic())
                return held, now, because
        except ConflictError:
            self._unanswered = False
            return None  # another candidate was faster
        except Exception as error:  # noqa: BLE001 - after any error this process tries again
            self.tally.failures += 1
            if not self._failure.warning("the leader's lock cannot be reached", error_text(error), exc_info=stack_of(error)):
                log.debug("the leader's lock cannot be reached", error=error_text(error))  # retries may continue for hours
            self.tried.set()
            await self._pause(self._timings.retry.total_seconds())
            return None
        self._knows()
        poll = self._timings.poll.total_seconds() * (1 - SPREAD * self._random.random())
        await self._pause(min(poll, free_at - now))
        return None

    def _knows(self) -> None:
        self.tried.set()
        self.leader_known.set()

    async def _give_back(self) -> None:
        """Release the lock if a `take` without an answer has acquired it, so that others need not wait for the lease's end."""
        try:
            async with asyncio.timeout(self._timings.retry.total_seconds()):
                found = await self._lock.read()
                if found is not None and found.holder and found.incarnation == self._candidate.incarnation:
                    await self._lock.release(found)
        except Exception as error:
            log.warning(
                "the leader's lock may have no live holder: it expires", error=error_text(error), exc_info=stack_of(error)
            )

    async def _pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until `stop` or `poll` is called."""
        try:
            async with asyncio.timeout(seconds):
                await self._poll_now.wait()
        except TimeoutError:
            pass
