"""Sessions on several replicas: an agent has one, the newest, wherever it is."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hub.grpc_door.session.sessions import OVERLAP, POLL, Sessions
from hub.ports import Transaction
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from machinery.errors import AlreadyExistsError, ConflictError, InvalidError, MusterError, StaleEpochError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.runtime.clock import ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import in_virtual_time

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
        await self.one.look()
        await self.two.look()


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
    assert [type(error) for error in older.ended] == [ConflictError]
    assert newer.ended == []
    both.one.remove(older)
    await both.one.write()
    assert {each.session for each in both.store.state.sessions.values()} == {"a"}, "the newer one stays recorded"


async def test_of_two_agents_that_open_at_once_the_first_one_stays_on_whichever_replicas(both: Two) -> None:
    first, second = Open("b"), Open("a", agent=AgentId("aaaaa"))
    both.one.add(first)
    with pytest.raises(AlreadyExistsError, match='agent "xk7pq" has a session'):
        both.one.add(second)
    both.clock.advance(TICK)
    both.two.add(second)
    await both.one.write()
    both.clock.advance(TICK)
    await both.two.write()
    await both.look()
    assert [type(error) for error in second.ended] == [AlreadyExistsError]
    assert first.ended == []
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
    await both.one.look()
    both.store.transact(replicas.open_session, Opened(EDGE, AGENT, "a", "v1", "two", began))
    both.store.failure = UnavailableError("away")
    await both.one.look()
    both.store.failure = None
    await both.one.look()
    assert len(older.ended) == 1


async def test_sessions_that_were_forgotten_are_written_down_again_as_old_as_they_are(both: Two) -> None:
    stays, moved, elsewhere = Open("a"), Open("b", cluster=FAR), Open("c", cluster=FAR)
    await both.open(both.one, stays, moved)
    both.store.transact(lambda tx: tx.agent_sessions.end_of("one"))
    both.clock.advance(TICK)
    await both.open(both.two, elsewhere)
    both.clock.advance(TICK)
    both.one.say_again()
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
    with pytest.raises(StaleEpochError):
        both.one.add(refused)
    both.one.remove(refused)
    both.one.remove(stays)
    await both.one.write()
    assert both.store.state.sessions == {}
    assert both.store.state.beats[EDGE].session is None


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
    assert [line["cluster"] for line in logged] == ["b"], "it is told once, and not tried again"
    for session in sessions.all():
        sessions.remove(session)
    await sessions.write()
    assert clusters_with_sessions(store) == set()
    assert store.state.sessions == {}


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
    def told_of_sessions(self, wake: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        self.ring = wake
        yield lambda: self.hung


async def _reads(store: Belled, seconds: float) -> int:
    before = store.reads
    await asyncio.sleep(seconds)
    return store.reads - before


def test_others_sessions_are_looked_at_when_the_bell_rings_and_seldom_else() -> None:
    async def play() -> None:
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

    in_virtual_time(play())


def test_a_storm_of_sessions_is_looked_at_no_more_than_twice_a_second() -> None:
    async def play() -> None:
        store = Belled()
        following = asyncio.create_task(Sessions(store, "one").follow_others())
        for _ in range(600):
            store.ring()
            await asyncio.sleep(0.1)
        assert 100 <= store.reads <= 130
        following.cancel()

    in_virtual_time(play())
