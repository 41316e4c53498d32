"""Locks that say what no lock should say: nobody's process ends of it, and nobody leads any longer or shorter for it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import chain, cycle, repeat

import pytest
from structlog.testing import capture_logs

from machinery.clock import Clock
from machinery.election import Loss
from tests.fakes.virtual_time import in_virtual_time
from tests.unit.machinery.election.candidates import DEADLINE, LEASE, POLL, RETRY, SOON, World, trial

HOUR = timedelta(hours=1)


def odd(_call: str) -> None:
    raise ValueError("invalid literal for int()")


def test_a_lock_that_nobody_can_read_ends_no_candidate_and_is_told_once_with_its_stack() -> None:
    async def story(world: World) -> None:
        with capture_logs() as told:
            one = world.replica("one")
            one.way.before = odd
            await asyncio.sleep(60)
        assert one.elector.tried.is_set()
        assert not one.elector.looked.is_set()
        assert one.elector.tally.failures == pytest.approx(60 / RETRY, abs=2)
        warnings = [line for line in told if line["log_level"] == "warning"]
        assert [(line["error"], isinstance(line["exc_info"], ValueError)) for line in warnings] == [
            ("invalid literal for int()", True)
        ]
        one.way.before = lambda _call: None
        await world.until(lambda: one.flag.term)

    trial(story)


def test_a_leader_whose_lock_nobody_can_read_has_until_the_deadline_and_runs_again() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        one.way.before = odd
        await asyncio.sleep(DEADLINE / 2)
        assert one.flag.term == 1
        await world.until(lambda: one.flag.term is None)
        one.way.before = lambda _call: None
        await world.until(lambda: one.flag.term == 2)
        assert one.elector.tally.lost == {Loss.NOT_RENEWED.name: 1}

    trial(story)


def test_a_release_that_fails_oddly_leaves_the_lock_to_run_out() -> None:
    async def story(world: World) -> None:
        one, two = world.replica("one"), world.replica("two")
        await world.until(lambda: one.flag.term)
        one.way.before = lambda call: odd(call) if call == "release" else None
        await one.elector.stop()
        assert await world.until(lambda: two.flag.term) <= LEASE + POLL + SOON

    trial(story)


def test_what_a_taking_got_that_was_never_answered_is_let_go_of_at_a_stop() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        one.way.swallows_answers = True
        await world.until(lambda: world.lock.record)
        two = world.replica("two")
        await world.until(lambda: one.elector.tally.failures)
        assert one.flag.term is None
        await one.elector.stop()
        assert await world.until(lambda: two.flag.term) <= POLL + SOON
        assert world.diary[-1] == "two works: it was released"

    trial(story)


def test_what_another_took_meanwhile_is_not_let_go_of() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        one.way.swallows_answers = True
        await world.until(lambda: world.lock.record)
        one.way.away = True
        two = world.replica("two")
        await world.until(lambda: two.flag.term)
        one.way.away = False
        await one.elector.stop()
        assert world.lock.record is not None
        assert world.lock.record.holder == "two"

    trial(story)


class JumpingClock(Clock):
    """Stands still for longer than a lease, and then is an hour ahead or an hour behind, by turns."""

    def __init__(self) -> None:
        self._ahead = chain.from_iterable(repeat(jump, int(2 * LEASE / RETRY)) for jump in cycle((HOUR, -HOUR)))

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + next(self._ahead)

    def monotonic(self) -> float:
        raise AssertionError("it has none")


def with_a_jumping_lock(story: Callable[[World], Awaitable[None]]) -> None:
    async def told() -> None:
        world = World(JumpingClock())
        try:
            await story(world)
        finally:
            await world.end()

    in_virtual_time(told())


def test_a_lock_whose_clock_jumps_by_an_hour_changes_neither_who_leads_nor_for_how_long() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        two = world.replica("two")
        await asyncio.sleep(3600)
        assert (one.terms, two.terms) == ([1], [])
        await world.kill("one")
        assert LEASE - RETRY <= await world.until(lambda: two.flag.term) <= LEASE + POLL + SOON
        one.way.away = two.way.away = True
        assert DEADLINE - RETRY - SOON <= await world.until(lambda: two.flag.term is None) <= DEADLINE + SOON

    with_a_jumping_lock(story)
