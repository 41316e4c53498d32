"""Things are ended evenly: the rate holds in every window, also after a pause, and is never slower than it need be."""

import asyncio
from datetime import timedelta

import pytest

from machinery.pacing import LEAST_RATE, SLACK, drain_rate, paced


@pytest.mark.parametrize(
    ("count", "seconds", "rate"), [(0, 10, LEAST_RATE), (2000, 10, LEAST_RATE), (2000, 5, 400), (10_000, 5, 2000)]
)
def test_the_rate_is_what_the_grace_asks_for_and_at_least_that_of_kubernetes(count: int, seconds: int, rate: int) -> None:
    assert drain_rate(count, timedelta(seconds=seconds)) == rate


def test_without_a_grace_nothing_is_held_back() -> None:
    assert drain_rate(10, timedelta()) == float("inf")


async def test_no_window_has_more_than_the_rate_even_after_a_pause() -> None:
    loop, rate, window = asyncio.get_running_loop(), 1000.0, 0.05
    moments: list[float] = []
    async for number in paced(range(300), rate):
        moments.append(loop.time())
        if number == 100:
            await asyncio.sleep(0.1)
    for index, moment in enumerate(moments):
        inside = [each for each in moments[index:] if each - moment < window]
        assert len(inside) <= rate * (window + 2 * SLACK) + 2
    assert len(moments) == 300
