"""Another clock's time, as it is known from what that clock once said."""

from datetime import timedelta

import pytest

from machinery.clock import ManualClock, OffsetClock, SystemClock

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("step", [30 * 24 * HOUR, -8 * HOUR])
def test_what_was_learned_of_another_clock_stays_true_though_our_own_is_set(step: timedelta) -> None:
    ours = ManualClock()
    ours.advance(HOUR)
    theirs, seen = ours.now() + HOUR, OffsetClock(ours)
    assert (seen.offset, seen.now()) == (None, ours.now())
    seen.learn(theirs)
    ours.advance(HOUR)
    ours.set_forward(step)
    assert seen.now() == theirs + HOUR
    assert seen.offset == HOUR - step


def test_the_machines_lasting_time_goes_on() -> None:
    clock = SystemClock()
    began = clock.lasting()
    assert clock.lasting() >= began
    assert OffsetClock(clock).lasting() >= began
