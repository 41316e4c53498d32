"""The agent's hubs, in times that no setting of a clock changes."""

from datetime import timedelta
from random import Random

import pytest

from machinery.runtime.clock import ManualClock
from spoke.credentials.owner import Owner
from spoke.domain.hubs import HubSelectionPolicy, HubState
from spoke.failover.candidates import HubList, ReconnectBudget
from spoke.observability.progress import AgentProgress
from spoke.options import Hubs, Pause
from tests.fakes.reserve import A, B, C, ReserveStage
from tests.fakes.virtual_time import ManualTimetable

DAY = timedelta(days=1)
BACK_AFTER = timedelta(minutes=10)
RESTS = Pause(timedelta(seconds=30), timedelta(minutes=1), jitter=0)


def hubs_of(clock: ManualClock, timetable: ManualTimetable) -> HubList:
    """The agent is at B, and would rather be at A."""
    hubs = HubList(
        Hubs(policy=HubSelectionPolicy(fail_back_after=BACK_AFTER), rest=RESTS),
        ReserveStage(clock).standby,
        AgentProgress(clock),
        clock=clock,
        timetable=timetable,
        random=Random(1),
        stir=lambda: None,
    )
    hubs.settle(ReserveStage(clock).listing, Owner(hub_id=B, epoch=1))
    for hub in (A, B):
        hubs.meet(hub, HubState.READY)
    return hubs


@pytest.mark.parametrize("step", [timedelta(0), -DAY, DAY])
async def test_a_hub_rests_and_is_gone_back_to_in_time_though_the_clock_is_set(step: timedelta) -> None:
    clock = ManualClock()
    hubs = hubs_of(clock, ManualTimetable())
    hubs.fail(A, "it was away")
    clock.set_forward(step)
    assert "has failed a moment ago" in hubs.refuse_move(A)
    clock.advance(BACK_AFTER - timedelta(seconds=1))
    assert hubs.refuse_move(A) == ""
    assert (kept := hubs.decide()) is not None
    assert kept.hub_id == B
    clock.advance(timedelta(seconds=1))
    assert (back := hubs.decide()) is not None
    assert back.hub_id == A


@pytest.mark.parametrize("slept", [timedelta(0), DAY])
async def test_whoever_goes_back_is_woken_for_it_though_the_machine_slept_or_another_hub_rests(slept: timedelta) -> None:
    clock, timetable = ManualClock(), ManualTimetable()
    hubs = hubs_of(clock, timetable)
    clock.advance(BACK_AFTER)
    for hub in (A, A, C):  # A for a minute, C for half of one
        hubs.fail(hub, "it was away")
    clock.set_forward(slept)
    while (found := hubs.decide()) is not None and found.hub_id != A:
        assert timetable.instants, "nobody is woken"
        woken = min(timetable.instants.values())
        timetable.instants.clear()
        clock.advance(max(woken - clock.now(), timedelta(0)))
    assert clock.monotonic() < (BACK_AFTER + timedelta(seconds=61)).total_seconds()


OPTIONS = Hubs()
WHOLE = OPTIONS.patience.total_seconds()


def trial(clock: ManualClock, *, seed: int = 1, spent: bool = False) -> ReconnectBudget:
    return ReconnectBudget(OPTIONS, lambda: spent, clock, Random(seed))


def test_between_a_third_of_the_patience_and_the_whole_is_waited_for_the_first_of_several_dead_hubs_alone() -> None:
    for seed in range(20):
        patience = trial(ManualClock(), seed=seed)
        assert (patience.left, patience.is_over) == (None, False)
        patience.opened()
        patience.lost()
        assert WHOLE / 3 <= (patience.left or 0) <= WHOLE
    patience = trial(ManualClock(), spent=True)
    patience.lost()
    assert patience.is_over


def test_patience_is_drawn_anew_when_a_session_did_its_work_and_not_while_the_hub_stays_lost() -> None:
    clock = ManualClock()
    patience = trial(clock)
    patience.opened()
    patience.lost()
    for _ in range(3):
        clock.advance(OPTIONS.patience / 2)
        assert not patience.lost()
    assert patience.is_over
    patience.opened()
    clock.advance(OPTIONS.steady)
    assert patience.lost()
    assert not patience.is_over
