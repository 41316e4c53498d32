"""Sessions on several replicas, and their parts: acknowledgements, ages, the backlog, the shutdown gate and health watches."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2 as wire
from structlog.testing import capture_logs

from hub.grpc_door.gate import QUIET, Gate
from hub.grpc_door.health import MOST_WATCHES, WATCHED_FOR, HealthService
from hub.grpc_door.session.acknowledgements import TICK as ACK_TICK, Acknowledgements, BeatRate, Deferred, spacing
from hub.grpc_door.session.drain import BACKSTOP, JITTER, MAX_RECONNECT_WITHIN, Age, Aging
from hub.grpc_door.session.reports import MAX_QUEUED, MAX_QUEUED_BYTES, ReportQueue
from hub.grpc_door.session.sessions import OVERLAP, POLL, OpenSession, Sessions
from hub.ports import Transaction
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from machinery.errors import AlreadyExistsError, ConflictError, InvalidError, MusterError, StaleEpochError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.runtime.clock import ManualClock
from spoke.domain.schedule import MAX_ACK_TIMEOUT, SILENCE, ack_timeout
from tests.checks import check_refusal, check_refusal_of, check_results, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import LoopClock, VirtualLoop, in_the_loops_time, in_virtual_time

EDGE, FAR, AGENT = ClusterName("edge"), ClusterName("far"), AgentId("xk7pq")
SERIAL = SerialNumber(10)
TICK = timedelta(milliseconds=1)


@dataclass
class Open:
    id: str
    agent: AgentId = AGENT
    cluster: ClusterName = EDGE
    agent_version: str = "v1"
    serial: SerialNumber = SERIAL
    epoch: int = 0
    ended: list[MusterError] = field(default_factory=list)

    def end(self, error: MusterError) -> None:
        self.ended.append(error)

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        raise AssertionError(reconnect_after, reason)


@dataclass
class Two:
    clock: ManualClock
    store: InlineStore
    one: Sessions
    two: Sessions

    async def open(self, on: Sessions, *sessions: Open) -> None:
        for session in sessions:
            on.add(session)
        await on.write()

    async def look(self) -> None:
        await self.one.poll()
        await self.two.poll()


@pytest.fixture
async def both() -> Two:
    clock = ManualClock()
    store = fresh_store(clock)
    two = Two(clock, store, Sessions(store, "one"), Sessions(store, "two"))
    await two.look()
    return two


async def test_newer_session_on_another_replica_ends_the_older_one_of_its_agent(both: Two) -> None:
    older, newer = Open("b"), Open("a")
    await both.open(both.one, older)
    both.clock.advance(TICK)
    await both.open(both.two, newer)
    await both.look()
    assert ([type(error) for error in older.ended], newer.ended) == ([ConflictError], [])
    both.one.remove(older)
    await both.one.write()
    assert {each.session for each in both.store.state.sessions.values()} == {"a"}, "the newer one stays recorded"


async def test_of_two_agents_that_open_at_once_the_first_one_stays_on_whichever_replicas(both: Two) -> None:
    first, second = Open("b"), Open("a", agent=AgentId("aaaaa"))
    both.one.add(first)
    check_refusal(AlreadyExistsError, both.one.add, second, match='agent "xk7pq" has the session')
    both.clock.advance(TICK)
    both.two.add(second)
    await both.one.write()
    both.clock.advance(TICK)
    await both.two.write()
    await both.look()
    assert ([type(error) for error in second.ended], first.ended) == ([AlreadyExistsError], [])
    both.one.remove(first)
    both.one.add(second)


async def test_session_that_is_not_stored_yet_is_judged_once_it_is(both: Two) -> None:
    mine, other = Open("a"), Open("b")
    await both.open(both.two, other)
    both.one.add(mine)
    await both.look()
    assert mine.ended == []
    both.clock.advance(TICK)
    await both.one.write()
    await both.look()
    assert (len(mine.ended), len(other.ended)) == (0, 1)


async def test_what_committed_late_is_still_seen_and_a_database_that_is_away_is_asked_again(both: Two) -> None:
    older = Open("b")
    await both.open(both.one, older)
    both.clock.advance(OVERLAP / 4)
    began = both.clock.now()
    both.clock.advance(OVERLAP / 2)
    await both.one.poll()
    both.store.transact(replicas.open_session, Opened(EDGE, AGENT, "a", "v1", "two", began))
    both.store.failure = UnavailableError("away")
    await both.one.poll()
    both.store.failure = None
    await both.one.poll()
    assert len(older.ended) == 1


async def test_sessions_that_were_forgotten_are_written_down_again_as_old_as_they_are(both: Two) -> None:
    stays, moved, elsewhere = Open("a"), Open("b", cluster=FAR), Open("c", cluster=FAR)
    await both.open(both.one, stays, moved)
    both.store.transact(lambda tx: tx.agent_sessions.end_of("one"))
    both.clock.advance(TICK)
    await both.open(both.two, elsewhere)
    both.clock.advance(TICK)
    both.one.rewrite_all()
    await both.one.write()
    await both.look()
    assert {each.session for each in both.store.state.sessions.values()} == {"a", "c"}
    assert (len(stays.ended), len(moved.ended), len(elsewhere.ended)) == (0, 1, 0)


async def test_a_newer_session_is_noticed_though_the_databases_clock_was_set_back(both: Two) -> None:
    for hour in (timedelta(0), timedelta(hours=1)):
        older, newer = Open("b"), Open("a")
        both.clock.advance(OVERLAP)
        both.clock.set_forward(hour)
        await both.open(both.one, older)
        await both.look()
        both.clock.set_forward(-hour)
        both.clock.advance(TICK)
        await both.open(both.two, newer)
        await both.look()
        assert (len(older.ended), len(newer.ended)) == (1, 0)
        assert {each.session for each in both.store.state.sessions.values()} == {"a"}
        both.one.remove(older)
        both.two.remove(newer)
        await both.one.write()
        await both.two.write()


async def test_a_newer_session_is_noticed_though_we_looked_while_the_databases_clock_was_ahead(both: Two) -> None:
    older, newer = Open("b"), Open("a")
    await both.open(both.one, older)
    both.clock.set_forward(timedelta(hours=1))
    await both.look()
    both.clock.set_forward(-timedelta(hours=1))
    both.clock.advance(TICK)
    await both.look()
    await both.open(both.two, newer)
    await both.look()
    assert (len(older.ended), len(newer.ended)) == (1, 0)


async def test_the_end_of_a_session_is_said_though_one_that_was_refused_its_place_has_ended_meanwhile(both: Two) -> None:
    stays, refused = Open("a", epoch=2), Open("b", epoch=1)
    await both.open(both.one, stays)
    check_refusal(StaleEpochError, both.one.add, refused)
    both.one.remove(refused)
    both.one.remove(stays)
    await both.one.write()
    assert (both.store.state.sessions, both.store.state.beats[EDGE].session) == ({}, None)


class Particular(InlineStore):
    """Takes no session of an agent whose version is `odd`, and none at all once it has taken `most`."""

    most = 9

    async def run(self, use_case: Any, *args: Any, **kwargs: Any) -> Any:
        def refusing(tx: Transaction) -> Any:
            result = use_case(tx, *args, **kwargs)
            beats = tx.heartbeats.all()
            if any(beat.agent_version == "odd" for beat in beats):
                raise InvalidError("a text that the database does not take")
            if len(beats) > self.most:
                raise UnavailableError("away")
            return result

        return await super().run(refusing)


def clusters_with_sessions(store: InlineStore) -> set[str]:
    return {beat.cluster for beat in store.state.beats.values() if beat.session is not None}


async def test_a_session_that_the_database_never_takes_keeps_no_other_from_being_written_down() -> None:
    store = Particular(ManualClock())
    sessions = Sessions(store, "one")
    for name, version in (("a", "v1"), ("b", "odd"), ("c", "v1")):
        sessions.add(Open(name, cluster=ClusterName(name), agent_version=version))
    with capture_logs() as logged:
        await sessions.write()
        await sessions.write()
    assert clusters_with_sessions(store) == {"a", "c"}
    assert [line["cluster"] for line in logged] == ["b"], "it is logged once, and not tried again"
    for session in sessions.all():
        sessions.remove(session)
    await sessions.write()
    assert (clusters_with_sessions(store), store.state.sessions) == (set(), {})


async def test_what_comes_after_the_database_has_gone_is_written_down_later() -> None:
    store = Particular(ManualClock())
    store.most = 1
    sessions = Sessions(store, "one")
    for name, version in (("a", "odd"), ("b", "v1"), ("c", "v1"), ("d", "v1")):
        sessions.add(Open(name, cluster=ClusterName(name), agent_version=version))
    await sessions.write()
    assert clusters_with_sessions(store) == {"b"}
    store.most = 9
    await sessions.write()
    assert clusters_with_sessions(store) == {"b", "c", "d"}


class Belled(InlineStore):
    """A store that other replicas ring, while `hung` is true; it counts how often it is read."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.hung = True
        self.reads = 0
        self.ring: Callable[[], None] = lambda: None

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return await super().read(query, *args, **kwargs)

    @contextmanager
    def subscribe_to_sessions(self, wake: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        self.ring = wake
        yield lambda: self.hung


async def _reads(store: Belled, seconds: float) -> int:
    before = store.reads
    await asyncio.sleep(seconds)
    return store.reads - before


@in_the_loops_time
async def test_others_sessions_are_looked_at_when_the_bell_rings_and_seldom_else() -> None:
    store = Belled()
    following = asyncio.create_task(Sessions(store, "one").follow_others())
    await asyncio.sleep(2)
    assert await _reads(store, 60) <= 12
    store.ring()
    assert await _reads(store, POLL.total_seconds() + 0.2) >= 1
    store.hung = False
    store.ring()  # as a bell that breaks does
    assert await _reads(store, 60) >= 100
    following.cancel()


@in_the_loops_time
async def test_a_storm_of_sessions_is_looked_at_no_more_than_twice_a_second() -> None:
    store = Belled()
    following = asyncio.create_task(Sessions(store, "one").follow_others())
    for _ in range(600):
        store.ring()
        await asyncio.sleep(0.1)
    assert 100 <= store.reads <= 130
    following.cancel()


FLUSH_WINDOW = 1.0


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_acknowledgements_come_in_time_for_every_lease_and_timeout() -> None:
    check_results(lambda lease: spacing(seconds(lease), seconds(1)), [(60, 2.0), (8, 2.0), (4, 1.0), (2, 0.5)])
    waits = [(0, 2.0), (1, 0.0), (4, 1.5), (5, 2.0), (8, 3.5), (10, 4.5), (4_000_000_000, 4.5)]
    check_results(lambda wait: spacing(seconds(60), seconds(1), seconds(wait)), waits)
    # A session that beats rarely is judged by the shorter ack_timeout.
    check_results(lambda interval: spacing(seconds(300), seconds(interval), seconds(10)), [(5, 2.0), (10, 2.0), (60, 2.0)])
    for interval in (0.1, 1, 4.9, 5, 10, 60):
        between = seconds(interval)
        for silence, margin in ((2, 0.2), (5, 1.0), (60, 1.0)):  # --hub-silence of the agent
            reported = min(ack_timeout(seconds(0), seconds(silence)), MAX_ACK_TIMEOUT)
            longest = FLUSH_WINDOW + spacing(seconds(300), between, reported) + ACK_TICK
            assert longest + margin < ack_timeout(between, seconds(silence)).total_seconds(), (interval, silence)
        if interval <= 10:
            assert between + ack_timeout(between) <= seconds(15), interval
            assert SILENCE <= ack_timeout(between) <= MAX_ACK_TIMEOUT, interval


def acknowledged(intervals: list[float]) -> float:
    """Seconds between two acknowledgements in a session whose interval took these values."""
    sessions = [0.0]
    subject = Acknowledgements(BeatRate(seconds(2), 1, lambda: int(sessions[0])), MAX_ACK_TIMEOUT)
    for interval in intervals:
        sessions[0] = interval
        subject.set_lease(seconds(60))
        assert subject.interval == seconds(interval)
    subject.stored(1)
    assert subject.due_ack(0.0) is not None
    return present(subject.stored(2))


def test_acknowledgements_are_in_time_although_the_interval_changed_after_the_agent_chose_its_timeout() -> None:
    """It chooses as its session begins, by the last interval that it received."""
    for intervals in ([2.0], [2.0, 5.0], [5.0, 2.0], [2.0, 30.0, 2.0], [30.0, 5.0, 2.0]):
        least = min(ack_timeout(seconds(interval)) for interval in intervals)
        assert FLUSH_WINDOW + acknowledged(intervals) + ACK_TICK + 1 < least.total_seconds(), intervals


async def test_calls_due_within_a_tick_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, deferred = asyncio.get_running_loop(), Deferred()
    timers: list[tuple[float, Any, int]] = []
    monkeypatch.setattr(loop, "call_at", lambda when, call, tick: timers.append((when, call, tick)))
    called: list[int] = []
    for number in range(1000):
        deferred.call_at(3 * ACK_TICK - number / 1e6, lambda number=number: called.append(number))  # type: ignore[misc]
    once = partial(called.append, -1)
    for _ in range(2):
        deferred.call_at(3 * ACK_TICK + 0.001, once)
    assert [when for when, _, _ in timers] == [3 * ACK_TICK, 4 * ACK_TICK]
    for _, call, tick in timers:
        call(tick)
    assert called == [*range(1000), -1]


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


@in_the_loops_time
async def test_old_session_is_asked_to_leave_and_ended_after_its_grace_unless_it_ended_itself() -> None:
    age, stays, gone, ageless = Age(seconds(10), seconds(8)), Leaving(), Leaving(), Leaving()
    with Aging(age, cast("OpenSession", gone)):
        pass
    with Aging(age, cast("OpenSession", stays)), Aging(Age(timedelta(), age.grace), cast("OpenSession", ageless)):
        await asyncio.sleep(10)
        assert (stays.hints, stays.ended) == ([age.grace / 2], [])
        await asyncio.sleep(10)
    assert [type(error) for error in stays.ended] == [UnavailableError]
    assert gone.hints == ageless.hints == []


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
    assert timedelta() < MAX_RECONNECT_WITHIN < Age().grace


class Stage:
    """A backlog whose work waits until it is let."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.failed: list[Exception] = []
        self.done: list[int] = []
        self.allowed = asyncio.Semaphore(0)
        self.backlog = ReportQueue(tasks, self.failed.append)

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
        async with asyncio.TaskGroup() as tasks:
            stage = Stage(tasks)
            for number in range(count):
                await stage.put(number, size)
            more = tasks.create_task(stage.put(count, size))
            await turns()
            assert not more.done(), (count, size)
            assert len(stage.backlog) == count
            stage.let(1)
            await more
            stage.let(count)
            await stage.backlog.done()
            assert stage.done == list(range(count + 1)), (count, size)


async def test_failure_of_a_backlog_drops_the_work_behind_it() -> None:
    async with asyncio.TaskGroup() as tasks:
        stage, error = Stage(tasks), ValueError("a defect")
        await stage.put(1, failure=error)
        await stage.put(2)
        stage.let(2)
        await stage.backlog.done()
    assert (stage.failed, stage.done, len(stage.backlog)) == ([error], [], 0)


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


@in_the_loops_time
async def test_refused_calls_do_not_keep_a_closed_gate_from_being_quiet() -> None:
    gate = Gate(LoopClock(asyncio.get_running_loop()))

    async def reconnect() -> None:
        while True:
            check_refusal(UnavailableError, gate.__enter__)
            await asyncio.sleep(QUIET.total_seconds() / 5)

    with gate:
        gate.close()
        calls, waiting = asyncio.create_task(reconnect()), asyncio.create_task(gate.quiet())
        await asyncio.sleep(1)
        assert not waiting.done(), "a call is in progress"
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(gate.still(timedelta(seconds=3)), 4)
    assert asyncio.get_running_loop().time() >= 4, "calls still arrive"
    calls.cancel()


class RefusedError(Exception):
    """The call was aborted."""


async def refuse(*_: Any) -> None:
    raise RefusedError


def watch(health: HealthService) -> Any:
    return health.Watch(wire.HealthCheckRequest(), SimpleNamespace(abort=refuse))


@in_the_loops_time
async def test_health_watches_end_after_an_hour_and_are_bounded_in_number() -> None:
    health = HealthService()
    await health.set_serving(serving=True)
    assert [answer.status async for answer in watch(health)] == [wire.HealthCheckResponse.SERVING]
    assert asyncio.get_running_loop().time() == WATCHED_FOR.total_seconds()
    watches = [watch(health) for _ in range(MOST_WATCHES)]
    for each in watches:
        await anext(each)
    await check_refusal_of(RefusedError, anext(watch(health)))
    await watches[0].aclose()
    watches[0] = watch(health)
    await anext(watches[0])
    for each in watches:
        await each.aclose()
