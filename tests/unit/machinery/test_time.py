"""Clocks, durations, ticks, rates, wake-ups, and loops that pause."""

import asyncio
import functools
import selectors
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random

import pytest

from machinery.durations import format_duration, parse_duration
from machinery.runtime import event_loop
from machinery.runtime.clock import ManualClock, OffsetClock, SystemClock
from machinery.runtime.event_loop import BUSY, LEAST_RATE, PAUSE, WINDOW, PausingLoop, drain_rate, until_tick
from machinery.runtime.scheduler import SystemScheduler, _Every
from tests.checks import check_refusals
from tests.fakes.virtual_time import START, in_virtual_time

HOUR = timedelta(hours=1)


def test_offset_clock_keeps_what_it_learned_when_our_clock_is_set() -> None:
    for step in (30 * 24 * HOUR, -8 * HOUR):
        ours = ManualClock()
        ours.advance(HOUR)
        theirs, seen = ours.now() + HOUR, OffsetClock(ours)
        assert (seen.offset, seen.now()) == (None, ours.now()), step
        seen.set_time(theirs)
        ours.advance(HOUR)
        ours.set_forward(step)
        assert seen.now() == theirs + HOUR, step
        assert seen.offset == HOUR - step, step


def test_durations_are_parsed_and_formatted() -> None:
    seconds = [60, 300, 5400, 0.25, 30 * 86400, 1.5]
    assert [parse_duration(text).total_seconds() for text in ["60s", "5m", "1h30m", "250ms", "30d", "1.5s"]] == seconds

    wrong = ("", "60", "s", "1 minute", "-5s", "1h30", "1e3s", "5M", "99999999999999d")
    why = "write a number with its unit|longer than any duration"
    check_refusals(ValueError, parse_duration, [(text, why) for text in wrong])

    cases = ("1h30m", "2d", "500ms", "1s", "0s", "1d1h1m1s1ms")
    assert [text for text in cases if format_duration(parse_duration(text)) != text] == []

    for count, within, rate in ((0, 10, LEAST_RATE), (2000, 10, LEAST_RATE), (2000, 5, 400), (10_000, 5, 2000)):
        assert drain_rate(count, timedelta(seconds=within)) == rate, (count, within)
    assert drain_rate(10, timedelta()) == float("inf")


def test_no_window_has_more_than_the_rate_even_after_a_pause() -> None:
    rate, window = 1000.0, 0.05
    moments: list[float] = []

    async def scenario() -> None:
        async for number in event_loop.paced(range(300), rate):
            moments.append(asyncio.get_running_loop().time())
            if number == 100:
                await asyncio.sleep(0.1)

    in_virtual_time(scenario())
    for index, moment in enumerate(moments):
        inside = [each for each in moments[index:] if each - moment < window]
        assert len(inside) <= rate * (window + 2 * event_loop.SLACK) + 2
    assert len(moments) == 300


HALF, ONE, TWO = timedelta(seconds=0.5), timedelta(seconds=1), timedelta(seconds=2)


def test_ticks_coincide_and_pauses_stay_within_bounds() -> None:
    async def many_lookers() -> set[float]:
        woken: list[float] = []

        async def look(after: float, period: timedelta) -> None:
            await asyncio.sleep(after)
            for _ in range(4):
                await asyncio.sleep(until_tick(period))
                woken.append(round(asyncio.get_running_loop().time(), 6))

        await asyncio.gather(look(0.013, HALF), look(0.021, HALF), look(0.1, ONE), look(0.3, ONE), look(0.4, TWO))
        assert len(woken) == 20
        return set(woken)

    assert len(in_virtual_time(many_lookers())) <= 9

    async def one_looker(work: float) -> list[float]:
        pauses = []
        for _ in range(20):
            pauses.append(until_tick(HALF))
            await asyncio.sleep(pauses[-1] + work)
        return pauses

    for work in (0.0, 0.001, 0.2, 0.4, 0.499):
        pauses = in_virtual_time(one_looker(work))
        assert min(pauses) >= 0.125, work
        assert max(pauses) <= 0.625, work

    async def without_a_period() -> float:
        return until_tick(timedelta())

    assert in_virtual_time(without_a_period()) == 0


def test_on_a_servers_loop_ticks_come_just_behind_even_seconds_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """At which agents beat: what comes in step and what is looked at now and then wake it once."""
    monkeypatch.setattr("machinery.runtime.event_loop.time.time", lambda: 1_000_001.5)

    async def scenario() -> float:
        return until_tick(TWO)

    with asyncio.Runner(loop_factory=PausingLoop) as runner:
        assert runner.run(scenario()) == pytest.approx(0.5 + event_loop.TICK_OFFSET)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
PERIOD = timedelta(seconds=60)
DAY = 24 * 3600.0  # of the loop's time: what has not come by then never comes


def test_wake_ups_repeat_replace_each_other_and_can_be_dropped() -> None:
    async def scenario() -> None:
        woken: asyncio.Queue[str] = asyncio.Queue()

        def waking(name: str) -> Callable[[], None]:
            return lambda: woken.put_nowait(name)

        async with asyncio.timeout(DAY), SystemScheduler() as scheduler:
            scheduler.every(PERIOD, waking("resync"), name="resync", at_once=True)
            assert [await woken.get() for _ in range(3)] == ["resync"] * 3
            scheduler.drop("resync")
            scheduler.drop("never there")
            scheduler.at(NOW - timedelta(days=365), waking("past"), name="rotation")
            assert await woken.get() == "past"
            scheduler.every(timedelta(days=1), waking("old"), name="status")
            scheduler.every(PERIOD, waking("new"), name="status")
            assert await woken.get() == "new"
            scheduler.drop("status")
            scheduler.at(NOW, lambda: scheduler.at(NOW, waking("replaced itself"), name="rotation"), name="rotation")
            assert await woken.get() == "replaced itself"
            await asyncio.sleep(10 * PERIOD.total_seconds())
            assert woken.empty(), "what was dropped or replaced does not come"

    in_virtual_time(scenario())


def test_period_is_only_shortened_and_missed_wake_ups_are_one() -> None:
    for seed in range(20):
        trigger = _Every(PERIOD, 0.25, Random(seed), at_once=False)
        assert NOW + PERIOD * 0.75 <= trigger.get_next_fire_time(NOW, NOW) <= NOW + PERIOD, seed
    trigger, later = _Every(PERIOD, 0, Random(1), at_once=False), NOW + timedelta(hours=5)
    first = trigger.get_next_fire_time(NOW, later)
    assert (first, trigger.get_next_fire_time(first, later)) == (later, later + PERIOD)
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

        async with asyncio.timeout(DAY), SystemScheduler() as scheduler:
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
        async with asyncio.timeout(DAY), SystemScheduler() as scheduler:
            scheduler.at(START + timedelta(hours=8), came.set, name="rotation")
            await asyncio.sleep(90)
            offset = timedelta(hours=9)
            await came.wait()
        return loop.time() - 90

    monkeypatch.setattr("apscheduler.schedulers.base.datetime", Ahead)
    monkeypatch.setattr("machinery.runtime.clock.datetime", Ahead)
    assert in_virtual_time(woken()) <= 60


class Announcements:
    """What gRPC's completion queue does: one byte per event, one byte taken per wake."""

    def __init__(self, running: asyncio.AbstractEventLoop) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.ours.setblocking(False)  # noqa: FBT003 - the library's signature
        self.wakes = 0
        self.woken = asyncio.Event()
        running.add_reader(self.ours, functools.partial(self._handle_events, running))

    def announce(self) -> None:
        self.theirs.send(b"1")

    def _handle_events(self, _loop: object) -> None:
        assert self.ours.recv(1)
        self.wakes += 1
        self.woken.set()

    def close(self, running: asyncio.AbstractEventLoop) -> None:
        running.remove_reader(self.ours)
        self.ours.close()
        self.theirs.close()


def test_announcements_that_have_come_together_are_one_wake() -> None:
    async def scenario() -> int:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        for _ in range(100):
            queue.announce()
        await queue.woken.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        queue.close(running)
        return queue.wakes

    assert event_loop.run(scenario()) == 1


class Paced:
    """A selector with a clock of its own: a paced file that always has something to say, and another that has, too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.selector = event_loop.PausingSelector(lambda: self.now)
        self.theirs, self.paced = socket.socketpair()
        self.others, self.ours = socket.socketpair()
        for file in (self.paced, self.ours):
            self.selector.register(file, selectors.EVENT_READ)
        self.selector.pace(self.paced)
        self.theirs.send(b"1")
        self.others.send(b"1")
        for _ in range(4):
            self.selector.announced(BUSY)
            self.now += WINDOW / 2

    def looks(self, seconds: float, *, hurried: bool = False, announced: int = BUSY) -> tuple[int, int, int]:
        """A look each millisecond: how many they were, and how many saw the paced file and the other one."""
        count, seen, others = round(seconds * 1000), 0, 0
        for _ in range(count):
            self.now += 0.001
            if hurried:
                self.selector.skip_pauses()
            found = {key.fileobj for key, _ in self.selector.select(0)}
            if self.paced in found:
                self.selector.announced(announced)
                seen += 1
            others += self.ours in found
        return count, seen, others

    def close(self) -> None:
        self.selector.close()
        for file in (self.theirs, self.paced, self.others, self.ours):
            file.close()


@pytest.fixture
def paced_files() -> Iterator[Paced]:
    made = Paced()
    yield made
    made.close()


@pytest.mark.skipif(not hasattr(selectors, "EpollSelector"), reason="only epoll can be paced")
def test_busy_loop_pauses_for_announcements_alone_until_it_is_calm(paced_files: Paced) -> None:
    assert paced_files.selector.busy
    count, seen, others = paced_files.looks(10 * PAUSE)
    assert 9 <= seen <= 11, "announcements are taken together"
    assert others == count, "other files are served meanwhile"
    assert paced_files.selector.busy
    count, seen, others = paced_files.looks(10 * PAUSE, hurried=True)
    assert seen == others == count, "no pause while new calls come"
    for _ in range(3):
        paced_files.now += 1.2 * WINDOW
        paced_files.selector.announced(1)
    assert [paced_files.selector.busy] == [False]
    count, seen, _ = paced_files.looks(10 * PAUSE, announced=0)
    assert seen == count, "a quiet loop looks at once"


def test_a_busy_loop_that_others_do_not_wake_looks_when_the_pause_is_over() -> None:
    async def scenario() -> int:
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        assert isinstance(running, PausingLoop)
        while not running._pausing.busy:
            for _ in range(BUSY):  # in each turn, however long one takes
                queue.announce()
            await asyncio.sleep(0.0005)
        before = queue.wakes
        queue.woken.clear()
        queue.announce()
        await queue.woken.wait()
        queue.close(running)
        return queue.wakes - before

    assert event_loop.run(scenario()) >= 1


def test_other_loops_ignore_hurry_and_a_loop_without_grpc_never_pauses() -> None:
    async def scenario() -> bool:
        event_loop.skip_pauses()
        running = asyncio.get_running_loop()
        queue = Announcements(running)
        for _ in range(50):
            await asyncio.sleep(0.0005)
        queue.close(running)
        return isinstance(running, PausingLoop) and running._pausing.busy

    asyncio.run(scenario())
    assert event_loop.run(scenario()) is False
