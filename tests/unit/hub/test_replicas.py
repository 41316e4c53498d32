"""Replicas that come and go, and the sessions that each has."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain import document as doc
from hub.domain import duplicate
from hub.domain.change import EVENTS, Query
from hub.domain.cluster import DUPLICATED, Joining
from hub.domain.heartbeat import Beat
from hub.domain.replica import BEAT, FORGOTTEN_AFTER, LOST_AFTER, Replica, alive
from hub.replica import Heard, Measures, Presence, take_place
from hub.services import clusters, draining, heartbeats, replicas
from hub.services.replicas import Opened
from machinery import conditions
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, UnavailableError
from machinery.identity import AgentId, ClusterName
from machinery.lifecycle.signals import LifecycleSignals
from tests.fakes.memory_store import MemoryStore

EDGE, FAR = ClusterName("edge"), ClusterName("far")
AGENT, OTHER = AgentId("xk7pq"), AgentId("aaaaa")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(milliseconds=1)


def replica(name: str, home: str = "", instance: str = "") -> Replica:
    return Replica(name, home or f"home of {name}", instance or f"first {name}", "1", "grpc", "https", EPOCH, EPOCH)


ONE, TWO = replica("one"), replica("two")


def opened(on: Replica, session: str, cluster: ClusterName = EDGE, agent: AgentId = AGENT) -> Opened:
    return Opened(cluster, agent, session, "v1", on.name)


def session_of(store: MemoryStore, cluster: ClusterName = EDGE) -> str | None:
    return store.state.beats[cluster].session


def test_a_name_has_one_owner_at_a_time(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(replicas.begin, ONE)
    rival = replica("one", home="another machine", instance="rival")
    with pytest.raises(AlreadyExistsError, match='another replica called "one" serves this database'):
        store.transact(replicas.begin, rival)
    clock.advance(LOST_AFTER + TICK)
    store.transact(replicas.begin, rival)
    with pytest.raises(AlreadyExistsError, match="another process has taken the name"):
        store.transact(replicas.beat, ONE)


def test_a_replica_whose_database_clock_was_set_back_was_not_taken_for_dead(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(replicas.begin, ONE)
    clock.set_forward(-timedelta(hours=1))
    assert store.transact(replicas.beat, ONE).known
    assert store.transact(lambda tx: alive(tx.replicas.all(), tx.now)) == {"one"}, "it has said so by the right clock since"


def test_who_has_the_data_directory_has_the_name_at_once(store: MemoryStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.begin, replace(ONE, instance="second"))
    assert session_of(store) is None, "nobody is connected to a process that just began"


def test_a_start_ends_no_sessions_but_those_of_its_own_name(store: MemoryStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(ONE, "s2", FAR))
    store.transact(replicas.begin, TWO)
    assert (session_of(store), session_of(store, FAR)) == ("s1", "s2")
    store.transact(replicas.begin_alone, TWO)
    assert (session_of(store), session_of(store, FAR)) == (None, None)
    assert store.transact(lambda tx: [each.name for each in tx.replicas.all()]) == ["two"]


def test_only_the_session_that_is_recorded_ends(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(replicas.open_session, opened(ONE, "first"))
    clock.advance(TICK)
    store.transact(replicas.open_session, opened(TWO, "second"))
    store.transact(replicas.close_session, EDGE, AGENT, "first")
    assert session_of(store) == "second"
    store.transact(replicas.close_session, EDGE, AGENT, "second")
    assert (session_of(store), store.state.beats[EDGE].agent_version) == (None, "v1")
    store.transact(replicas.close_session, ClusterName("nobody"), AGENT, "x")


def test_a_session_that_is_written_down_late_does_not_take_the_place_of_a_newer_one(
    store: MemoryStore, clock: ManualClock
) -> None:
    then = clock.now()
    clock.advance(TICK)
    store.transact(replicas.open_session, opened(TWO, "newer"))
    store.transact(replicas.open_session, replace(opened(ONE, "older"), at=then))
    assert session_of(store) == "newer"


def test_sessions_of_a_replica_that_died_are_ended_by_whoever_looks(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.begin, TWO)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(TWO, "s2", FAR))
    clock.advance(LOST_AFTER)
    store.transact(replicas.beat, TWO)
    assert store.transact(replicas.is_swept)
    clock.advance(TICK)
    assert not store.transact(replicas.is_swept)
    assert store.transact(replicas.sweep) == 1
    assert (session_of(store), session_of(store, FAR)) == (None, "s2")
    (event,) = [each.document for each in store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items]
    assert (event["reason"], event["type"], event["involvedObject"]["name"]) == ("ReplicaLost", "Warning", "one")
    assert "1 sessions" in event["message"]
    assert store.transact(replicas.is_swept)
    clock.advance(FORGOTTEN_AFTER)
    store.transact(replicas.beat, TWO)
    store.transact(replicas.sweep)
    assert store.transact(lambda tx: [each.name for each in tx.replicas.all()]) == ["two"]


def test_sessions_that_an_earlier_release_recorded_end_when_nothing_is_heard(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(lambda tx: tx.heartbeats.set_session(EDGE, "old", agent_version="v0"))
    store.transact(lambda tx: tx.heartbeats.set_session(FAR, "old too", agent_version="v0"))
    clock.advance(LOST_AFTER + TICK)
    store.transact(heartbeats.flush, [Beat(FAR, timedelta(), available=True)])
    assert store.transact(replicas.sweep) == 1
    assert (session_of(store), session_of(store, FAR)) == (None, "old too")


def test_a_replica_that_ends_in_good_order_leaves_nothing(store: MemoryStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.leave, replace(ONE, instance="another"))
    assert session_of(store) == "s1", "not its own row"
    store.transact(replicas.leave, ONE)
    assert session_of(store) is None
    assert store.transact(lambda tx: tx.replicas.all()) == []


@pytest.mark.parametrize(
    ("told", "silent", "state"),
    [
        ({"ready": False}, timedelta(), "Starting"),
        ({}, LOST_AFTER, "Ready"),
        ({"ready": False, "draining": True}, timedelta(), "Draining"),
        ({"drained": True, "sessions": 1}, timedelta(), "Draining"),
        ({"drained": True}, timedelta(), "Drained"),
        ({"drained": True}, LOST_AFTER + TICK, "Lost"),
        ({}, LOST_AFTER + TICK, "Lost"),
        ({}, -LOST_AFTER, "Ready"),
        ({}, timedelta(days=-365), "Lost"),  # it died while the database's clock was a year ahead
    ],
)
def test_the_state_of_a_replica_in_a_word(told: dict[str, Any], silent: timedelta, state: str) -> None:
    shown = replace(ONE, **{"ready": True, **told})
    assert shown.state(EPOCH + silent) == state
    assert shown.takes_sessions(EPOCH + silent) == (state == "Ready")


class Told:
    """What a presence says and hears."""

    def __init__(self) -> None:
        self.given_up = 0

    def sessions(self) -> int:
        return 7

    def lost(self) -> None:
        self.given_up += 1


async def test_a_replica_that_was_taken_for_dead_has_its_sessions_written_down_again(
    store: MemoryStore, clock: ManualClock
) -> None:
    told = Told()
    presence = Presence(store, ONE, LifecycleSignals(clock), Measures(clock, told.sessions), Heard(told.lost))
    await take_place(store, ONE, alone=False)
    clock.advance(BEAT)
    await presence.beat()
    assert (store.state.replicas["one"].sessions, store.state.replicas["one"].seen, told.given_up) == (7, clock.now(), 0)
    clock.advance(LOST_AFTER + TICK)
    await presence.beat()
    assert told.given_up == 1
    await presence.beat()
    assert told.given_up == 1
    store.failure = UnavailableError("away")
    await presence.beat()
    await presence.leave()  # a database that is away holds up no end
    assert store.state.replicas.keys() == {"one"}
    store.failure = None
    await presence.leave()
    assert store.state.replicas == {}


async def test_a_replica_hears_with_its_beat_that_it_is_drained_and_tells_what_it_measures(
    store: MemoryStore, clock: ManualClock
) -> None:
    heard: list[bool] = []
    ahead = ManualClock(clock.now() + timedelta(seconds=3))
    measures = Measures(ahead, sessions=lambda: 1, watches=lambda: 4)
    presence = Presence(store, ONE, LifecycleSignals(clock), measures, Heard(drained=heard.append))
    await take_place(store, ONE, alone=True)
    await presence.beat()
    await store.run(draining.order, "one", "ann", force=True)
    await presence.beat()
    told = store.state.replicas["one"]
    assert (heard, told.drained, told.seen) == ([False, True], True, clock.now())
    assert told.load is not None
    assert (told.load.watches, told.load.ahead, told.load.memory > 2**20) == (4, timedelta(seconds=3), True)
    store.state.replicas.clear()
    await presence.beat()
    assert (heard[-1], store.state.replicas["one"].drained) == (True, True), "a row that is lost does not end a drain"
    await store.run(draining.lift, "one", "ann")
    await presence.beat()
    assert heard[-1] is False


def test_a_replica_that_starts_anew_takes_sessions(store: MemoryStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(draining.order, "one", "ann", force=True)
    store.transact(replicas.begin, replace(ONE, instance="second"))
    assert not store.state.replicas["one"].drained


async def test_a_replica_tells_at_once_that_it_is_ready_and_that_it_ends(store: MemoryStore, clock: ManualClock) -> None:
    signals = LifecycleSignals(clock)
    presence = Presence(store, ONE, signals, Measures(clock))
    await take_place(store, ONE, alone=False)

    async def state_is(state: str) -> None:
        async with asyncio.timeout(1):
            while store.state.replicas["one"].state(clock.now()) != state:  # noqa: ASYNC110 - the row is the condition
                await asyncio.sleep(0)

    running = asyncio.create_task(presence.run())
    await state_is("Starting")
    signals.has_been_ready.signal()
    await state_is("Ready")
    signals.shutdown_initiated.signal()
    await state_is("Draining")
    await presence.leave()
    assert store.state.replicas == {}
    running.cancel()


async def test_a_name_whose_owner_lives_is_refused_as_soon_as_it_is_seen_to_live(
    store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = replica("one", home="another machine")
    store.transact(replicas.begin, ONE)
    slept: list[float] = []

    async def pass_time(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(timedelta(seconds=seconds))
        if len(slept) == 2:
            store.transact(replicas.beat, ONE)

    monkeypatch.setattr("hub.replica.asyncio.sleep", pass_time)
    with pytest.raises(AlreadyExistsError):
        await take_place(store, rival, alone=False)
    assert len(slept) == 2
    await take_place(store, rival, alone=False)
    assert timedelta(seconds=sum(slept[2:])) <= LOST_AFTER + BEAT
    assert store.state.replicas["one"].home == "another machine"


def test_agents_of_one_cluster_have_sessions_of_their_own(store: MemoryStore) -> None:
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(TWO, "s2", agent=OTHER))
    _, found = store.transact(replicas.opened_since, EPOCH, but="one")
    assert [each.session for each in found] == ["s2"]


def shown(store: MemoryStore) -> str:
    return duplicate.reason(store.transact(clusters.find, EDGE).document)


def test_two_agents_of_one_cluster_are_shown_while_both_have_a_session(store: MemoryStore) -> None:
    store.transact(clusters.put, {"metadata": {"name": EDGE}}, None, "ann")
    store.transact(replicas.open_session, opened(ONE, "s1"))
    assert shown(store) == ""
    store.transact(replicas.open_session, opened(TWO, "s2", agent=OTHER))
    condition = conditions.find(doc.conditions(store.transact(clusters.find, EDGE).document), DUPLICATED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "TwoAgents")
    assert "aaaaa, xk7pq" in condition.message
    store.transact(replicas.close_session, EDGE, AGENT, "s0")
    assert shown(store) == "TwoAgents"
    store.transact(replicas.close_session, EDGE, AGENT, "s1")
    assert shown(store) == ""


def test_another_cluster_that_wants_the_name_stays_shown(store: MemoryStore) -> None:
    store.transact(clusters.put, {"metadata": {"name": EDGE}}, None, "ann")
    store.transact(clusters.note_duplicate, Joining(EDGE, "uid-2"), "agent")
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(TWO, "s2", agent=OTHER))
    store.transact(replicas.close_session, EDGE, AGENT, "s1")
    assert shown(store) == "AnotherClusterWithThisName"


def test_a_session_of_an_outdated_epoch_is_not_the_agents_newest(store: MemoryStore) -> None:
    store.transact(lambda tx: tx.heartbeats.claim(EDGE, 7))
    store.transact(replicas.open_session, replace(opened(ONE, "old"), epoch=6))
    assert session_of(store) is None
    store.transact(replicas.open_session, replace(opened(ONE, "new"), epoch=7))
    assert session_of(store) == "new"
