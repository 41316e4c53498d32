"""One lock, several candidates, hours in no time: who leads, from when, until when, and in which order things end."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from machinery.election import Candidate, Loss
from machinery.errors import InvalidError, NotLeaderError
from tests.unit.machinery.election.candidates import DEADLINE, LEASE, POLL, RETRY, SOON, World, trial


def test_the_first_candidate_leads_at_once_and_keeps_leading() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        assert await world.until(lambda: one.flag.term) < POLL
        await asyncio.sleep(3600)
        assert (one.flag.term, one.terms) == (1, [1])
        assert one.elector.tally.renewals == pytest.approx(3600 / RETRY, rel=0.01)

    trial(story)


def test_one_of_five_leads_and_the_others_know_who() -> None:
    async def story(world: World) -> None:
        replicas = [world.replica(f"r{number}") for number in range(5)]
        await asyncio.sleep(100)
        assert sum(replica.flag.term is not None for replica in replicas) == 1
        assert all(replica.elector.looked.is_set() for replica in replicas)
        assert len({replica.elector.leader for replica in replicas}) == 1

    trial(story)


def test_a_clean_stop_hands_over_within_a_poll() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        two = world.replica("two")
        await asyncio.sleep(7)
        await one.elector.stop()
        assert await world.until(lambda: two.flag.term) <= POLL + SOON
        assert (two.flag.term, world.diary[-1]) == (2, "two works: it was released")

    trial(story)


def test_a_killed_leader_is_followed_after_lease_and_poll_and_not_before_its_lease() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        two = world.replica("two")
        await asyncio.sleep(7)
        await world.kill("one")
        gap = await world.until(lambda: two.flag.term)
        assert LEASE - RETRY <= gap <= LEASE + POLL + SOON

    trial(story)


def test_the_work_ends_before_the_flag_falls_and_the_flag_before_the_release() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        one.work_ends_after = 3.0
        at_release: list[object] = []
        one.way.before = lambda call: at_release.append(one.flag.term) if call == "release" else None
        await world.until(lambda: one.flag.term)
        stopping = asyncio.create_task(one.elector.stop())
        await asyncio.sleep(2.9)
        assert one.flag.term == 1, "a step in progress is still the leader's"
        await stopping
        assert world.diary[-1] == "one stopped, leading"
        assert at_release == [None]
        assert world.lock.record is not None
        assert (world.lock.record.holder, world.lock.record.term) == ("", 1)

    trial(story)


def test_a_slow_stop_is_renewed_until_it_is_over() -> None:
    async def story(world: World) -> None:
        one = world.replica("one", stop_within=60)
        one.work_ends_after = 50.0
        two = world.replica("two")
        await world.until(lambda: one.flag.term)
        stopping = asyncio.create_task(one.elector.stop())
        await asyncio.sleep(49)
        assert two.flag.term is None
        await stopping
        assert await world.until(lambda: two.flag.term) <= POLL + SOON

    trial(story)


def test_a_loss_is_told_when_the_flag_falls_and_not_when_the_work_has_ended() -> None:
    async def story(world: World) -> None:
        one = world.replica("one", stop_within=60)
        one.work_ends_after = 50.0
        await world.until(lambda: one.flag.term)
        with capture_logs() as told:
            one.way.away = True
            await world.until(lambda: one.flag.term is None)
            await asyncio.sleep(SOON)
            assert [line["because"] for line in told if line["event"] == "leadership lost"] == [str(Loss.NOT_RENEWED)]
            assert not [line for line in world.diary if "stopped" in line], "the work has not ended yet"

    trial(story)


def test_work_that_does_not_stop_in_time_keeps_the_lock_from_being_released() -> None:
    async def story(world: World) -> None:
        one = world.replica("one", stop_within=5)
        one.work_ends_after = 100.0
        await world.until(lambda: one.flag.term)
        await one.elector.stop()
        assert one.flag.term is None
        assert world.lock.record is not None
        assert world.lock.record.holder == "one"

    trial(story)


def test_a_release_that_fails_leaves_the_flag_down_and_the_lock_to_run_out() -> None:
    async def story(world: World) -> None:
        one, two = world.replica("one"), world.replica("two")
        await world.until(lambda: one.flag.term)
        one.way.before = lambda call: setattr(one.way, "away", call == "release")
        await one.elector.stop()
        assert one.flag.term is None
        assert await world.until(lambda: two.flag.term) <= LEASE + POLL + SOON

    trial(story)


@pytest.mark.parametrize("how", ["away", "swallows"])
def test_a_leader_that_is_cut_off_leads_no_more_after_the_deadline_and_another_after_the_lease(how: str) -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        two = world.replica("two")
        await asyncio.sleep(7.5)
        setattr(one.way, how, True)
        assert DEADLINE - RETRY - SOON <= await world.until(lambda: one.flag.term is None) <= DEADLINE + SOON
        assert two.flag.term is None
        await world.until(lambda: two.flag.term)
        setattr(one.way, how, False)
        await asyncio.sleep(60)
        assert one.flag.term is None
        assert two.terms == [2]
        await two.elector.stop()
        await world.until(lambda: one.flag.term)
        assert one.terms == [1, 3]
        assert one.elector.tally.lost == {Loss.NOT_RENEWED.name: 1}

    trial(story)


def test_an_outage_shorter_than_the_deadline_costs_nothing() -> None:
    async def story(world: World) -> None:
        one, two = world.replica("one"), world.replica("two")
        await world.until(lambda: one.flag.term)
        for way in (one.way, two.way):
            way.away = True
        await asyncio.sleep(DEADLINE - RETRY - 0.5)
        for way in (one.way, two.way):
            way.away = False
        await asyncio.sleep(100)
        assert (one.terms, two.terms) == ([1], [])
        assert one.elector.tally.failures > 0

    trial(story)


def test_a_process_that_was_stopped_finds_its_flag_fallen_before_its_elector_has_run() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        world.loop.stand_still(DEADLINE + RETRY)
        with pytest.raises(NotLeaderError):
            one.flag.require(1)
        assert one.flag.refused == 1

    trial(story)


def test_whoever_is_told_by_a_transaction_that_its_term_is_over_stops_at_once_and_runs_again() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        await asyncio.sleep(1)
        stranger = Candidate("stranger", "s")
        await world.lock.take(await world.lock.read(), stranger, timedelta(seconds=LEASE))
        one.flag.was_fenced(1)
        assert one.flag.term is None
        await asyncio.sleep(SOON)
        assert world.diary[-1] == "one stopped, not leading"
        assert await world.until(lambda: one.flag.term == 3) <= LEASE + POLL + SOON
        assert one.elector.tally.lost == {Loss.DEPOSED.name: 1}

    trial(story)


def test_a_lock_that_a_stranger_overwrote_is_noticed_at_the_next_renewal() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        await world.lock.take(await world.lock.read(), Candidate("stranger", "s"), timedelta(seconds=LEASE))
        assert await world.until(lambda: one.flag.term is None) <= RETRY + SOON
        assert one.elector.tally.lost == {Loss.TAKEN.name: 1}

    trial(story)


def test_the_next_process_of_the_same_replica_leads_at_once_and_in_a_new_term() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        await world.until(lambda: one.flag.term)
        await world.kill("one")
        again = world.replica("one", "one-2")
        assert await world.until(lambda: again.flag.term) < POLL
        assert again.flag.term == 2

    trial(story)


def test_two_replicas_of_one_name_do_not_take_the_lock_from_each_other_for_ever() -> None:
    async def story(world: World) -> None:
        one = world.replica("same", "a")
        await world.until(lambda: one.flag.term)
        two = world.replica("same", "b")
        await asyncio.sleep(600)
        assert (one.terms, two.terms) == ([1], [2])

    trial(story)


def test_where_nobody_else_can_be_a_restart_under_another_name_leads_at_once() -> None:
    async def story(world: World) -> None:
        one = world.replica("old-name", alone=True)
        await world.until(lambda: one.flag.term)
        await world.kill("old-name")
        two = world.replica("new-name", alone=True)
        assert await world.until(lambda: two.flag.term) < POLL

    trial(story)


def test_a_leader_whose_work_fails_lets_another_lead() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        one.work_fails = True
        await asyncio.sleep(SOON)
        two = world.replica("two")
        assert await world.until(lambda: two.flag.term) <= POLL + SOON
        assert one.elector.tally.lost == {Loss.WORK_ENDED.name: 1}

    trial(story)


def test_a_stop_that_comes_before_the_lock_was_ever_reached_does_not_wait_for_it() -> None:
    async def story(world: World) -> None:
        one = world.replica("one")
        one.way.away = True
        await asyncio.sleep(1)
        begun = world.loop.time()
        await one.elector.stop()
        await one.elector.stop()
        assert world.loop.time() - begun < SOON

    trial(story)


def test_a_candidate_needs_a_name() -> None:
    async def story(world: World) -> None:
        with pytest.raises(InvalidError, match="needs a name"):
            world.replica("", "x")
        world.replica("other")

    trial(story)
