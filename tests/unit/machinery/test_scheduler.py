"""Wake-ups: in time or early, never late by design, never skipped, never more than asked."""

import asyncio
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random

import pytest

from machinery.clock import SystemClock
from machinery.scheduler import Scheduler, _Every
from tests.fakes.virtual_time import START, in_virtual_time

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


def test_a_period_that_began_before_the_clock_was_set_back_ends_within_a_period() -> None:
    trigger = _Every(PERIOD, 0, Random(1), at_once=False)
    assert trigger.get_next_fire_time(NOW + timedelta(hours=8), NOW) == NOW + PERIOD


def test_wake_ups_come_in_time_though_the_clock_is_set_back() -> None:
    """In the loop's time, which passes at once: the wall clock is left behind by all of it."""

    async def woken() -> list[tuple[str, float]]:
        loop, came, enough = asyncio.get_running_loop(), list[tuple[str, float]](), asyncio.Event()

        def come(name: str) -> None:
            came.append((name, round(loop.time(), -1)))
            if name == "renewal":
                enough.set()

        async with Scheduler() as scheduler:
            scheduler.every(timedelta(minutes=20), lambda: come("resync"), name="resync")
            scheduler.at(SystemClock().now() + timedelta(seconds=3700), lambda: come("renewal"), name="renewal")
            loop.call_later(1500, loop.stand_still, 300)  # type: ignore[attr-defined]
            await enough.wait()
        return came

    assert in_virtual_time(woken()) == [("resync", 1200), ("resync", 2400), ("resync", 3600), ("renewal", 3700)]


def test_an_instant_that_the_clock_was_set_beyond_is_noticed_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set forward, that is: the loop's time knows nothing of it."""
    offset = timedelta(0)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            assert tz is UTC or str(tz) == "UTC"
            return START + timedelta(seconds=asyncio.get_running_loop().time()) + offset

    async def woken() -> float:
        nonlocal offset
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        async with Scheduler() as scheduler:
            scheduler.at(START + timedelta(hours=8), came.set, name="rotation")
            await asyncio.sleep(90)
            offset = timedelta(hours=9)
            await came.wait()
        return loop.time() - 90

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Ahead)
    monkeypatch.setattr("machinery.clock.datetime", Ahead)
    assert in_virtual_time(woken()) <= 60
