"""When acknowledgements are due, and that thousands of them need few timers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from hub.rpc.acknowledging import TICK, Acknowledgements, Deferred, spacing
from hub.rpc.tempo import Tempo
from spoke.domain.patience import PATIENCE, SILENCE, patience

FLUSH_WINDOW = 1.0


@pytest.mark.parametrize(("lease", "expected"), [(60, 2.0), (8, 2.0), (4, 1.0), (2, 0.5)])
def test_an_agent_hears_four_times_a_lease_and_every_two_seconds_at_least(lease: float, expected: float) -> None:
    assert spacing(timedelta(seconds=lease), timedelta(seconds=1)) == expected


@pytest.mark.parametrize(("told", "expected"), [(0, 2.0), (3, 2.0), (5, 2.0), (8, 3.5), (10, 4.5), (4_000_000_000, 4.5)])
def test_one_that_says_that_it_waits_longer_hears_more_seldom(told: int, expected: float) -> None:
    assert spacing(timedelta(seconds=60), timedelta(seconds=1), timedelta(seconds=told)) == expected


@pytest.mark.parametrize("interval", [5, 10, 60])
def test_patience_counts_only_where_beats_come_often(interval: float) -> None:
    """A verdict that is told early, on a session that beats seldom, is judged by the shorter patience."""
    assert spacing(timedelta(minutes=5), timedelta(seconds=interval), timedelta(seconds=10)) == 2.0


@pytest.mark.parametrize("interval", [0.1, 1, 4.9, 5, 10, 60])
def test_what_the_hub_takes_is_a_second_less_than_what_the_agent_waits(interval: float) -> None:
    between = timedelta(seconds=interval)
    longest = FLUSH_WINDOW + spacing(timedelta(minutes=5), between, PATIENCE) + TICK
    assert longest + 1 < patience(between).total_seconds()


@pytest.mark.parametrize("interval", [0.1, 1, 4.9, 5, 10])
def test_an_agent_leaves_a_hub_that_stores_nothing_within_fifteen_seconds(interval: float) -> None:
    between = timedelta(seconds=interval)
    assert between + patience(between) <= timedelta(seconds=15)
    assert SILENCE <= patience(between) <= PATIENCE


def acknowledged(intervals: list[float]) -> float:
    """Seconds between two acknowledgements in a session that was told these intervals, because more came or went."""
    sessions, deferred = [0.0], list[float]()
    told = Acknowledgements(
        Tempo(timedelta(seconds=2), 1, lambda: int(sessions[0])), _Noted(deferred), lambda: 0.0, lambda: None
    )
    told.begin(PATIENCE)
    for interval in intervals:
        sessions[0] = interval
        told.lease(timedelta(seconds=60))
        assert told.interval == timedelta(seconds=interval)
    told.stored(1, at_once=True)
    assert told.due_ack() is not None
    told.stored(2, at_once=False)
    (due,) = deferred
    return due


class _Noted(Deferred):
    """Only notes when a call is due."""

    def __init__(self, due: list[float]) -> None:
        super().__init__()
        self._noted = due

    def call_at(self, when: float, tell: Callable[[], None]) -> None:
        del tell
        self._noted.append(when)


@pytest.mark.parametrize("intervals", [[2], [2, 5], [5, 2], [2, 30, 2], [30, 5, 2]])
def test_an_agent_hears_in_time_although_there_were_more_of_them_when_it_chose_how_long_it_waits(
    intervals: list[float],
) -> None:
    """It chooses as its session begins, by the interval that it has heard of last."""
    least = min(patience(timedelta(seconds=interval)) for interval in intervals)
    assert FLUSH_WINDOW + acknowledged(intervals) + TICK + 1 < least.total_seconds()


async def test_what_is_due_within_a_tick_shares_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, deferred = asyncio.get_running_loop(), Deferred()
    timers: list[tuple[float, Any, int]] = []
    monkeypatch.setattr(loop, "call_at", lambda when, call, tick: timers.append((when, call, tick)))
    told: list[int] = []
    for number in range(1000):
        deferred.call_at(3 * TICK - number / 1e6, lambda number=number: told.append(number))  # type: ignore[misc]
    deferred.call_at(3 * TICK + 0.001, lambda: told.append(-1))
    assert [when for when, _, _ in timers] == [3 * TICK, 4 * TICK]
    for _, call, tick in timers:
        call(tick)
    assert told == [*range(1000), -1]
