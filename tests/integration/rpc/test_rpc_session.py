"""One agent's session against a real door: welcome, beats, reports, and every way in which it ends."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from hub.domain.heartbeat import LastBeat
from hub.rpc.session import Session
from hub.services import clusters, owners
from machinery import conditions
from machinery.identity import cluster_name
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream, rpc_stage


async def last_beat(stage: RpcStage, cluster: str) -> LastBeat | None:
    return await stage.store.read(lambda tx: tx.heartbeats.of(cluster_name(cluster)))


async def until_session(stage: RpcStage, cluster: str, *, is_open: bool) -> None:
    async with asyncio.timeout(20):
        while True:
            last = await last_beat(stage, cluster)
            if (last is not None and last.session is not None) is is_open:
                return
            await asyncio.sleep(0.01)


async def test_a_session_is_welcomed_and_told_what_the_hub_wants(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    welcome, desired = await stream.expect("welcome"), await stream.expect("desired")
    assert welcome.hub_id == stage.parts.hub.hub_id
    assert welcome.beat_interval.ToTimedelta() == timedelta(seconds=10)
    assert desired.accepted
    assert desired.lease_duration.ToTimedelta() == timedelta(seconds=60)
    await stream.close()


@pytest.mark.parametrize("version", ["1.2\x00", "1.2\n", "1" * 65, "1.é"])
async def test_a_version_that_is_not_fit_to_be_kept_counts_as_none(stage: RpcStage, version: str) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    await stream.send(hello=wire.Hello(agent_version=version, cluster_uid="uid-1"))
    await stream.expect("welcome")
    await until_session(stage, "edge1", is_open=True)
    last = await last_beat(stage, "edge1")
    assert last is not None
    assert last.agent_version == ""
    await stream.close()


async def test_a_refusal_answers_the_hello_so_that_the_agent_reads_why(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that ends while its agent still writes tells the agent INTERNAL, and not what it has to do."""
    monkeypatch.setattr("hub.rpc.connecting.REFUSED_WITHIN", timedelta(minutes=1))  # however busy the machine is
    stream = Stream(stage.channel(await stage.bootstrap("edge1")))
    refused = asyncio.create_task(stream.status())
    await asyncio.wait({refused}, timeout=0.3)
    assert not refused.done()
    await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
    assert await refused is grpc.StatusCode.PERMISSION_DENIED
    await stream.close()


async def test_a_refusal_does_not_wait_for_a_hello_that_never_comes(stage: RpcStage) -> None:
    stream = Stream(stage.channel(await stage.bootstrap("edge1")))
    async with asyncio.timeout(20):
        assert await stream.status() is grpc.StatusCode.PERMISSION_DENIED
    await stream.close()


@pytest.mark.parametrize(("off", "status"), [(0, "True"), (3600, "False"), (-3600, "False")])
async def test_an_agents_clock_is_compared_with_the_hubs_when_its_session_begins(
    stage: RpcStage, off: int, status: str
) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    hello = wire.Hello(agent_version="1.2.3", cluster_uid="uid-1")
    hello.agent_time.FromDatetime(datetime.now(UTC) + timedelta(seconds=off))
    await stream.send(hello=hello)
    await stream.expect("welcome")
    await until_clock(stage, status)
    await stream.close()


@pytest.mark.parametrize("kind", ["hello", "status", "hubs"])
async def test_a_time_that_no_calendar_has_is_a_bad_request_and_no_defect(stage: RpcStage, kind: str) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    beyond = Timestamp(seconds=10**15)
    await stream.send(hello=wire.Hello(cluster_uid="uid-1", agent_time=beyond if kind == "hello" else None))
    if kind == "status":
        await stream.send(status=wire.StatusReport(sequence=1, complete=True, agent_time=beyond))
    if kind == "hubs":
        await stream.send(hubs=wire.Hubs(hubs=[wire.Hub(hub_id="b", name="b", credential_ends_at=beyond)]))
    assert await asyncio.wait_for(stream.status(), 20) is grpc.StatusCode.INVALID_ARGUMENT
    await stream.close()


@pytest.mark.parametrize("broken", ["read", "write"])
async def test_a_defect_beside_the_reading_ends_the_session(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1", accepted=False))
    await stream.expect("desired")

    def fail(*_: Any) -> Any:
        raise ValueError("a defect")

    if broken == "read":
        monkeypatch.setattr("hub.rpc.session.read_view", fail)
        await stage.accept("edge1")
    else:
        (session,) = stage.parts.sessions.all()
        monkeypatch.setattr(cast("Session", session)._told, "due_ack", fail)
        session.drain(timedelta(seconds=1))
    assert await asyncio.wait_for(stream.status(), 20) is grpc.StatusCode.INTERNAL
    await stream.close()


async def until_clock(stage: RpcStage, status: str) -> None:
    """Returns when the hub says that of the clock of edge1's agent."""
    async with asyncio.timeout(10):
        async for _ in stage.store.follow(0):
            found = (await stage.cluster("edge1")).get("status", {}).get("conditions", [])
            condition = conditions.find(found, conditions.CLOCK_SYNCED)
            if condition is not None and condition.status == status:
                return


async def test_a_clock_that_is_set_within_a_session_shows_with_the_next_report(stage: RpcStage) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    hello = wire.Hello(agent_version="1.2.3", cluster_uid="uid-1")
    hello.agent_time.GetCurrentTime()
    await stream.send(hello=hello)
    await stream.expect("welcome")
    await until_clock(stage, "True")
    for sequence, (off, status) in enumerate(((3600, "False"), (0, "True")), 1):
        report = wire.StatusReport(sequence=sequence, complete=True)
        report.agent_time.FromDatetime(datetime.now(UTC) + timedelta(seconds=off))
        await stream.send(status=report)
        await stream.expect("report_ack")
        await until_clock(stage, status)
    await stream.close()


async def test_a_beat_is_stored_before_it_is_acknowledged(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE))
    assert (await stream.expect("beat_ack")).sequence == 1
    last = await last_beat(stage, "edge1")
    assert last is not None
    assert last.available is True
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_UNAVAILABLE))
    assert (await stream.expect("beat_ack")).sequence == 2
    await stream.close()


async def test_an_open_session_is_on_record_and_its_end_too(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await until_session(stage, "edge1", is_open=True)
    last = await last_beat(stage, "edge1")
    assert last is not None
    assert last.agent_version == "1.2.3"
    await stream.close()
    await until_session(stage, "edge1", is_open=False)


async def test_a_status_report_is_durable_at_the_revision_of_its_acknowledgement(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    report = wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1.31.0", capacity={"cpu": "8"}, node_count=3)
    await stream.send(status=report)
    ack = await stream.expect("report_ack")
    assert (ack.sequence, ack.reason) == (1, "")
    document = await stage.cluster("edge1")
    assert document["metadata"]["resourceVersion"] == str(ack.revision)
    assert document["status"]["capacity"] == {"cpu": "8", "nodes": "3"}
    await stream.close()


async def test_a_report_for_an_addon_that_is_not_there_is_refused_for_good(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.send(addon=wire.AddOnReport(sequence=7, addon_name="nowhere"))
    ack = await stream.expect("report_ack")
    assert (ack.sequence, ack.reason) == (7, "NotFound")
    await stream.close()


async def test_a_cluster_that_is_not_accepted_learns_of_its_acceptance_and_counts_only_then(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1", accepted=False))
    assert not (await stream.expect("desired")).accepted
    await stream.send(beat=wire.Beat(sequence=1))
    await stream.send(status=wire.StatusReport(sequence=1, complete=True))
    assert (await stream.expect("report_ack")).reason == "Forbidden"
    last = await last_beat(stage, "edge1")
    assert last is None or last.at is None
    await stage.accept("edge1")
    assert (await stream.expect("desired")).accepted
    await stream.send(beat=wire.Beat(sequence=2))
    assert (await stream.expect("beat_ack")).sequence == 2
    await stream.close()


async def test_what_changes_while_a_session_is_admitted_is_told_once_it_is_open(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = await stage.enrol("edge1", accepted=False)
    run, claiming, opened = stage.store.run, asyncio.Event(), asyncio.Event()

    async def gated(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        if use_case is owners.claim:
            claiming.set()
            await opened.wait()
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(stage.store, "run", gated)
    stream = await Stream.open(stage, credential, epoch=1)
    await asyncio.wait_for(claiming.wait(), 20)
    await stage.accept("edge1")
    await stream.expect_quiet(stage)
    opened.set()
    async with asyncio.timeout(20):
        while not (await stream.expect("desired")).accepted:
            pass
    await stream.close()


async def test_a_shorter_lease_shortens_the_beat_interval(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("desired")

    def shorten(tx):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        stored = clusters.find(tx, cluster_name("edge1"))
        document = {**stored.document, "spec": {**stored.document["spec"], "leaseDurationSeconds": 2}}
        clusters.put(tx, document, stored, ADMIN)

    await stage.store.run(shorten)
    assert (await stream.expect("beat_ack")).next_interval.ToTimedelta() == timedelta(seconds=2)
    assert (await stream.expect("desired")).lease_duration.ToTimedelta() == timedelta(seconds=2)
    await stream.close()


async def test_where_many_are_connected_each_is_told_with_an_acknowledgement_to_beat_more_seldom(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, beats_per_second=0.08) as stage:  # one every 12.5 s
        first = await Stream.open(stage, await stage.enrol("edge1"))
        assert (await first.expect("welcome")).beat_interval.ToTimedelta() == timedelta(seconds=10)
        second = await Stream.open(stage, await stage.enrol("edge2"))
        assert (await second.expect("welcome")).beat_interval.ToTimedelta() == timedelta(seconds=15)
        await first.send(beat=wire.Beat(sequence=1))
        told = await first.expect("beat_ack")
        assert (told.sequence, told.next_interval.ToTimedelta()) == (1, timedelta(seconds=25))
        await second.close()
        await until_session(stage, "edge2", is_open=False)
        await first.send(beat=wire.Beat(sequence=2))
        told = await first.expect("beat_ack")
        assert (told.sequence, told.next_interval.ToTimedelta()) == (2, timedelta(seconds=15))
        await first.send(beat=wire.Beat(sequence=3))
        assert not (await first.expect("beat_ack")).HasField("next_interval")
        await first.close()


async def test_a_beat_that_ends_a_silence_restores_the_agents_own_verdict_at_once(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_UNAVAILABLE))
    await stream.expect("beat_ack")
    unknown = conditions.Condition(conditions.AVAILABLE, conditions.UNKNOWN, "ManagedClusterLeaseUpdateStopped", "")
    await stage.store.run(clusters.set_condition, cluster_name("edge1"), unknown, ADMIN)
    await stage.silence_noticed()
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_UNAVAILABLE))
    await stream.expect("beat_ack")
    available = next(c for c in (await stage.cluster("edge1"))["status"]["conditions"] if c["type"] == conditions.AVAILABLE)
    assert available["status"] == conditions.FALSE
    await stream.close()


async def test_a_newer_session_of_the_same_agent_supersedes(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    older = await Stream.open(stage, credential)
    await older.expect("welcome")
    newer = await Stream.open(stage, credential)
    await newer.expect("welcome")
    assert await older.status() is grpc.StatusCode.ABORTED
    await newer.send(beat=wire.Beat(sequence=1))
    await newer.expect("beat_ack")
    await until_session(stage, "edge1", is_open=True)
    await older.close()
    await newer.close()


async def test_a_session_ends_with_its_certificate(stage: RpcStage) -> None:
    brief = replace(stage.lifetimes, agent=timedelta(seconds=4))
    stream = await Stream.open(stage, await stage.enrol("edge1", lifetimes=brief))
    await stream.expect("welcome")
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    await stream.close()


async def test_a_session_ends_when_its_certificate_is_revoked(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("welcome")
    (record,) = await stage.records("edge1")
    await stage.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "test"))
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    await stream.close()


async def test_a_session_whose_certificate_is_revoked_while_it_opens_never_does(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    known = len(stage.parts.peers)
    stream = Stream(stage.channel(credential))
    waiting = asyncio.create_task(stream.status())
    async with asyncio.timeout(20):
        while len(stage.parts.peers) == known:  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.01)
    told = asyncio.Event()
    stage.parts.peers.listen(lambda _serial: told.set())
    (record,) = await stage.records("edge1")
    await stage.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "test"))
    await asyncio.wait_for(told.wait(), 20)
    await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
    assert await asyncio.wait_for(waiting, 20) is grpc.StatusCode.UNAUTHENTICATED
    assert stage.parts.sessions.opened == 0
    await stream.close()


async def test_a_session_ends_with_its_cluster(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("welcome")
    name = cluster_name("edge1")
    await stage.store.run(lambda tx: clusters.remove(tx, clusters.find(tx, name), ADMIN))
    assert await stream.status() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED)
    await stream.close()


async def test_a_copy_of_the_credential_in_another_cluster_is_noticed(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"), uid="uid-of-another")
    assert await stream.status() is grpc.StatusCode.ALREADY_EXISTS
    await stream.close()


async def test_a_bootstrap_credential_opens_no_session(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.bootstrap("edge1"))
    assert await stream.status() is grpc.StatusCode.PERMISSION_DENIED
    await stream.close()


async def test_a_first_message_that_is_no_hello_is_refused(stage: RpcStage) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    await stream.send(beat=wire.Beat(sequence=1))
    assert await stream.status() is grpc.StatusCode.INVALID_ARGUMENT
    await stream.close()


async def test_what_a_newer_agent_says_beyond_this_version_does_no_harm(stage: RpcStage) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    raw = stream.raw()
    unknown_field = b"\xfa\x3e\x03new"  # field 1007, a string
    await raw.write(wire.AgentMessage(hello=wire.Hello(cluster_uid="uid-1")).SerializeToString() + unknown_field)
    await raw.write(b"\x9a\x06\x00")  # oneof member 99, an empty message
    await raw.write(wire.AgentMessage(beat=wire.Beat(sequence=1)).SerializeToString() + unknown_field)
    kinds = [wire.HubMessage.FromString(await raw.read()).WhichOneof("message") for _ in range(3)]
    assert kinds == ["welcome", "desired", "beat_ack"]
    raw.cancel()
    await stream.close()


async def test_the_door_drains_sessions_before_it_closes(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("welcome")
    await stage.door.refuse()
    draining = asyncio.create_task(stage.door.drain(timedelta(seconds=5)))
    assert (await stream.expect("drain")).reconnect_after.ToTimedelta() > timedelta()
    await asyncio.wait_for(draining, 20)
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE
    assert len(stage.parts.sessions) == 0
    last = await last_beat(stage, "edge1")
    assert last is not None
    assert last.session is None
    late = await Stream.open(stage, await stage.bootstrap("edge2"))
    assert await late.status() is grpc.StatusCode.UNAVAILABLE
    await late.close()
    await stream.close()
