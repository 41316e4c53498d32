"""What every store promises about the audit log and about texts that no database takes, and every sink about what it keeps."""

import asyncio
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from hub.api.auditrecords import STRANGERS, AuditEntry, AuditPosition, AuditQuery, Numbering
from hub.api.managedclusters.cluster import ClusterClaim, JoinRequest, StatusReport
from hub.api.meta.change import REQUESTS
from hub.api.meta.document import mapping
from hub.audit.sinks import FileSink, StoreSink
from hub.audit.trail import AuditSink
from hub.grpc_door.session.sessions import Sessions
from hub.ports import Store, Transaction
from hub.registry import auditrecords as audit
from hub.registry.managedclusters import service as clusters
from machinery.errors import InvalidError, MusterError, UnavailableError
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of
from tests.fakes.audit_records import MemorySink, entries, record
from tests.fakes.databases import SqlDatabase, sqlite_database
from tests.fakes.registration import set_accepted

SECOND = timedelta(seconds=1)


async def everything(store: Store) -> list[AuditEntry]:
    return list(await store.read(lambda tx: tx.audit.find(AuditQuery())))


async def test_records_come_back_as_they_were_and_can_be_sent_again(store: Store, clock: ManualClock) -> None:
    kept = entries("a", *(record(at=clock.now() + number * SECOND) for number in range(5)))
    other = entries("b", record(at=clock.now() + 9 * SECOND))
    for part in (kept[:3], kept[1:], other, other):
        await store.run(lambda tx, entries: tx.audit.add(entries), part)
    assert await everything(store) == [*kept, *other]


async def test_text_that_no_database_takes_is_kept_with_marks_in_its_place(store: Store, clock: ManualClock) -> None:
    strange = entries("a", record(at=clock.now(), user="a\x00\udcff", name="\x00", namespace="\x00", verb="\x00"))
    await store.run(lambda tx: tx.audit.add(strange))
    found = await store.read(lambda tx: tx.audit.find(AuditQuery(equal=(("user", "a\ufffd\ufffd"), ("name", "\ufffd")))))
    assert list(found) == strange


async def test_records_are_found_by_what_they_say_in_the_order_of_time(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    mine = entries("b", record(at=now), record(at=now + 2 * SECOND, verb="delete", namespace="ns"), record(at=now + 3 * SECOND))
    others = entries("a", record(at=now + SECOND, user="bob"), record(at=now + 2 * SECOND, resource="leases", name="x"))
    await store.run(lambda tx: tx.audit.add(mine))
    await store.run(lambda tx: tx.audit.add(others))

    async def found(**query: object) -> list[AuditEntry]:
        chosen = await store.read(lambda tx: tx.audit.find(AuditQuery(**query)))  # type: ignore[arg-type]
        return list(chosen)

    assert await found() == [mine[0], others[0], others[1], mine[1], mine[2]]
    assert (await found(equal=(("user", "bob"),)), await found(unequal=(("user", "ann"),))) == ([others[0]], [others[0]])
    assert await found(equal=(("verb", "delete"), ("namespace", "ns"))) == [mine[1]]
    assert await found(equal=(("resource", "leases"), ("name", "x"))) == [others[1]]
    assert await found(since=now + 2 * SECOND, until=now + 2 * SECOND) == [others[1], mine[1]]
    assert await found(limit=2) == [mine[0], others[0], others[1]]
    place = AuditPosition(others[1].at, others[1].replica, 2)
    assert await found(after=place) == [mine[1], mine[2]]
    assert await found(newest_first=True, limit=2) == [mine[2], mine[1], others[1]]
    assert await found(newest_first=True, after=place) == [others[0], mine[0]]


async def test_oldest_records_go_by_age_and_by_size(store: Store, clock: ManualClock) -> None:
    now = clock.now()
    kept = entries("a", *(record(at=now + number * SECOND) for number in (0, 9, 1, 2)))
    strangers = [Numbering("z", STRANGERS).entry(record(at=now + number * SECOND)) for number in (0, 1)]
    await store.run(lambda tx: tx.audit.add([*kept, *strangers]))
    refused, sizes = await store.read(audit.sizes)
    assert (refused, [(user, size.records, size.floor) for user, size in sizes.items()]) == (2, [("ann", 4, now)])
    clock.advance(timedelta(days=1) + SECOND)
    assert (await store.run(lambda tx: tx.audit.remove(9, before=tx.now - timedelta(days=1)))).records == 2
    assert await everything(store) == [kept[2], strangers[1], kept[3], kept[1]]
    others = entries("b", record(at=now, user="bob"), record(at=now + 5 * SECOND, user="bob"))
    await store.run(lambda tx: tx.audit.add(others))
    gone = await store.run(lambda tx: tx.audit.remove(2, strangers=False, user="ann", since=kept[2].at))
    assert (gone.records, gone.bytes, gone.floor) == (2, sizes["ann"].bytes // 2, kept[3].at)
    assert await everything(store) == [others[0], strangers[1], others[1], kept[1]]
    assert (await store.run(lambda tx: tx.audit.remove(2, strangers=True))).records == 1
    assert await everything(store) == [*others, kept[1]]


@pytest.mark.parametrize("kind", ["memory", "store", "file"])
async def test_records_are_kept_in_order_and_go_on_after_a_restart(kind: str, tmp_path: Path) -> None:
    path, memory, documents = tmp_path / "audit.log", MemorySink(), list[bytes]()
    async with sqlite_database(tmp_path).opened(None) as store:
        for number in (1, 3):
            sinks: dict[str, AuditSink] = {"memory": memory, "store": StoreSink(store, "here"), "file": FileSink(str(path))}
            sink = sinks[kind]
            await sink.open()
            written = [sink.numbering.entry(record(each)) for each in (number, number + 1)]
            await sink.write(written)
            documents += [entry.document for entry in written]
        kept = memory.entries if kind == "memory" else await everything(store)
    assert (path.read_bytes().splitlines() if kind == "file" else [entry.document for entry in kept]) == documents


async def test_a_line_that_a_crash_has_torn_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(str(path))
    await sink.open()
    await sink.write(entries("a", record(1), record(2)))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"level":"Meta')
    await FileSink(str(path)).open()
    assert path.read_bytes() == whole


async def test_a_file_that_is_no_audit_log_or_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    for name, content in (("a", b"dear diary"), ("b", b"dear diary\n")):
        path = tmp_path / name
        path.write_bytes(content)
        await check_refusal_of(InvalidError, FileSink(str(path)).open(), match="choose another file")
        assert path.read_bytes() == content
    await check_refusal_of(InvalidError, FileSink(str(tmp_path / "missing" / "audit.log")).open(), match="cannot be written")


async def test_a_file_that_was_rotated_is_made_again_and_a_failed_batch_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink, written = FileSink(str(path)), entries("a", record(1), record(2))
    await sink.open()
    await sink.write(written[:1])
    path.rename(tmp_path / "audit.log.1")
    path.mkdir()
    await check_refusal_of(UnavailableError, sink.write(written[1:]), match="cannot be written")
    path.rmdir()
    await sink.write(written[1:])
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (written[1].document + b"\n", 0o600)


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
    await store.run(set_accepted, cluster, accepted=True, actor="admin")


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


async def test_who_shares_a_transaction_with_a_nul_is_stored_at_once(store: Store, database: SqlDatabase) -> None:
    others = [ClusterName(f"edge{number}") for number in range(5)]
    for cluster in (EDGE, *others):
        await accepted(store, cluster)
    busy, runs = Event(), Counter[ClusterName]()

    def report(tx: Transaction, cluster: ClusterName, status: StatusReport) -> None:
        runs[cluster] += 1
        clusters.report_status(tx, cluster, status, "agent")

    good = StatusReport(kubernetes_version="v1.31.2")
    asked = [(cluster, good) for cluster in others]
    asked.insert(2, (EDGE, ODD[0]))
    working = asyncio.create_task(store.run(lambda _: busy.wait()))  # what comes meanwhile shares the next transaction
    await asyncio.sleep(0)
    reports = [asyncio.create_task(store.run(report, cluster, status)) for cluster, status in asked]
    await asyncio.sleep(0)
    busy.set()
    ended = await asyncio.gather(working, *reports, return_exceptions=True)
    assert [isinstance(each, InvalidError) for each in ended if isinstance(each, Exception)] == [True] * takes_no_nul(database)
    for cluster in others:
        assert mapping((await store.read(clusters.find, cluster)).document, "status", "version") == {"kubernetes": "v1.31.2"}
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
        return {beat.cluster for beat in await store.read(lambda tx: tx.heartbeats.all()) if beat.session is not None}

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
