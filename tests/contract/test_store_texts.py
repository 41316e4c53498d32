"""Text that not every database takes: what agents and clients say may hold it."""

import asyncio
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from threading import Event

import pytest

from hub.api.managedclusters.cluster import ClusterClaim, JoinRequest, StatusReport
from hub.api.meta.change import REQUESTS
from hub.api.meta.document import mapping
from hub.grpc_door.session.sessions import Sessions
from hub.ports import Store, Transaction
from hub.registry.managedclusters import service as clusters
from machinery.errors import InvalidError, MusterError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key
from tests.fakes.databases import SqlDatabase

EDGE = ClusterName("edge")
AGENT, SERIAL = AgentId("a"), SerialNumber(10)
ODD = (
    StatusReport(claims=(ClusterClaim("a\x00", "b"),)),
    StatusReport(claims=(ClusterClaim("a", "\x00"),)),
    StatusReport(capacity={"\x00": "1"}),
    StatusReport(kubernetes_version="\x00"),
    StatusReport(conditions=(Condition("A\x00", "True", "B\x00", "\x00"),)),
)


def takes_no_nul(database: SqlDatabase) -> bool:
    return database.url.startswith("postgresql")


def refused(database: SqlDatabase) -> AbstractContextManager[object]:
    """As invalid, where the database takes no NUL."""
    return pytest.raises(InvalidError, match="characters that the database") if takes_no_nul(database) else nullcontext()


async def accepted(store: Store, cluster: ClusterName = EDGE) -> None:
    await store.run(lambda tx: clusters.enter(tx, JoinRequest(cluster, "uid-1"), "agent", timedelta(seconds=60)))
    await store.run(clusters.set_accepted, cluster, accepted=True, actor="admin")


async def test_a_nul_is_kept_or_refused_as_invalid(store: Store, database: SqlDatabase) -> None:
    await accepted(store)
    for report in ODD:
        with refused(database):
            await store.run(clusters.report_status, EDGE, report, "agent")
    for ask in (store.read, store.run):
        with refused(database):
            assert await ask(lambda tx: tx.objects.get(REQUESTS, Key("", "a\x00"))) is None
    await store.run(clusters.report_status, EDGE, StatusReport(kubernetes_version="v1.31.2"), "agent")
    await store.check()


async def test_who_shares_a_transaction_with_one_that_holds_a_nul_is_stored_at_once(
    store: Store, database: SqlDatabase
) -> None:
    others = [ClusterName(f"edge{number}") for number in range(5)]
    for cluster in (EDGE, *others):
        await accepted(store, cluster)
    busy, runs = Event(), Counter[ClusterName]()

    def report(tx: Transaction, cluster: ClusterName, said: StatusReport) -> None:
        runs[cluster] += 1
        clusters.report_status(tx, cluster, said, "agent")

    good = StatusReport(kubernetes_version="v1.31.2")
    asked = [(cluster, good) for cluster in others]
    asked.insert(2, (EDGE, ODD[0]))
    working = asyncio.create_task(store.run(lambda _: busy.wait()))  # what comes meanwhile shares the next transaction
    await asyncio.sleep(0)
    reports = [asyncio.create_task(store.run(report, cluster, said)) for cluster, said in asked]
    await asyncio.sleep(0)
    busy.set()
    told = await asyncio.gather(working, *reports, return_exceptions=True)
    wrong = [isinstance(each, InvalidError) for each in told if isinstance(each, Exception)]
    assert wrong == [True] * takes_no_nul(database)
    for cluster in others:
        document = (await store.read(clusters.find, cluster)).document
        assert mapping(document, "status", "version") == {"kubernetes": "v1.31.2"}
    assert runs == dict.fromkeys((EDGE, *others), 1)


@dataclass
class Open:
    """The session of an agent that says any version it likes."""

    cluster: ClusterName
    agent_version: str
    id: str = "s1"
    agent: AgentId = AGENT
    serial: SerialNumber = SERIAL
    epoch: int = 0

    def end(self, error: MusterError) -> None:
        raise AssertionError(error)

    def drain(self, reconnect_after: timedelta, reason: str = "") -> None:
        raise AssertionError(reconnect_after, reason)


async def test_sessions_begin_and_end_on_record_beside_one_whose_version_holds_a_nul(store: Store) -> None:
    async def recorded() -> set[ClusterName]:
        beats = await store.read(lambda tx: tx.heartbeats.all())
        return {beat.cluster for beat in beats if beat.session is not None}

    near, far = ClusterName("a"), ClusterName("z")
    sessions = Sessions(store, "one")
    opened = [Open(near, "v1"), Open(EDGE, "v1\x00"), Open(far, "v1")]
    for session in opened:
        sessions.add(session)
    await sessions.write()
    assert await recorded() - {EDGE} == {near, far}
    for session in opened:
        sessions.remove(session)
    await sessions.write()
    assert await recorded() == set()
