"""What a hub's parts count, and how it becomes bounded numbers."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from aiohttp import web

from hub.domain import cluster as rules
from hub.domain.brake import Limits
from hub.domain.cluster import Joining, StatusReport, joining_document
from hub.domain.trust import AgentTrust
from hub.heartbeat import BeatBuffer, Sink
from hub.metrics.agents import OTHER, bounded
from hub.metrics.fleet import EVERY, FleetLook, add_fleet, counted, minor
from hub.ports import Transaction
from hub.rpc.counts import CallCounts
from hub.services import brake, clusters
from hub.store.backup import BACKUP_MADE
from machinery.apiserver.access import Attributes
from machinery.apiserver.counting import RequestCounts
from machinery.apiserver.filters import Incoming
from machinery.clock import ManualClock
from machinery.conditions import Condition
from machinery.errors import ForbiddenError, StaleEpochError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.metrics import Registry
from machinery.timestamps import format_micro_time
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, Newcomer

AGENT = AgentId("xk7pq")


@dataclass
class Beating(Sink):
    """Where beats come from."""

    epoch: int = 0
    acknowledged: list[int] = field(default_factory=list)
    refused: list[StaleEpochError] = field(default_factory=list)

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        del ended_silence
        self.acknowledged.append(sequence)

    def refuse(self, error: StaleEpochError) -> None:
        self.refused.append(error)


class Asked(MemoryStore):
    """Counts how often it is read."""

    reads = 0

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return await super().read(query, *args, **kwargs)


def trust(cluster: str, ends: timedelta, tx: Transaction) -> None:
    end = tx.now + ends
    tx.trusts.put(AgentTrust(ClusterName(cluster), AGENT, None, SerialNumber(7), tx.now, end, None, tx.now))


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("v1.30.2+k3s1", "1.30"),
        ("1.31.0-eks-abc", "1.31"),
        ("v1.32", "1.32"),
        ("v1.3022", OTHER),
        ("latest", OTHER),
        ('1"} evil 1\n', OTHER),
    ],
)
def test_a_version_that_a_cluster_tells_becomes_its_minor_version_or_other(version: str, told: str) -> None:
    assert minor(version) == told


def test_however_many_versions_agents_make_up_there_are_no_more_series() -> None:
    told = bounded({f"v{number}": 1 for number in range(500)} | {"v0": 40}, most=3)
    assert len(told) == 4
    assert told["v0"] == 40
    assert told[OTHER] == 497


def test_a_value_that_says_other_is_one_with_the_rest() -> None:
    assert bounded({OTHER: 5, "a": 3, "b": 1}, most=2) == {OTHER: 6, "a": 3}


def test_the_fleet_is_counted_by_state_and_by_how_long_certificates_last(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    waiting = joining_document(Joining(ClusterName("waits"), "uid-2", AGENT), timedelta(seconds=60))
    store.transact(lambda tx: clusters.put(tx, waiting, None, "ann"))
    for name, ends in (("a", -1), ("b", 20), ("c", 24 * 6), ("d", 24 * 29), ("e", 24 * 300), ("f", 24 * 301)):
        store.transact(lambda tx, name, ends: trust(name, timedelta(hours=ends), tx), name, ends)
    fleet = store.transact(counted)
    assert dict(fleet.states) == {"True": 1, "": 1}
    assert dict(fleet.accepted) == {"true": 1, "false": 1}
    assert dict(fleet.left) == {"ended": 1, "1d": 1, "7d": 1, "30d": 1, "more": 2}
    assert fleet.earliest == fleet.at + timedelta(hours=20)
    assert (fleet.available, fleet.ends, fleet.backup) == ({}, {}, None)


def test_single_clusters_are_told_of_only_when_that_is_asked_for(newcomer: Newcomer, store: MemoryStore) -> None:
    newcomer.join(newcomer.bootstrap())
    newcomer.accept()
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.UNAVAILABLE,)), "agent")
    store.transact(lambda tx: trust(EDGE, timedelta(days=1), tx))
    store.transact(lambda tx: tx.facts.set(BACKUP_MADE, format_micro_time(tx.now)))
    fleet = store.transact(counted, detailed=True)
    assert fleet.available == {EDGE: 0}
    assert fleet.ends == {EDGE: (fleet.at + timedelta(days=1)).timestamp()}
    assert fleet.backup == fleet.at


async def test_however_often_somebody_scrapes_the_database_is_asked_once_in_a_while(clock: ManualClock) -> None:
    store = Asked(clock)
    look = FleetLook(store, clock, detailed=False)
    for _ in range(10):
        await look()
    assert store.reads == 1
    clock.advance(EVERY)
    await look()
    assert store.reads == 2


async def test_of_a_database_that_is_away_nothing_is_told_rather_than_an_old_number(clock: ManualClock) -> None:
    store, registry = MemoryStore(clock), Registry()
    add_fleet(registry, store, clock, reserve=5)
    assert "muster_hub_clusters{" in await registry.scrape()
    store.failure = UnavailableError("away")
    clock.advance(EVERY)
    told = await registry.scrape()
    assert "muster_hub_clusters" not in told
    assert "muster_hub_database_reserve_bytes 5\n" in told
    store.failure = None
    clock.advance(EVERY)
    assert "muster_hub_clusters{" in await registry.scrape()


async def test_a_brake_that_holds_is_told_until_it_lets_go(clock: ManualClock, store: MemoryStore) -> None:
    registry, names = Registry(), [ClusterName(f"c{number}") for number in range(12)]
    add_fleet(registry, store, clock, reserve=0)

    def turn(tx: Transaction, verdict: Condition) -> None:
        for name in names:
            clusters.set_condition(tx, name, verdict, "test")
        brake.keep(tx, Limits(), "test")

    async def told() -> str:
        clock.advance(EVERY)
        (line,) = (line for line in (await registry.scrape()).splitlines() if line.startswith("muster_hub_brake_holds"))
        return line.split()[-1]

    for name in names:
        store.transact(clusters.put, {"metadata": {"name": name}}, None, "ann")
    for verdict, expected in ((rules.AVAILABLE, "0"), (rules.SILENT, "1"), (rules.AVAILABLE, "0")):
        store.transact(turn, verdict)
        assert await told() == expected


async def test_beats_are_counted_once_they_are_durable_with_the_time_that_took(clock: ManualClock, store: MemoryStore) -> None:
    buffer, agent = BeatBuffer(store, clock, timedelta(seconds=1)), Beating()
    for sequence, name in ((1, "a"), (2, "a"), (3, "b")):
        buffer.hold(ClusterName(name), sequence, agent, available=True)
    store.failure = UnavailableError("away")
    await buffer.flush()
    assert (buffer.counts.stored, buffer.counts.failures, buffer.counts.lag.count) == (0, 1, 0)
    store.failure = None
    clock.advance(timedelta(seconds=3))
    buffer.hold(ClusterName("c"), 4, agent, available=True)
    await buffer.flush()
    counts = buffer.counts
    assert (counts.stored, counts.refused, counts.failures) == (3, 0, 1)
    assert counts.lag.total == pytest.approx(6.0)
    assert (counts.rows.count, counts.rows.total) == (1, 3)
    assert sorted(agent.acknowledged) == [2, 3, 4]


async def test_beats_of_an_earlier_owner_and_those_that_end_a_silence_are_counted_apart(
    clock: ManualClock, store: MemoryStore
) -> None:
    buffer, late = BeatBuffer(store, clock, timedelta(seconds=1)), Beating(epoch=1)
    store.transact(lambda tx: tx.heartbeats.claim(ClusterName("gone"), 5))
    buffer.hold(ClusterName("gone"), 1, late, available=True)
    buffer.hold(ClusterName("back"), 1, Beating(), available=True, ends_silence=True)
    await buffer.flush()
    assert (buffer.counts.stored, buffer.counts.revived, buffer.counts.refused) == (1, 1, 1)
    assert len(late.refused) == 1


def test_calls_are_counted_by_method_and_outcome() -> None:
    counts = CallCounts()
    for error in (None, ForbiddenError("no"), ValueError("a defect"), GeneratorExit()):
        counts.ended("Connect", error)
    counts.took("GetHub", timedelta(milliseconds=30))
    assert dict(counts.handled) == {
        ("Connect", "OK"): 1,
        ("Connect", "Forbidden"): 1,
        ("Connect", "InternalError"): 1,
        ("Connect", "Cancelled"): 1,
    }
    assert counts.seconds["GetHub"].total == pytest.approx(0.03)


async def answered(counts: RequestCounts, verb: str, resource: str, status: int | None) -> None:
    async def inner(_incoming: Incoming) -> web.StreamResponse:
        if status is None:
            raise ConnectionResetError
        return web.Response(status=status)

    incoming = Incoming(cast("web.Request", None), "id", Attributes(verb, "/x", resource=resource), 0.0)
    if status is None:
        with pytest.raises(ConnectionResetError):
            await counts.counted(incoming, inner)
    else:
        await counts.counted(incoming, inner)


async def test_requests_for_what_somebody_makes_up_make_no_series_of_their_own(clock: ManualClock) -> None:
    counts = RequestCounts(clock, ("managedclusters",))
    await answered(counts, "list", "managedclusters", 200)
    await answered(counts, "watch", "managedclusters", 200)
    await answered(counts, "get", "", 403)
    for number in range(50):
        await answered(counts, f"VERB{number}", f"thing{number}", 404)
    await answered(counts, "get", "managedclusters", None)
    assert dict(counts.answered) == {
        ("list", "managedclusters", "200"): 1,
        ("watch", "managedclusters", "200"): 1,
        ("get", "", "403"): 1,
        ("other", "other", "404"): 50,
        ("get", "managedclusters", "0"): 1,
    }
    assert set(counts.seconds) == {"list", "get", "other"}
