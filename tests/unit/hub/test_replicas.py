"""Replicas that come, go and are drained, and the sessions that each has."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from hub.api.hubreplicas import BEAT, FORGOTTEN_AFTER, LOST_AFTER, Replica, alive
from hub.api.managedclusters import duplicates
from hub.api.managedclusters.cluster import DUPLICATED, JoinRequest, StatusReport
from hub.api.meta import document as doc
from hub.api.meta.change import EVENTS
from hub.controllers.hub.replicas import LostReplicas
from hub.grpc_door.session.drain import RECONNECT_WITHIN, Cordon
from hub.registry import namespaces, owners
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.managedclusters import service as clusters
from hub.replica.heartbeat import ReplicaHeartbeat, register_replica
from hub.store import schema
from machinery.errors import AlreadyExistsError, ConflictError, MusterError, UnavailableError
from machinery.identity import AgentId, ClusterName
from machinery.lifecycle.server import LifecycleSignals
from machinery.meta import conditions
from machinery.meta.objects import Query
from machinery.runtime.clock import ManualClock
from machinery.runtime.event_loop import LEAST_RATE
from tests.checks import check_each, check_refusal, check_refusal_of, present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import change_cluster, fresh_store, set_accepted
from tests.fakes.virtual_time import in_the_loops_time
from tests.unit.hub.test_sessions import AGENT, EDGE, FAR, TICK, Open

OTHER = AgentId("aaaaa")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GRACE = timedelta(minutes=5)


def replica(name: str, home: str = "", instance: str = "") -> Replica:
    return Replica(name, home or f"home of {name}", instance or f"first {name}", "1", "grpc", "https", EPOCH, EPOCH)


ONE, TWO = replica("one"), replica("two")


def opened(on: Replica, session: str, cluster: ClusterName = EDGE, agent: AgentId = AGENT) -> Opened:
    return Opened(cluster, agent, session, "v1", on.name)


def session_of(store: InlineStore, cluster: ClusterName = EDGE) -> str | None:
    return store.state.beats[cluster].session


def test_name_has_one_owner_at_a_time(store: InlineStore, clock: ManualClock) -> None:
    store.transact(replicas.begin, ONE)
    clock.set_forward(-timedelta(hours=1))
    assert store.transact(replicas.beat, ONE).known
    assert store.transact(lambda tx: alive(tx.replicas.all(), tx.now)) == {"one"}, "although the database's clock was set back"
    rival = replica("one", home="another machine", instance="rival")
    with pytest.raises(AlreadyExistsError, match='another replica with the name "one" uses this database'):
        store.transact(replicas.begin, rival)
    clock.advance(LOST_AFTER + TICK)
    store.transact(replicas.begin, rival)
    check_refusal(AlreadyExistsError, store.transact, replicas.beat, ONE, match="another process has taken the name")


def test_process_that_begins_in_the_same_data_directory_takes_the_name_without_sessions_or_drain(store: InlineStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.order_drain, "one", "ann", force=True)
    second = replace(ONE, instance="second")
    store.transact(replicas.begin, second)
    assert (session_of(store), store.state.replicas["one"].drained) == (None, False)
    store.transact(replicas.open_session, opened(ONE, "s2"))
    store.transact(replicas.leave, ONE)
    assert session_of(store) == "s2", "not its own row"
    store.transact(replicas.leave, second)
    assert (session_of(store), store.state.replicas) == (None, {}), "an end in good order leaves nothing"


def test_a_start_ends_no_sessions_but_those_of_its_own_name(store: InlineStore) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(ONE, "s2", FAR))
    store.transact(replicas.begin, TWO)
    assert (session_of(store), session_of(store, FAR)) == ("s1", "s2")
    store.transact(replicas.begin_alone, TWO)
    assert (session_of(store), session_of(store, FAR)) == (None, None)
    assert store.transact(lambda tx: [each.name for each in tx.replicas.all()]) == ["two"]


def test_newest_session_of_the_newest_epoch_is_recorded_and_only_its_end_counts(store: InlineStore, clock: ManualClock) -> None:
    then = clock.now()
    store.transact(replicas.open_session, opened(ONE, "first"))
    clock.advance(TICK)
    store.transact(replicas.open_session, opened(TWO, "second"))
    store.transact(replicas.open_session, replace(opened(ONE, "written late"), at=then))
    store.transact(replicas.close_session, EDGE, AGENT, "first")
    assert session_of(store) == "second"
    store.transact(replicas.open_session, opened(TWO, "s2", agent=OTHER))
    _, found = store.transact(replicas.opened_since, EPOCH, but="one")
    assert {each.session for each in found} == {"second", "s2"}, "agents of one cluster have sessions of their own"
    store.transact(replicas.close_session, EDGE, OTHER, "s2")
    store.transact(replicas.close_session, EDGE, AGENT, "second")
    assert (session_of(store), store.state.beats[EDGE].agent_version) == (None, "v1")
    store.transact(replicas.close_session, ClusterName("nobody"), AGENT, "x")
    store.transact(lambda tx: tx.heartbeats.claim(EDGE, 7))
    store.transact(replicas.open_session, replace(opened(ONE, "old"), epoch=6))
    assert session_of(store) is None
    store.transact(replicas.open_session, replace(opened(ONE, "new"), epoch=7))
    assert session_of(store) == "new"


def test_sessions_of_a_replica_that_died_are_ended_by_whoever_looks(store: InlineStore, clock: ManualClock) -> None:
    store.transact(replicas.begin, ONE)
    store.transact(replicas.begin, TWO)
    store.transact(replicas.open_session, opened(ONE, "s1"))
    store.transact(replicas.open_session, opened(TWO, "s2", FAR))
    clock.advance(LOST_AFTER)
    store.transact(replicas.beat, TWO)
    assert store.transact(replicas.is_swept)
    clock.advance(TICK)
    assert not store.transact(replicas.is_swept)
    assert (store.transact(replicas.sweep), session_of(store), session_of(store, FAR)) == (1, None, "s2")
    (event,) = [each.document for each in store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items]
    assert (event["reason"], event["type"], event["involvedObject"]["name"]) == ("ReplicaLost", "Warning", "one")
    assert "its 1 agent sessions" in event["message"]
    assert store.transact(replicas.is_swept)
    clock.advance(FORGOTTEN_AFTER)
    store.transact(replicas.beat, TWO)
    store.transact(replicas.sweep)
    assert store.transact(lambda tx: [each.name for each in tx.replicas.all()]) == ["two"]


async def test_replicas_that_could_not_write_are_lost_only_later(store: InlineStore, clock: ManualClock) -> None:
    received: list[datetime | None] = [clock.now()]  # from when on the hub could write; None: it cannot
    controller = LostReplicas(store, since=lambda _tx: received[0])
    for each, cluster in ((ONE, EDGE), (TWO, FAR)):
        store.transact(replicas.begin, each)
        store.transact(replicas.open_session, opened(each, f"of {each.name}", cluster))

    async def with_sessions() -> set[str]:
        await controller.reconcile("")
        return set(store.transact(lambda tx: tx.agent_sessions.replicas()))

    clock.advance(LOST_AFTER * 8)
    received[0] = None
    assert await with_sessions() == {"one", "two"}, "the database is away still"
    received[0] = clock.now()
    store.transact(replicas.beat, TWO)  # the first of them whose connection came back
    assert await with_sessions() == {"one", "two"}
    clock.advance(LOST_AFTER)
    store.transact(replicas.beat, TWO)
    assert await with_sessions() == {"one", "two"}
    clock.advance(TICK)
    assert await with_sessions() == {"two"}, "it was silent while the other spoke"


def test_state_of_a_replica() -> None:
    rows: tuple[tuple[dict[str, Any], timedelta, str], ...] = (
        ({"ready": False}, timedelta(), "Starting"),
        ({}, LOST_AFTER, "Ready"),
        ({"ready": False, "draining": True}, timedelta(), "Draining"),
        ({"drained": True, "sessions": 1}, timedelta(), "Draining"),
        ({"drained": True}, timedelta(), "Drained"),
        ({"drained": True}, LOST_AFTER + TICK, "Lost"),
        ({}, LOST_AFTER + TICK, "Lost"),
        ({}, -LOST_AFTER, "Ready"),
        ({}, timedelta(days=-365), "Lost"),  # it died while the database's clock was a year ahead
    )

    def check(changed: dict[str, Any], silent: timedelta, state: str) -> None:
        shown = replace(ONE, **{"ready": True, **changed})
        assert shown.state(EPOCH + silent) == state, shown
        assert shown.takes_sessions(EPOCH + silent) == (state == "Ready")

    check_each(check, rows)


async def test_replica_that_was_taken_for_dead_writes_its_sessions_again(store: InlineStore, clock: ManualClock) -> None:
    given_up: list[str] = []
    presence = ReplicaHeartbeat(
        store, ONE, LifecycleSignals(clock), clock, sessions=lambda: 7, declared_lost=lambda: given_up.append("all")
    )
    await register_replica(store, ONE, alone=False)
    clock.advance(BEAT)
    await presence.beat()
    assert (store.state.replicas["one"].sessions, store.state.replicas["one"].seen, len(given_up)) == (7, clock.now(), 0)
    clock.advance(LOST_AFTER + TICK)
    await presence.beat()
    assert len(given_up) == 1
    await presence.beat()
    assert len(given_up) == 1
    store.failure = UnavailableError("away")
    await presence.beat()
    await presence.leave()  # a database that is away holds up no end
    assert store.state.replicas.keys() == {"one"}
    store.failure = None
    await presence.leave()
    assert store.state.replicas == {}


async def test_heartbeat_of_a_replica_reports_load_and_returns_a_drain(store: InlineStore, clock: ManualClock) -> None:
    received: list[bool] = []
    ahead = ManualClock(clock.now() + timedelta(seconds=3))
    presence = ReplicaHeartbeat(
        store, ONE, LifecycleSignals(clock), ahead, sessions=lambda: 1, watches=lambda: 4, drained=received.append
    )
    await register_replica(store, ONE, alone=True)
    await presence.beat()
    await store.run(replicas.order_drain, "one", "ann", force=True)
    await presence.beat()
    reported = store.state.replicas["one"]
    assert (received, reported.drained, reported.seen) == ([False, True], True, clock.now())
    assert (reported.load.watches, reported.load.ahead, reported.load.memory > 2**20) == (4, timedelta(seconds=3), True)
    store.execute(delete(schema.replicas))
    await presence.beat()
    assert (received[-1], store.state.replicas["one"].drained) == (True, True), "a row that is lost does not end a drain"
    await store.run(replicas.end_drain, "one", "ann")
    await presence.beat()
    assert received[-1] is False


async def test_a_replica_tells_at_once_that_it_is_ready_and_that_it_ends(store: InlineStore, clock: ManualClock) -> None:
    signals = LifecycleSignals(clock)
    presence = ReplicaHeartbeat(store, ONE, signals, clock)
    await register_replica(store, ONE, alone=False)

    async def state_is(state: str) -> None:
        async with asyncio.timeout(1):
            while store.state.replicas["one"].state(clock.now()) != state:  # noqa: ASYNC110 - the row is the condition
                await asyncio.sleep(0)

    running = asyncio.create_task(presence.run())
    await state_is("Starting")
    signals.has_been_ready.set()
    await state_is("Ready")
    signals.shutdown_initiated.set()
    await state_is("Draining")
    await presence.leave()
    assert store.state.replicas == {}
    running.cancel()


async def test_name_of_a_living_replica_is_refused(
    store: InlineStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = replica("one", home="another machine")
    store.transact(replicas.begin, ONE)
    slept: list[float] = []

    async def pass_time(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(timedelta(seconds=seconds))
        if len(slept) == 2:
            store.transact(replicas.beat, ONE)

    monkeypatch.setattr("hub.replica.heartbeat.asyncio.sleep", pass_time)
    await check_refusal_of(AlreadyExistsError, register_replica(store, rival, alone=False))
    assert len(slept) == 2
    await register_replica(store, rival, alone=False)
    assert timedelta(seconds=sum(slept[2:])) <= LOST_AFTER + BEAT
    assert store.state.replicas["one"].home == "another machine"


def shown(store: InlineStore) -> str:
    return duplicates.reason(store.transact(clusters.find, EDGE).document)


@pytest.fixture
def pair(clock: ManualClock) -> InlineStore:
    pair = fresh_store(clock)
    pair.transact(namespaces.ensure_predefined)
    for name in ("one", "two"):
        pair.transact(replicas.begin, Replica(name, f"home of {name}", name, "1", "g", "h", EPOCH, EPOCH, ready=True))
    return pair


def drained(pair: InlineStore) -> list[str]:
    return [name for name, each in pair.state.replicas.items() if each.drained]


def test_last_replica_that_takes_sessions_is_drained_only_by_force(pair: InlineStore, clock: ManualClock) -> None:
    assert pair.transact(replicas.order_drain, "one", "ann", dry_run=True).drained
    assert drained(pair) == []
    two = pair.state.replicas["two"]
    for other in ({"ready": False}, {"draining": True}, {"seen": EPOCH}, {"drained": True}):
        changed = replace(two, **other)
        pair.ask(lambda tx: tx.replicas.put(changed))  # noqa: B023 - called at once
        with pytest.raises(ConflictError, match=r'no other replica than "one" takes sessions.*--force'):
            pair.transact(replicas.order_drain, "one", "ann")
    pair.transact(replicas.order_drain, "one", "ann", force=True)
    assert drained(pair) == ["one", "two"]
    clock.advance(LOST_AFTER * 2)
    check_refusal(ConflictError, pair.transact, replicas.order_drain, "one", "ann", force=True, match="is lost")


@dataclass(eq=False)
class Drained(Open):
    """A session that records its calls with their times."""

    recorded: list[tuple[float, timedelta, str]] = field(default_factory=list)
    ended_at: float = 0.0

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        self.recorded.append((asyncio.get_running_loop().time(), reconnect_after, reason))

    def end(self, error: MusterError) -> None:
        super().end(error)
        self.ended_at = asyncio.get_running_loop().time()


@in_the_loops_time
async def test_sessions_are_notified_at_a_rate_and_those_that_stay_are_ended_after_the_grace() -> None:
    sessions = [Drained(f"s{number}") for number in range(1_000)]
    everybody = list(sessions)
    cordon = Cordon(GRACE, lambda: list(sessions))
    running = asyncio.create_task(cordon.run())
    cordon.check()
    cordon.order(True)  # noqa: FBT003 - what is ordered
    check_refusal(UnavailableError, cordon.check, match="drained")
    await check_refusal_of(RuntimeError, cordon.ready(), match="uncordon")
    stays = sessions[0]
    await asyncio.sleep(10)
    del sessions[1:]
    await asyncio.sleep(GRACE.total_seconds())
    [(at, hint, why)] = stays.recorded
    assert at == pytest.approx(0, abs=0.1)
    assert (hint, "drained" in why) == (RECONNECT_WITHIN, True)
    [error] = stays.ended
    assert isinstance(error, UnavailableError)
    assert stays.ended_at - at >= GRACE.total_seconds()
    running.cancel()
    assert all(len(each.recorded) == 1 for each in everybody), "each gets one call"
    assert max(each.recorded[0][0] for each in everybody) == pytest.approx(1_000 / LEAST_RATE, rel=0.05)
    assert not any(each.ended for each in everybody[1:]), "who has gone is ended by nobody"


@in_the_loops_time
async def test_canceled_drain_ends_no_session_and_a_new_order_gives_the_whole_grace_anew() -> None:
    session = Drained("s")
    cordon = Cordon(GRACE, lambda: [session])
    running = asyncio.create_task(cordon.run())
    for _ in range(2):
        cordon.order(True)  # noqa: FBT003 - what is ordered
        await asyncio.sleep(1)
        cordon.order(False)  # noqa: FBT003 - likewise
        cordon.check()
        await cordon.ready()
        await asyncio.sleep(2 * GRACE.total_seconds())
    assert (len(session.recorded), session.ended) == (2, [])
    cordon.order(True)  # noqa: FBT003 - likewise
    await asyncio.sleep(GRACE.total_seconds() - 1)
    cordon.order(False)  # noqa: FBT003 - likewise
    cordon.order(True)  # noqa: FBT003 - in the same moment
    await asyncio.sleep(GRACE.total_seconds() - 1)
    assert (len(session.recorded), session.ended) == (4, [])
    await asyncio.sleep(2)
    assert len(session.ended) == 1
    running.cancel()


@in_the_loops_time
async def test_a_fleet_that_takes_longer_than_half_the_grace_is_notified_faster() -> None:
    sessions = [Drained(f"s{number}") for number in range(600)]
    cordon = Cordon(timedelta(seconds=2), lambda: list(sessions))
    running = asyncio.create_task(cordon.run())
    cordon.order(True)  # noqa: FBT003 - what is ordered
    await asyncio.sleep(1.1)
    assert all(each.recorded for each in sessions)
    running.cancel()


def test_second_agent_is_shown_until_it_was_not_refused_for_a_while(store: InlineStore, clock: ManualClock) -> None:
    store.transact(clusters.put, {"metadata": {"name": EDGE}}, None, "ann")
    store.transact(replicas.open_session, opened(ONE, "s1"))
    assert shown(store) == ""
    clock.advance(timedelta(seconds=1))
    store.transact(replicas.open_session, opened(TWO, "s2", agent=OTHER))
    condition = present(conditions.find(doc.conditions(store.transact(clusters.find, EDGE).document), DUPLICATED))
    assert (condition.status, condition.reason) == ("True", "TwoAgents")
    assert "Agent xk7pq has the session of this cluster, so the hub refuses agent aaaaa" in condition.message
    store.transact(replicas.close_session, EDGE, AGENT, "s0")
    assert shown(store) == "TwoAgents"
    store.transact(replicas.close_session, EDGE, OTHER, "s2")
    revision = store.state.revision
    for _ in range(60):
        clock.advance(timedelta(minutes=1))
        store.transact(owners.note_second, EDGE, AGENT, OTHER, "hub")
        store.transact(replicas.open_session, opened(ONE, "s1"))
        assert shown(store) == "TwoAgents", "it does not flip while the other tries"
    assert store.state.revision <= revision + 6, "nor is each refusal news"
    clock.advance(timedelta(minutes=19))
    store.transact(replicas.close_session, EDGE, AGENT, "s1")
    assert shown(store) == "TwoAgents"
    clock.advance(timedelta(minutes=1))
    store.transact(set_accepted, EDGE, True, "ann")  # noqa: FBT003 - the field's value
    store.transact(clusters.report_status, EDGE, StatusReport(), "agent")
    assert shown(store) == ""
    store.transact(clusters.note_duplicate, JoinRequest(EDGE, "uid-2"), "agent")
    store.transact(replicas.open_session, opened(ONE, "s3"))
    store.transact(replicas.close_session, EDGE, AGENT, "s3")
    assert shown(store) == "AnotherClusterWithThisName"
    refused = conditions.Condition(DUPLICATED, "True", "TwoAgents", "")  # as an agent may write it
    note = {duplicates.REFUSED_AT: f"0001-01-01T00:00:00+01:00 {AGENT}"}
    change_cluster(store, lambda old: doc.with_annotations(doc.with_status_condition(old, refused, clock.now()), note), EDGE)
    store.transact(replicas.open_session, opened(ONE, "s4"))
    store.transact(replicas.close_session, EDGE, AGENT, "s4")
    assert shown(store) == ""
