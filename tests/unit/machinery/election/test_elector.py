"""One lock, several candidates, hours in virtual time: who leads, from when, until when, and in which order things end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, cycle, repeat

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from machinery.election import KUBERNETES, OPENSHIFT, Candidate, TermEnd, Timings
from machinery.errors import InvalidError, NotLeaderError
from machinery.runtime.clock import Clock
from tests.checks import check_refusal, check_refusals, present
from tests.unit.machinery.election.candidates import DEADLINE, LEASE, POLL, RETRY, SOON, World


@pytest_asyncio.fixture(loop_scope="function")
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The parameter, where a test has one, makes the clock of the lock."""
    made = World(request.param() if hasattr(request, "param") else None)
    yield made
    await made.end()


async def test_one_of_five_leads_and_is_followed_after_a_stop_or_its_death(world: World) -> None:
    one = world.replica("one")
    assert await world.until(lambda: one.flag.term) < POLL
    others = [world.replica(f"r{number}") for number in range(4)]
    await asyncio.sleep(3600)
    assert (one.flag.term, one.terms, [other.terms for other in others]) == (1, [1], [[]] * 4)
    assert one.elector.tally.renewals == pytest.approx(3600 / RETRY, rel=0.01)
    assert all(replica.elector.leader_known.is_set() for replica in (one, *others))
    assert len({replica.elector.leader for replica in (one, *others)}) == 1
    await one.elector.stop()
    assert await world.until(lambda: any(other.flag.term for other in others)) <= POLL + SOON
    two = next(other for other in others if other.flag.term)
    assert (two.flag.term, world.diary[-1]) == (2, f"{two.name} works: it was released")
    await asyncio.sleep(7)
    others.remove(two)
    await world.kill(two.name)
    assert LEASE - RETRY <= await world.until(lambda: any(other.flag.term for other in others)) <= LEASE + POLL + SOON


async def test_slow_stop_is_renewed_and_ends_the_work_before_the_flag_and_the_flag_before_the_release(world: World) -> None:
    one, two = world.replica("one", stop_within=60), world.replica("two")
    one.work_ends_after = 50.0
    at_release: list[object] = []
    one.way.before = lambda call: at_release.append(one.flag.term) if call == "release" else None
    await world.until(lambda: one.flag.term)
    stopping = asyncio.create_task(one.elector.stop())
    await asyncio.sleep(49)
    assert (one.flag.term, two.flag.term) == (1, None), "a step in progress is still the leader's"
    await stopping
    assert (world.diary[-1], at_release) == ("one stopped, leading", [None])
    released = present(world.lock.record)
    assert (released.holder, released.term) == ("", 1)
    assert await world.until(lambda: two.flag.term) <= POLL + SOON


async def test_a_loss_is_reported_when_the_flag_falls_and_not_when_the_work_has_ended(world: World) -> None:
    one = await world.leader("one", stop_within=60)
    one.work_ends_after = 50.0
    with capture_logs() as logged:
        one.way.away = True
        await world.until(lambda: one.flag.term is None)
        await asyncio.sleep(SOON)
        assert [line["because"] for line in logged if line["event"] == "leadership lost"] == [str(TermEnd.NOT_RENEWED)]
        assert not [line for line in world.diary if "stopped" in line], "the work has not ended yet"


async def test_work_that_does_not_stop_in_time_keeps_the_lock_from_being_released(world: World) -> None:
    one = await world.leader("one", stop_within=5)
    one.work_ends_after = 100.0
    await one.elector.stop()
    assert (one.flag.term, present(world.lock.record).holder) == (None, "one")


@pytest.mark.parametrize("how", ["away", "swallows"])
async def test_cut_off_leader_stops_at_the_deadline_and_another_leads_after_the_lease(world: World, how: str) -> None:
    one, two = await world.leader("one"), world.replica("two")
    await asyncio.sleep(7.5)
    setattr(one.way, how, True)
    assert DEADLINE - RETRY - SOON <= await world.until(lambda: one.flag.term is None) <= DEADLINE + SOON
    assert two.flag.term is None
    await world.until(lambda: two.flag.term)
    setattr(one.way, how, False)
    await asyncio.sleep(60)
    assert (one.flag.term, two.terms) == (None, [2])
    await two.elector.stop()
    await world.until(lambda: one.flag.term)
    assert (one.terms, one.elector.tally.lost) == ([1, 3], {TermEnd.NOT_RENEWED.name: 1})


async def test_an_outage_shorter_than_the_deadline_costs_nothing(world: World) -> None:
    one, two = await world.leader("one"), world.replica("two")
    for way in (one.way, two.way):
        way.away = True
    await asyncio.sleep(DEADLINE - RETRY - 0.5)
    for way in (one.way, two.way):
        way.away = False
    await asyncio.sleep(100)
    assert (one.terms, two.terms) == ([1], [])
    assert one.elector.tally.failures > 0


async def test_leader_that_was_fenced_overwritten_or_stopped_does_not_lead(world: World) -> None:
    one, stranger = await world.leader("one"), Candidate("stranger", "s")
    await asyncio.sleep(1)
    await world.lock.take(await world.lock.read(), stranger, timedelta(seconds=LEASE))
    one.flag.was_fenced(1)
    assert one.flag.term is None
    await asyncio.sleep(SOON)
    assert world.diary[-1] == "one stopped, not leading"
    assert await world.until(lambda: one.flag.term == 3) <= LEASE + POLL + SOON
    assert one.elector.tally.lost == {TermEnd.DEPOSED.name: 1}
    await world.lock.take(await world.lock.read(), stranger, timedelta(seconds=LEASE))
    assert await world.until(lambda: one.flag.term is None) <= RETRY + SOON
    assert one.elector.tally.lost == {TermEnd.DEPOSED.name: 1, TermEnd.TAKEN.name: 1}
    await world.until(lambda: one.flag.term == 5)
    world.loop.stand_still(DEADLINE + RETRY)
    check_refusal(NotLeaderError, one.flag.require, 5)
    assert one.flag.refused == 1, "a process that was stopped finds its flag fallen before its elector has run"


async def test_the_next_process_of_the_same_replica_leads_at_once_and_in_a_new_term(world: World) -> None:
    """Under its own name, and under another one where nobody else can be."""
    await world.leader("one")
    await world.kill("one")
    again = world.replica("one", "one-2")
    assert await world.until(lambda: again.flag.term) < POLL
    assert again.flag.term == 2
    await world.kill("oneone-2")
    alone = world.replica("new-name", alone=True)
    assert await world.until(lambda: alone.flag.term) < POLL


async def test_two_replicas_of_one_name_do_not_take_the_lock_from_each_other_for_ever(world: World) -> None:
    one, two = await world.leader("same", "a"), world.replica("same", "b")
    await asyncio.sleep(600)
    assert (one.terms, two.terms) == ([1], [2])


async def test_a_leader_whose_work_fails_lets_another_lead(world: World) -> None:
    one = world.replica("one")
    one.work_fails = True
    await asyncio.sleep(SOON)
    two = world.replica("two")
    assert await world.until(lambda: two.flag.term) <= POLL + SOON
    assert one.elector.tally.lost == {TermEnd.WORK_ENDED.name: 1}


async def test_stop_before_the_lock_was_reached_does_not_wait_and_a_candidate_needs_a_name(world: World) -> None:
    check_refusal(InvalidError, world.replica, "", "x", match="needs a name")
    one = world.replica("one")
    one.way.away = True
    await asyncio.sleep(1)
    begun = world.loop.time()
    await one.elector.stop()
    await one.elector.stop()
    assert world.loop.time() - begun < SOON


HOUR = timedelta(hours=1)


def odd(_call: str) -> None:
    raise ValueError("invalid literal for int()")


async def test_unreadable_lock_is_logged_once_and_ends_a_term_only_after_the_deadline(world: World) -> None:
    with capture_logs() as logged:
        one = world.replica("one")
        one.way.before = odd
        await asyncio.sleep(60)
    assert (one.elector.tried.is_set(), one.elector.leader_known.is_set()) == (True, False)
    assert one.elector.tally.failures == pytest.approx(60 / RETRY, abs=2)
    warnings = [(line["error"], type(line["exc_info"])) for line in logged if line["log_level"] == "warning"]
    assert warnings == [("invalid literal for int()", ValueError)]
    one.way.before = lambda _call: None
    await world.until(lambda: one.flag.term)
    one.way.before = odd
    await asyncio.sleep(DEADLINE / 2)
    assert one.flag.term == 1
    await world.until(lambda: one.flag.term is None)
    one.way.before = lambda _call: None
    await world.until(lambda: one.flag.term == 2)
    assert one.elector.tally.lost == {TermEnd.NOT_RENEWED.name: 1}


async def test_release_that_fails_leaves_the_flag_down_and_the_lock_to_run_out(world: World) -> None:
    one, two = await world.leader("one"), world.replica("two")
    one.way.before = lambda call: setattr(one.way, "away", call == "release")
    await one.elector.stop()
    assert one.flag.term is None
    assert await world.until(lambda: two.flag.term) <= LEASE + POLL + SOON
    three = world.replica("three")
    two.way.before = lambda call: odd(call) if call == "release" else None
    await two.elector.stop()
    assert await world.until(lambda: three.flag.term) <= LEASE + POLL + SOON


async def test_what_a_taking_got_that_was_never_answered_is_let_go_of_at_a_stop(world: World) -> None:
    one = world.replica("one")
    one.way.swallows_answers = True
    await world.until(lambda: world.lock.record)
    two = world.replica("two")
    await world.until(lambda: one.elector.tally.failures)
    assert one.flag.term is None
    await one.elector.stop()
    assert await world.until(lambda: two.flag.term) <= POLL + SOON
    assert world.diary[-1] == "two works: it was released"


async def test_what_another_took_meanwhile_is_not_let_go_of(world: World) -> None:
    one = world.replica("one")
    one.way.swallows_answers = True
    await world.until(lambda: world.lock.record)
    one.way.away = True
    await world.leader("two")
    one.way.away = False
    await one.elector.stop()
    assert present(world.lock.record).holder == "two"


class JumpingClock(Clock):
    """Stands still for longer than a lease, and then is an hour ahead or an hour behind, by turns."""

    def __init__(self) -> None:
        self._ahead = chain.from_iterable(repeat(jump, int(2 * LEASE / RETRY)) for jump in cycle((HOUR, -HOUR)))

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + next(self._ahead)

    def monotonic(self) -> float:
        raise AssertionError("it has none")


@pytest.mark.parametrize("world", [JumpingClock], indirect=True)
async def test_a_lock_whose_clock_jumps_by_an_hour_changes_neither_who_leads_nor_for_how_long(world: World) -> None:
    one, two = await world.leader("one"), world.replica("two")
    await asyncio.sleep(3600)
    assert (one.terms, two.terms) == ([1], [])
    await world.kill("one")
    assert LEASE - RETRY <= await world.until(lambda: two.flag.term) <= LEASE + POLL + SOON
    one.way.away = two.way.away = True
    assert DEADLINE - RETRY - SOON <= await world.until(lambda: two.flag.term is None) <= DEADLINE + SOON


def of(lease: float, deadline: float, retry: float, poll: float = 0.1) -> Timings:
    return Timings(*(timedelta(seconds=value) for value in (lease, deadline, retry, poll)))


def test_timings_default_to_kubernetes_and_must_fit_together() -> None:
    for known, expected in ((KUBERNETES, of(15, 10, 2)), (OPENSHIFT, of(137, 107, 26))):
        assert replace(known, poll=expected.poll) == expected
    rows: list[tuple[tuple[float, ...], str]] = [
        ((10, 10, 2), "lease .10s. must be longer than the renew deadline .10s."),
        ((15, 10, 10), "longer than 1.2 times the retry period"),
        *(((15, 2.4, 2), "longer than 1.2 times the retry period"), ((15, 10, 2, 0), "1ms or longer")),
        ((15, 10, 0.0001), "1ms or longer"),
    ]
    check_refusals(InvalidError, lambda wrong: of(*wrong), rows)

    assert of(0.015, 0.01, 0.002, 0.001).attempt == timedelta(milliseconds=5)
