"""Wake-ups: in time or early, never late by design, never skipped, never more than asked."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from machinery.scheduler import Scheduler, _Every

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PERIOD = timedelta(seconds=60)


async def test_a_periodic_wake_up_comes_again_and_again() -> None:
    woken: asyncio.Queue[str] = asyncio.Queue()
    async with Scheduler() as scheduler:
        scheduler.every(timedelta(milliseconds=20), lambda: woken.put_nowait("key"), name="resync", at_once=True)
        async with asyncio.timeout(5):
            assert [await woken.get() for _ in range(3)] == ["key"] * 3


async def test_an_instant_that_is_past_wakes_at_once() -> None:
    woken = asyncio.Event()
    async with Scheduler() as scheduler:
        scheduler.at(NOW - timedelta(days=365), woken.set, name="rotation")
        async with asyncio.timeout(5):
            await woken.wait()


async def test_the_same_name_replaces_the_wake_up() -> None:
    woken: asyncio.Queue[str] = asyncio.Queue()
    async with Scheduler() as scheduler:
        scheduler.every(timedelta(days=1), lambda: woken.put_nowait("old"), name="status")
        scheduler.every(timedelta(milliseconds=10), lambda: woken.put_nowait("new"), name="status")
        async with asyncio.timeout(5):
            assert await woken.get() == "new"


async def test_a_dropped_wake_up_does_not_come() -> None:
    woken: asyncio.Queue[str] = asyncio.Queue()
    async with Scheduler() as scheduler:
        scheduler.every(timedelta(milliseconds=5), lambda: woken.put_nowait("dropped"), name="dropped")
        scheduler.drop("dropped")
        scheduler.drop("never there")
        scheduler.every(timedelta(milliseconds=20), lambda: woken.put_nowait("kept"), name="kept")
        async with asyncio.timeout(5):
            assert await woken.get() == "kept"


async def test_a_wake_up_may_replace_itself() -> None:
    woken = asyncio.Event()
    async with Scheduler() as scheduler:
        scheduler.at(NOW, lambda: scheduler.at(NOW, woken.set, name="rotation"), name="rotation")
        async with asyncio.timeout(5):
            await woken.wait()


@pytest.mark.parametrize("seed", range(20))
def test_jitter_only_ever_shortens_a_period(seed: int) -> None:
    trigger = _Every(PERIOD, 0.25, Random(seed), at_once=False)
    due = trigger.get_next_fire_time(NOW, NOW)
    assert NOW + PERIOD * 0.75 <= due <= NOW + PERIOD


def test_after_a_pause_there_is_one_wake_up_and_not_many() -> None:
    trigger = _Every(PERIOD, 0, Random(1), at_once=False)
    later = NOW + timedelta(hours=5)
    first = trigger.get_next_fire_time(NOW, later)
    assert first == later
    assert trigger.get_next_fire_time(first, later) == later + PERIOD
