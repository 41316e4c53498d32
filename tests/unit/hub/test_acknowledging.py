"""When acknowledgements are due, and that thousands of them need few timers."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from hub.rpc.acknowledging import LONGEST, TICK, Deferred, spacing


@pytest.mark.parametrize(("lease", "expected"), [(60, 2.0), (8, 2.0), (4, 1.0), (2, 0.5)])
def test_an_agent_hears_four_times_a_lease_and_every_two_seconds_at_least(lease: float, expected: float) -> None:
    assert spacing(timedelta(seconds=lease)) == expected
    assert timedelta(seconds=2) == LONGEST


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
