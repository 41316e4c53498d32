"""Agents beat in step, by their hub's clock, and none of them loses its own drawing for that."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from machinery.clock import OffsetClock
from spoke.domain.step import SHORTEST, SPREAD, STEP, pause
from spoke.ports import Capability
from tests.fakes.hub import MemoryHubClient, MemorySession
from tests.fakes.several import Several, played

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AHEAD = timedelta(seconds=0.7)
LATE = timedelta(milliseconds=15)
"""What a loop of tests takes from one look to the next, at most."""

moments = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - the zone is beside it
intervals = st.timedeltas(timedelta(seconds=10), timedelta(minutes=30))
draws = st.floats(0, 1, exclude_max=True)


def past_step(moment: datetime) -> timedelta:
    return (moment - EPOCH) % STEP


@given(intervals, draws, moments)
def test_a_beat_comes_at_a_step_within_its_range(interval: timedelta, drawn: float, now: datetime) -> None:
    assume(interval // STEP - interval * SHORTEST // STEP > 1)
    chosen = pause(interval, drawn, now)
    assert past_step(now + chosen) <= SPREAD
    assert interval * SHORTEST <= chosen <= interval + SPREAD


@given(st.timedeltas(timedelta(), timedelta(seconds=9.9)) | st.just(timedelta(seconds=11)), draws, moments)
def test_a_range_without_a_choice_of_steps_is_drawn_from_evenly(interval: timedelta, drawn: float, now: datetime) -> None:
    assert pause(interval, drawn, now) == pause(interval, drawn) == interval - (interval - interval * SHORTEST) * drawn


@pytest.mark.parametrize(("interval", "steps"), [(10, (8, 10)), (15, (12, 14)), (30, (24, 26, 28, 30))])
@pytest.mark.parametrize("late", [timedelta(milliseconds=1), SPREAD])
def test_who_came_back_together_has_a_choice_of_steps_wherever_it_stands_behind_one(
    interval: float, steps: tuple[int, ...], late: timedelta
) -> None:
    now = EPOCH + timedelta(days=20_000) + late
    taken = [(pause(timedelta(seconds=interval), number / 1_000, now) + late) // STEP * STEP for number in range(1_000)]
    assert {step: taken.count(step) for step in sorted(set(taken))} == {
        timedelta(seconds=at): 1_000 // len(steps) for at in steps
    }


def test_the_spread_is_used_whole() -> None:
    now, ten = EPOCH + timedelta(days=20_000), timedelta(seconds=10)
    late = [past_step(now + pause(ten, number / 1_000, now)) for number in range(1_000)]
    assert min(late) < SPREAD / 10
    assert max(late) > SPREAD * 0.9


def beats_of_agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[datetime]]:
    """When three agents beat, by the clock of their hub, which is ahead of theirs."""
    moments: list[datetime] = []
    beat = MemorySession.beat

    async def noted(self: MemorySession, *, available: bool | None) -> None:
        moments.append(self.hub.clock.now())
        await beat(self, available=available)

    async def play(world: Several) -> None:
        ahead = OffsetClock(world.clock)
        ahead.learn(world.clock.now() + AHEAD)
        world["a"].clock, world["a"].agent_clock = ahead, world.clock
        async with world.running():
            await world.until(lambda: len(moments) == 12)

    monkeypatch.setattr(MemorySession, "beat", noted)
    agents = []
    for number in range(3):
        (folder / str(number)).mkdir()
        played(folder / str(number), play, count=1)
        agents.append(moments[1:])  # the first one is sent at once
        moments.clear()
    return agents


def test_agents_beat_in_step_by_the_clock_of_their_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for moments in beats_of_agents(tmp_path, monkeypatch):
        assert [moment for moment in moments if past_step(moment) > SPREAD + LATE] == []
        between = [after - before for before, after in pairwise(moments)]
        assert timedelta(seconds=7.4) < min(between)
        assert max(between) < timedelta(seconds=10.1)


def test_where_every_beat_is_a_request_of_its_own_nobody_is_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = frozenset(Capability) - {Capability.ACKNOWLEDGED_BEATS}
    monkeypatch.setattr(MemoryHubClient, "capabilities", property(lambda _: others))
    found = [moment for moments in beats_of_agents(tmp_path, monkeypatch) for moment in moments]
    assert len([moment for moment in found if past_step(moment) > SPREAD + LATE]) > len(found) / 2
