"""A replica that an operator drains: who may be, who hears of it, and what becomes of its sessions."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain.change import EVENTS, Query
from hub.domain.replica import LOST_AFTER, Replica
from hub.rpc.cordon import HINT, Cordon
from hub.services import draining, namespaces, replicas
from machinery.clock import ManualClock
from machinery.errors import ConflictError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.pacing import LEAST_RATE
from tests.fakes.memory_store import MemoryStore
from tests.fakes.virtual_time import in_virtual_time

EDGE, AGENT, SERIAL = ClusterName("edge"), AgentId("xk7pq"), SerialNumber(10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GRACE = timedelta(minutes=5)


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    """Two replicas that serve."""
    store = MemoryStore(clock)
    store.transact(namespaces.ensure_standing)
    for name in ("one", "two"):
        store.transact(replicas.begin, Replica(name, f"home of {name}", name, "1", "g", "h", EPOCH, EPOCH, ready=True))
    return store


def drained(store: MemoryStore) -> list[str]:
    return [name for name, each in store.state.replicas.items() if each.drained]


def test_one_of_two_is_drained_and_an_event_says_by_whom(store: MemoryStore) -> None:
    assert store.transact(draining.order, "one", "ann").drained
    store.transact(draining.order, "one", "bob")
    told = list(store.transact(lambda tx: tx.objects.find(EVENTS, Query())).items)
    assert [(each.document["reason"], each.document["message"]) for each in told] == [
        ("ReplicaDrained", "ann drains the replica one")
    ]
    assert drained(store) == ["one"]
    store.transact(draining.lift, "one", "ann")
    assert drained(store) == []


def test_the_last_that_takes_sessions_is_drained_only_by_force(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(draining.order, "two", "ann")
    with pytest.raises(ConflictError, match=r'no other replica than "one" takes sessions.*--force'):
        store.transact(draining.order, "one", "ann")
    store.transact(draining.order, "one", "ann", force=True)
    assert drained(store) == ["one", "two"]
    clock.advance(LOST_AFTER * 2)
    with pytest.raises(ConflictError, match="is lost"):
        store.transact(draining.order, "one", "ann", force=True)


@pytest.mark.parametrize("other", [{"ready": False}, {"draining": True}, {"seen": EPOCH}])
def test_who_takes_no_sessions_is_no_place_to_go(store: MemoryStore, other: dict[str, Any]) -> None:
    store.state.replicas["two"] = replace(store.state.replicas["two"], **other)
    with pytest.raises(ConflictError, match="takes sessions"):
        store.transact(draining.order, "one", "ann")


def test_what_is_not_there_is_not_drained_and_a_dry_run_changes_nothing(store: MemoryStore) -> None:
    with pytest.raises(NotFoundError):
        store.transact(draining.order, "three", "ann")
    assert store.transact(draining.order, "one", "ann", dry_run=True).drained
    assert drained(store) == []


@dataclass(eq=False)
class Open:
    """A session that notes what it is told, and when."""

    number: int
    told: list[tuple[float, timedelta, str]] = field(default_factory=list)
    ended: list[tuple[float, MusterError]] = field(default_factory=list)
    id: str = "s"
    cluster: ClusterName = EDGE
    agent: AgentId = AGENT
    agent_version: str = "v1"
    serial: SerialNumber = SERIAL
    epoch: int = 0

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        self.told.append((asyncio.get_running_loop().time(), reconnect_after, reason))

    def end(self, error: MusterError) -> None:
        self.ended.append((asyncio.get_running_loop().time(), error))


def run(work: Coroutine[Any, Any, None]) -> None:
    in_virtual_time(work)


def test_sessions_are_told_at_a_rate_and_those_that_stay_are_ended_after_the_grace() -> None:
    sessions = [Open(number) for number in range(1_000)]

    async def scene() -> None:
        cordon = Cordon(GRACE, lambda: list(sessions))
        running = asyncio.create_task(cordon.run())
        cordon.check()
        cordon.order(True)  # noqa: FBT003 - what is ordered
        with pytest.raises(UnavailableError, match="drained"):
            cordon.check()
        with pytest.raises(RuntimeError, match="uncordon"):
            await cordon.ready()
        stays = sessions[0]
        await asyncio.sleep(10)
        del sessions[1:]
        await asyncio.sleep(GRACE.total_seconds())
        [(at, hint, why)] = stays.told
        assert at == pytest.approx(0, abs=0.1)
        assert (hint, "drained" in why) == (HINT, True)
        [(ended, error)] = stays.ended
        assert isinstance(error, UnavailableError)
        assert ended - at >= GRACE.total_seconds()
        running.cancel()

    everybody = list(sessions)
    run(scene())
    assert all(len(each.told) == 1 for each in everybody), "each is told, and once"
    assert max(each.told[0][0] for each in everybody) == pytest.approx(1_000 / LEAST_RATE, rel=0.05)
    assert not any(each.ended for each in everybody[1:]), "who has gone is ended by nobody"


def test_a_drain_that_is_taken_back_ends_nobody_and_can_be_ordered_again() -> None:
    sessions = [Open(0)]

    async def scene() -> None:
        cordon = Cordon(GRACE, lambda: list(sessions))
        running = asyncio.create_task(cordon.run())
        for _ in range(2):
            cordon.order(True)  # noqa: FBT003 - what is ordered
            await asyncio.sleep(1)
            cordon.order(False)  # noqa: FBT003 - likewise
            cordon.check()
            await cordon.ready()
            await asyncio.sleep(2 * GRACE.total_seconds())
        running.cancel()

    run(scene())
    assert (len(sessions[0].told), sessions[0].ended) == (2, [])


def test_a_drain_that_is_taken_back_and_ordered_in_one_breath_gives_the_whole_grace_anew() -> None:
    sessions = [Open(0)]

    async def scene() -> None:
        cordon = Cordon(GRACE, lambda: list(sessions))
        running = asyncio.create_task(cordon.run())
        cordon.order(True)  # noqa: FBT003 - what is ordered
        await asyncio.sleep(GRACE.total_seconds() - 1)
        cordon.order(False)  # noqa: FBT003 - likewise
        cordon.order(True)  # noqa: FBT003 - likewise
        await asyncio.sleep(GRACE.total_seconds() - 1)
        assert (len(sessions[0].told), sessions[0].ended) == (2, [])
        await asyncio.sleep(2)
        assert len(sessions[0].ended) == 1
        running.cancel()

    run(scene())


def test_a_fleet_that_is_told_for_longer_than_half_the_grace_is_told_faster() -> None:
    sessions = [Open(number) for number in range(600)]

    async def scene() -> None:
        cordon = Cordon(timedelta(seconds=2), lambda: list(sessions))
        running = asyncio.create_task(cordon.run())
        cordon.order(True)  # noqa: FBT003 - what is ordered
        await asyncio.sleep(1.1)
        assert all(each.told for each in sessions)
        running.cancel()

    run(scene())
