"""For how long nobody leads, by cause: what the page says, what follows from the timings, and what comes to pass."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from hub.election import RowLock
from hub.election.leaselock import LeaseAndTerm
from hub.ports import Leaders
from hub.store.bounds import SessionLimits
from machinery.election import Candidate, Elector, Leadership, Loss, Term, Timings
from machinery.election.timings import KUBERNETES, OPENSHIFT
from machinery.errors import UnavailableError
from tests.fakes.inline_store import InlineLifeline, InlineStore
from tests.fakes.memory_lock import MemoryLock
from tests.fakes.virtual_time import LoopClock, VirtualLoop, in_virtual_time
from tests.unit.machinery.election.candidates import SOON, World, trial

T = TypeVar("T")
DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference/leadership.md").read_text()
PHASES = [number / 8 * KUBERNETES.retry.total_seconds() for number in range(9)]
"""Seconds after a renewal at which the fault begins."""
STEP = 0.01


@dataclass(frozen=True)
class Row:
    begins: str
    bound: Callable[[Timings], timedelta]


def held(timings: Timings) -> timedelta:
    return SessionLimits.of_lease(timings.lease).held


def killed(timings: Timings) -> timedelta:
    return timings.lease + timings.poll


def killed_with_a_lease(timings: Timings) -> timedelta:
    return timings.lease + timings.retry + timings.poll


def after_an_outage(timings: Timings) -> timedelta:
    return timings.attempt + timings.retry


ROWS = (
    Row("| a clean stop, a rolling update |", lambda timings: timings.poll),
    Row("| the leader's process is killed, its machine is gone |", killed),
    Row("| the leader stands still, or is cut off from the database |", killed),
    Row("| the same, in the middle of a transaction |", lambda timings: killed(timings) + held(timings)),
    Row("| the same three, where the lock is a Lease of Kubernetes |", killed_with_a_lease),
    Row("| the database is away for no longer than the leader bears |", lambda timings: timings.borne),
    Row("| the database is away for longer |", after_an_outage),
)


def test_the_page_says_what_follows_from_the_timings() -> None:
    for row in ROWS:
        [line] = [line for line in PAGE.splitlines() if line.startswith(row.begins)]
        shown = [f"{row.bound(timings).total_seconds():g} s" for timings in (KUBERNETES, OPENSHIFT)]
        assert [cell.strip() for cell in line.split("|")[-3:-1]] == shown, row.begins


async def until(condition: Callable[[], object]) -> float:
    """How many seconds passed until it held."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not condition():  # noqa: ASYNC110 - in no time
        await asyncio.sleep(STEP)
    return loop.time() - begun


@pytest.mark.parametrize("how", ["away", "swallows"])
def test_after_a_long_outage_somebody_leads_as_soon_as_the_page_says(how: str) -> None:
    async def story(world: World) -> None:
        one, two = world.replica("one"), world.replica("two")
        gaps = []
        for phase in PHASES[::2]:
            await until(lambda: one.flag.term or two.flag.term)
            await asyncio.sleep(20)
            await fails(one.way, two.way, how=how, seconds=40 + 3.5 * phase)
            gaps.append(await until(lambda: one.flag.term or two.flag.term))
        assert max(gaps) <= after_an_outage(KUBERNETES).total_seconds() + STEP
        assert how == "away" or max(gaps) > KUBERNETES.attempt.total_seconds(), "no less is promised than can be"

    trial(story)


def _leads(flag: Leadership) -> bool:
    return flag.term is not None


async def fails(*ways: object, how: str, seconds: float) -> None:
    for way in ways:
        setattr(way, how, True)
    await asyncio.sleep(seconds)
    for way in ways:
        setattr(way, how, False)


class Line(InlineLifeline):
    """One candidate's way to the database; what ends it takes nothing back."""

    away = False

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        if self.away:
            raise UnavailableError("the database does not answer")
        return await super().ask(use_case)


class ByLease:
    """Candidates for one Lease and the row behind it."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.lease, self._store = MemoryLock(clock), InlineStore(clock)

    def candidate(self, name: str) -> tuple[asyncio.Task[None], Leadership, Line]:
        async def work(_term: Term) -> None:
            await asyncio.Event().wait()

        line, flag = Line(self._store), Leadership(self._clock)
        lock = LeaseAndTerm(self.lease, RowLock(line), clock=self._clock, every=KUBERNETES.retry)
        own = Candidate(name, f"{name}-1")
        elector = Elector(lock, own, work, timings=KUBERNETES, clock=self._clock, leadership=flag)
        return asyncio.create_task(elector.run()), flag, line


async def ended(*candidates: asyncio.Task[None]) -> None:
    for candidate in candidates:
        candidate.cancel()
    await asyncio.wait(candidates)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "cut off from the database"])
def test_a_holder_of_a_lease_is_followed_no_later_than_the_page_says(*, is_killed: bool) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        gaps = []
        for phase in PHASES[::3]:
            world = ByLease(LoopClock(loop))
            leader, _, line = world.candidate("leader")
            await asyncio.sleep(phase)
            follower, flag, _ = world.candidate("follower")
            await asyncio.sleep(10 * KUBERNETES.retry.total_seconds() + SOON - phase)
            if is_killed:
                found = world.lease.record
                await ended(leader)
                world.lease.record = found
            line.away = True
            gaps.append(await until(partial(_leads, flag)))
            await ended(leader, follower)
        assert max(gaps) <= killed_with_a_lease(KUBERNETES).total_seconds() + STEP
        assert max(gaps) > killed(KUBERNETES).total_seconds(), "no less is promised than can be"

    in_virtual_time(story())


def test_the_runbook_names_every_cause_that_the_metric_tells() -> None:
    runbook = (DOCS / "how-to/runbooks/MusterHubLeaderChanges.md").read_text()
    assert [loss.name for loss in Loss if f"`{loss.name}`" not in runbook] == []
    named = {word for word in runbook.replace("`", " ` ").split() if word.isupper() and word.replace("_", "").isalpha()}
    assert named <= {loss.name for loss in Loss}
