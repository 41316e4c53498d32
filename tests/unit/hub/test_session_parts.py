"""Parts of the agents' API: acknowledgements, ages of sessions, the backlog, the shutdown gate and health watches."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2 as wire

from hub.grpc_door.calls import QUIET, Gate
from hub.grpc_door.health import MOST_WATCHES, WATCHED_FOR, HealthService
from hub.grpc_door.session.acknowledgements import TICK, Acknowledgements, Deferred, Tempo, spacing
from hub.grpc_door.session.drain import BACKSTOP, JITTER, LONGEST_HINT, Age, Aging
from hub.grpc_door.session.reports import MAX_QUEUED, MAX_QUEUED_BYTES, ReportQueue
from hub.grpc_door.session.sessions import OpenSession
from machinery.errors import MusterError, UnavailableError
from spoke.domain.schedule import PATIENCE, SILENCE, patience
from tests.checks import check_results
from tests.fakes.virtual_time import LoopClock, VirtualLoop, in_virtual_time

# Acknowledgements.

FLUSH_WINDOW = 1.0


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_acknowledgements_come_in_time_for_every_lease_and_patience() -> None:
    leases = [(60, 2.0), (8, 2.0), (4, 1.0), (2, 0.5)]
    check_results(lambda lease: spacing(seconds(lease), seconds(1)), leases)
    waits = [(0, 2.0), (3, 2.0), (5, 2.0), (8, 3.5), (10, 4.5), (4_000_000_000, 4.5)]
    check_results(lambda wait: spacing(seconds(60), seconds(1), seconds(wait)), waits)
    # A session that beats rarely is judged by the shorter patience.
    check_results(lambda interval: spacing(seconds(300), seconds(interval), seconds(10)), [(5, 2.0), (10, 2.0), (60, 2.0)])
    for interval in (0.1, 1, 4.9, 5, 10, 60):
        between = seconds(interval)
        longest = FLUSH_WINDOW + spacing(seconds(300), between, PATIENCE) + TICK
        assert longest + 1 < patience(between).total_seconds(), interval
        if interval <= 10:
            assert between + patience(between) <= seconds(15), interval
            assert SILENCE <= patience(between) <= PATIENCE, interval


class _Noted(Deferred):
    def __init__(self, due: list[float]) -> None:
        super().__init__()
        self._noted = due

    def call_at(self, when: float, tell: Callable[[], None]) -> None:
        del tell
        self._noted.append(when)


def acknowledged(intervals: list[float]) -> float:
    """Seconds between two acknowledgements in a session whose interval took these values."""
    sessions, deferred = [0.0], list[float]()
    tempo = Tempo(seconds(2), 1, lambda: int(sessions[0]))
    subject = Acknowledgements(tempo, _Noted(deferred), lambda: 0.0, lambda: None)
    subject.begin(PATIENCE)
    for interval in intervals:
        sessions[0] = interval
        subject.lease(seconds(60))
        assert subject.interval == seconds(interval)
    subject.stored(1, at_once=True)
    assert subject.due_ack() is not None
    subject.stored(2, at_once=False)
    (due,) = deferred
    return due


def test_acknowledgements_are_in_time_although_the_interval_changed_after_the_agent_chose_its_patience() -> None:
    """It chooses as its session begins, by the last interval that it received."""
    for intervals in ([2.0], [2.0, 5.0], [5.0, 2.0], [2.0, 30.0, 2.0], [30.0, 5.0, 2.0]):
        least = min(patience(seconds(interval)) for interval in intervals)
        assert FLUSH_WINDOW + acknowledged(intervals) + TICK + 1 < least.total_seconds(), intervals


async def test_calls_due_within_a_tick_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, deferred = asyncio.get_running_loop(), Deferred()
    timers: list[tuple[float, Any, int]] = []
    monkeypatch.setattr(loop, "call_at", lambda when, call, tick: timers.append((when, call, tick)))
    called: list[int] = []
    for number in range(1000):
        deferred.call_at(3 * TICK - number / 1e6, lambda number=number: called.append(number))  # type: ignore[misc]
    deferred.call_at(3 * TICK + 0.001, lambda: called.append(-1))
    assert [when for when, _, _ in timers] == [3 * TICK, 4 * TICK]
    for _, call, tick in timers:
        call(tick)
    assert called == [*range(1000), -1]


# Ages.


class Leaving:
    def __init__(self) -> None:
        self.hints: list[timedelta] = []
        self.ended: list[MusterError] = []

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        assert "old" in reason
        self.hints.append(reconnect_after)

    def end(self, error: MusterError) -> None:
        assert self.hints, "a session is asked before it is ended"
        self.ended.append(error)


def test_old_session_is_asked_to_leave_and_ended_after_its_grace_unless_it_ended_itself() -> None:
    async def play() -> None:
        age, stays, gone, ageless = Age(seconds(10), seconds(8)), Leaving(), Leaving(), Leaving()
        Aging(age, cast("OpenSession", stays))
        Aging(age, cast("OpenSession", gone)).cancel()
        Aging(Age(timedelta(), age.grace), cast("OpenSession", ageless))
        await asyncio.sleep(10)
        assert (stays.hints, stays.ended) == ([age.grace / 2], [])
        await asyncio.sleep(10)
        assert [type(error) for error in stays.ended] == [UnavailableError]
        assert gone.hints == ageless.hints == []

    in_virtual_time(play())


def test_sessions_that_began_together_leave_apart_and_before_their_connections_end() -> None:
    age, random = Age(), Random(1)
    drawn = sorted(age.drawn(random) for _ in range(1_000))
    assert drawn[0] >= age.limit * (1 - JITTER)
    assert drawn[-1] <= age.limit
    assert drawn[900] - drawn[100] > age.limit * JITTER / 2
    for age in (Age(), Age(seconds(2), seconds(1))):
        options = dict(age.options)
        assert options["grpc.max_connection_age_ms"] * 0.9 / 1000 >= (age.limit + 0.5 * age.grace).total_seconds()
        assert options["grpc.max_connection_age_grace_ms"] / 1000 == age.grace.total_seconds()
    assert BACKSTOP > 1
    assert Age(timedelta()).options == ()
    assert timedelta() < LONGEST_HINT < Age().grace


# The backlog.


class Stage:
    """A backlog whose work waits until it is let."""

    def __init__(self) -> None:
        self.failed: list[Exception] = []
        self.done: list[int] = []
        self.allowed = asyncio.Semaphore(0)
        self.backlog = ReportQueue("test", self.failed.append)

    async def put(self, number: int, size: int = 1, failure: Exception | None = None) -> None:
        async def work() -> None:
            await self.allowed.acquire()
            if failure is not None:
                raise failure
            self.done.append(number)

        await self.backlog.put(work, size)

    def let(self, count: int) -> None:
        for _ in range(count):
            self.allowed.release()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_full_backlog_makes_work_wait_in_order() -> None:
    for count, size in ((MAX_QUEUED, 1), (2, MAX_QUEUED_BYTES // 2), (1, 3 * MAX_QUEUED_BYTES)):
        stage = Stage()
        for number in range(count):
            await stage.put(number, size)
        more = asyncio.create_task(stage.put(count, size))
        await turns()
        assert not more.done(), (count, size)
        assert len(stage.backlog) == count
        stage.let(1)
        await more
        stage.let(count)
        await stage.backlog.done()
        assert stage.done == list(range(count + 1)), (count, size)


async def test_failure_or_end_of_a_backlog_drops_the_work_behind_it() -> None:
    stage, error = Stage(), ValueError("a defect")
    await stage.put(1, failure=error)
    await stage.put(2)
    stage.let(2)
    await stage.backlog.done()
    assert (stage.failed, stage.done, len(stage.backlog)) == ([error], [], 0)
    stage = Stage()
    await stage.put(1)
    await turns()
    stage.backlog.end()
    stage.let(1)
    await stage.backlog.done()
    assert (stage.failed, stage.done) == ([], [])


# The gate and health.


def test_pause_of_the_process_does_not_count_as_a_quiet_moment() -> None:
    async def play(wait: Callable[[Gate], Any]) -> None:
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        gate = Gate(LoopClock(loop))
        gate.close()
        waiting = asyncio.create_task(wait(gate))
        await asyncio.sleep(0)
        loop.stand_still(4 * QUIET.total_seconds())
        resumed = loop.time()
        await waiting
        assert loop.time() - resumed > QUIET.total_seconds() / 2

    in_virtual_time(play(lambda gate: gate.still(timedelta(minutes=1))))
    in_virtual_time(play(lambda gate: gate.quiet()))


class RefusedError(Exception):
    """The call was aborted."""


async def refuse(*_: Any) -> None:
    raise RefusedError


def watch(health: HealthService) -> Any:
    return health.Watch(wire.HealthCheckRequest(), SimpleNamespace(abort=refuse))


def test_health_watches_end_after_an_hour_and_are_bounded_in_number() -> None:
    async def play() -> None:
        health = HealthService()
        await health.set_serving(serving=True)
        assert [answer.status async for answer in watch(health)] == [wire.HealthCheckResponse.SERVING]
        assert asyncio.get_running_loop().time() == WATCHED_FOR.total_seconds()
        watches = [watch(health) for _ in range(MOST_WATCHES)]
        for each in watches:
            await anext(each)
        with pytest.raises(RefusedError):
            await anext(watch(health))
        await watches[0].aclose()
        watches[0] = watch(health)
        await anext(watches[0])
        for each in watches:
            await each.aclose()

    in_virtual_time(play())
