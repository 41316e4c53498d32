"""The patience with a hub that was lost: drawn once, spent once."""

from datetime import timedelta
from random import Random

import pytest

from machinery.clock import ManualClock
from spoke.options import Hubs
from spoke.trial import Trial

OPTIONS = Hubs()
WHOLE = OPTIONS.patience.total_seconds()


def trial(clock: ManualClock, *, seed: int = 1, spent: bool = False) -> Trial:
    return Trial(OPTIONS, lambda: spent, clock, Random(seed))


@pytest.mark.parametrize("seed", range(20))
def test_a_third_of_it_at_least_and_the_whole_at_most_is_waited(seed: int) -> None:
    patience = trial(ManualClock(), seed=seed)
    assert patience.left is None
    assert not patience.is_over
    patience.opened()
    patience.lost()
    assert WHOLE / 3 <= (patience.left or 0) <= WHOLE


def test_it_is_not_drawn_anew_while_the_hub_stays_lost() -> None:
    clock = ManualClock()
    patience = trial(clock)
    patience.opened()
    patience.lost()
    for _ in range(3):
        clock.advance(OPTIONS.patience / 2)
        assert not patience.lost()
    assert patience.is_over


def test_of_several_dead_hubs_only_the_first_is_waited_for() -> None:
    patience = trial(ManualClock(), spent=True)
    patience.lost()
    assert patience.is_over


def test_a_session_that_did_its_work_makes_good_what_failed_before() -> None:
    clock = ManualClock()
    patience = trial(clock)
    patience.opened()
    patience.lost()
    clock.advance(timedelta(minutes=1))
    patience.opened()
    clock.advance(OPTIONS.steady)
    assert patience.lost()
    assert not patience.is_over
