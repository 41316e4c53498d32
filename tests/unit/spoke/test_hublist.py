"""The agent's hubs, in times that no setting of a clock changes."""

from datetime import timedelta
from random import Random

import pytest

from machinery.clock import ManualClock
from spoke.domain.hubs import HubState, Policy
from spoke.hublist import HubList
from spoke.options import Hubs
from spoke.ownership import Owner
from spoke.progress import Progress
from spoke.reserve import NoReserve
from tests.fakes.reserve import A, B, ReserveStage
from tests.fakes.timetable import ManualTimetable

DAY = timedelta(days=1)
BACK_AFTER = timedelta(minutes=10)


@pytest.mark.parametrize("step", [timedelta(0), -DAY, DAY])
async def test_a_hub_rests_and_is_gone_back_to_in_time_though_the_clock_is_set(step: timedelta) -> None:
    clock = ManualClock()
    hubs = HubList(
        Hubs(policy=Policy(fail_back_after=BACK_AFTER)),
        NoReserve(),
        Progress(clock),
        clock=clock,
        timetable=ManualTimetable(),
        random=Random(1),
        stir=lambda: None,
    )
    hubs.settle(ReserveStage(clock).listing, Owner(hub_id=B, epoch=1))
    for hub in (A, B):
        hubs.meet(hub, HubState.READY)
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
