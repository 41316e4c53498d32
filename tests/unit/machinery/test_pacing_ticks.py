"""What is done now and then is done at the same moment by all, and never twice in a moment."""

import asyncio
from datetime import timedelta

import pytest

from machinery.loop import BEHIND, PausingLoop
from machinery.pacing import until_tick
from tests.fakes.virtual_time import in_virtual_time

HALF, ONE, TWO = timedelta(seconds=0.5), timedelta(seconds=1), timedelta(seconds=2)


def test_parts_that_begin_at_different_moments_wake_together() -> None:
    async def scenario() -> set[float]:
        woken: list[float] = []

        async def look(after: float, period: timedelta) -> None:
            await asyncio.sleep(after)
            for _ in range(4):
                await asyncio.sleep(until_tick(period))
                woken.append(round(asyncio.get_running_loop().time(), 6))

        await asyncio.gather(look(0.013, HALF), look(0.021, HALF), look(0.1, ONE), look(0.3, ONE), look(0.4, TWO))
        assert len(woken) == 20
        return set(woken)

    assert len(in_virtual_time(scenario())) <= 9


@pytest.mark.parametrize("work", [0.0, 0.001, 0.2, 0.4, 0.499])
def test_the_pause_is_a_quarter_of_the_period_at_least_and_five_quarters_at_most(work: float) -> None:
    async def scenario() -> list[float]:
        pauses = []
        for _ in range(20):
            pauses.append(until_tick(HALF))
            await asyncio.sleep(pauses[-1] + work)
        return pauses

    pauses = in_virtual_time(scenario())
    assert min(pauses) >= 0.125
    assert max(pauses) <= 0.625


async def test_no_period_is_no_pause() -> None:
    assert until_tick(timedelta()) == 0


def test_on_a_servers_loop_ticks_come_just_behind_even_seconds_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """At which agents beat: what comes in step and what is looked at now and then wake it once."""
    monkeypatch.setattr("machinery.loop.time.time", lambda: 1_000_001.5)

    async def scenario() -> float:
        return until_tick(TWO)

    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        assert runner.run(scenario()) == pytest.approx(0.5 + BEHIND)
