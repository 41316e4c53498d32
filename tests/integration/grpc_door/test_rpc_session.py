"""One agent's session: welcome, heartbeats and their acknowledgements, reports, and ends that the session decides."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.grpc_door.session import servicer as connecting
from hub.grpc_door.session.acknowledgements import Deferred, spacing
from hub.grpc_door.session.stream import Session
from hub.ports import Transaction
from hub.registry import owners
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, MusterError, TooManyRequestsError
from machinery.identity import cluster_name
from machinery.meta import conditions
from machinery.runtime.clock import SystemClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.next_step import SessionLoss
from spoke.domain.schedule import Detection
from spoke.ports.hub import ClientIdentity, HubAddress, HubLostError, SessionHello
from spoke.transports.grpc.channel import WELCOME_TIMEOUTS, HubBackoff
from spoke.transports.grpc.client import GrpcHubClient
from tests.checks import present
from tests.fakes.rpc_stage import ADMIN, INTERVAL, RpcStage, Stream, rpc_stage, until_found
from tests.fakes.stage import until

EDGE = cluster_name("edge1")
UNKNOWN = conditions.Condition(conditions.AVAILABLE, conditions.UNKNOWN, "ManagedClusterLeaseUpdateStopped", "")


async def condition(stage: RpcStage, kind: str) -> str:
    found = conditions.find((await stage.cluster("edge1")).get("status", {}).get("conditions", []), kind)
    return found.status if found else ""


async def test_session_is_recorded_and_its_beats_and_reports_are_stored_before_acknowledgement(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    welcome, desired = await stream.expect("welcome"), await stream.expect("desired")
    assert (welcome.hub_id, welcome.beat_interval.ToTimedelta()) == (stage.parts.hub_id, timedelta(seconds=10))
    assert (desired.accepted, desired.lease_duration.ToTimedelta()) == (True, timedelta(seconds=60))
    await stage.session_recorded(is_open=True)
    assert (await stage.last_beat()).agent_version == "1.2.3"

    await stream.beat(1)
    assert (await stage.last_beat()).available is True
    await stream.beat(2, wire.VERDICT_UNAVAILABLE)

    ack = await stream.report(complete=True, kubernetes_version="v1.31.0", capacity={"cpu": "8"}, node_count=3)
    assert ack.reason == ""
    document = await stage.cluster("edge1")
    assert document["metadata"]["resourceVersion"] == str(ack.revision)
    assert document["status"]["capacity"] == {"cpu": "8", "nodes": "3"}
    await stream.send(addon=wire.AddOnReport(sequence=7, addon_name="nowhere"))
    ack = await stream.expect("report_ack")
    assert (ack.sequence, ack.reason) == (7, "NotFound")

    await stream.close()
    await stage.session_recorded(is_open=False)


async def test_invalid_agent_version_is_recorded_as_none(stage: RpcStage) -> None:
    credential, recorded = await stage.enrol("edge1"), {}
    for version in ("1.2\x00", "1.2\n", "1" * 65, "1.é"):
        stream = Stream(stage.channel(credential))
        await stream.send(hello=wire.Hello(agent_version=version, cluster_uid="uid-1"))
        await stage.session_recorded(is_open=True)
        recorded[version] = (await stage.last_beat()).agent_version
        await stream.close()
        await stage.session_recorded(is_open=False)
    assert recorded == dict.fromkeys(recorded, "")


async def test_bad_first_messages_and_impossible_times_end_the_stream_with_a_status(stage: RpcStage) -> None:
    agent, beyond = await stage.enrol("edge1"), Timestamp(seconds=10**15)
    hello = wire.AgentMessage(hello=wire.Hello(cluster_uid="uid-1"))
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    late_hub = wire.Hub(hub_id="b", name="b", credential_ends_at=beyond)
    early = wire.Hello(cluster_uid="uid-1", agent_time=beyond)
    late = wire.StatusReport(sequence=1, complete=True, agent_time=beyond)
    odd = wire.Hello(cluster_uid="uid-1", trusted_authorities=["everything"])
    bootstrap, refused = await stage.bootstrap("edge1"), grpc.StatusCode.PERMISSION_DENIED
    text = wire.AgentMessage
    rows = {
        "bootstrap credential": (bootstrap, [hello], refused),
        "bootstrap credential that sends nothing": (bootstrap, [], refused),
        "uid of another cluster": (agent, [text(hello=wire.Hello(cluster_uid="another"))], grpc.StatusCode.ALREADY_EXISTS),
        "beat before hello": (agent, [text(beat=wire.Beat(sequence=1))], invalid),
        "time of hello": (agent, [text(hello=early)], invalid),
        "time of report": (agent, [hello, text(status=late)], invalid),
        "time in list of hubs": (agent, [hello, text(hubs=wire.Hubs(hubs=[late_hub]))], invalid),
        "fingerprints": (agent, [text(hello=odd)], invalid),
    }
    codes = {}
    for name, (credential, messages, _) in rows.items():
        stream = Stream(stage.channel(credential))
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await stream.call.write(message)
        codes[name] = await stream.status()
    assert codes == {name: code for name, (_, _, code) in rows.items()}


async def test_refusal_follows_the_hello_so_that_agents_read_it(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that ends while its agent still writes ends with INTERNAL at the agent."""
    monkeypatch.setattr(connecting, "REFUSED_WITHIN", timedelta(minutes=1))
    read_hello, waits = connecting._read_hello, asyncio.Event()

    async def noticed(context: Any) -> None:
        waits.set()
        await read_hello(context)

    monkeypatch.setattr(connecting, "_read_hello", noticed)
    stream = Stream(stage.channel(await stage.bootstrap("edge1")))
    refused = asyncio.create_task(stream.status())
    await asyncio.wait_for(waits.wait(), 20)
    assert not refused.done()
    await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
    assert await refused is grpc.StatusCode.PERMISSION_DENIED


async def test_clock_condition_follows_the_times_in_hellos_and_reports(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1", accepted=False)

    def off_by(seconds: int) -> Timestamp:
        stamp = Timestamp()
        stamp.FromDatetime(datetime.now(UTC) + timedelta(seconds=seconds))
        return stamp

    async def is_synced(status: str) -> None:
        async def found() -> bool:
            return await condition(stage, conditions.CLOCK_SYNCED) == status

        await until_found(found)

    early = await stage.welcomed(credential, agent_time=off_by(3600))
    await early.report(complete=True, agent_time=off_by(3600))
    await stage.parts.clocks.write()
    await stage.accept("edge1")
    while await condition(stage, conditions.CLOCK_SYNCED) != "False":
        await early.report(complete=True, agent_time=off_by(3600))
    for seconds, status in ((-3600, "False"), (0, "True"), (3600, "False")):
        stream = await stage.welcomed(credential, agent_time=off_by(seconds))
        await is_synced(status)
    for sequence, (seconds, status) in enumerate(((0, "True"), (3600, "False"), (0, "True")), 1):
        await stream.report(sequence, complete=True, agent_time=off_by(seconds))
        await is_synced(status)


async def test_defect_in_a_reader_or_writer_ends_the_session(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = await stage.enrol("edge1", accepted=False)

    def fail(*_: Any) -> Any:
        raise ValueError("a defect")

    stream = await Stream.open(stage, credential)
    await stream.expect("desired")
    with monkeypatch.context() as patched:
        patched.setattr("hub.grpc_door.session.stream.read_view", fail)
        await stage.accept("edge1")
        assert await stream.status() is grpc.StatusCode.INTERNAL
    stream = await Stream.open(stage, credential)
    await stream.expect("desired")
    (session,) = stage.parts.sessions.all()
    monkeypatch.setattr(cast("Session", session).acks, "due_ack", fail)
    session.drain(timedelta(seconds=1))
    assert await stream.status() is grpc.StatusCode.INTERNAL


async def test_cluster_learns_of_its_acceptance_and_its_beats_count_only_then(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1", accepted=False), epoch=1)
    assert not (await stream.expect("desired")).accepted
    await stream.send(beat=wire.Beat(sequence=1))
    assert (await stream.report(complete=True)).reason == "Forbidden"
    assert (await stage.last_beat()).at is None
    await stage.accept("edge1")
    assert (await stream.expect("desired")).accepted
    await stream.beat(2)


async def test_change_during_admission_is_sent_when_the_session_opens(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    credential = await stage.enrol("edge1", accepted=False)
    run, claiming, opened, changed = stage.store.run, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def gated(use_case: Any, *args: Any, **kwargs: Any) -> Any:
        if use_case is owners.claim:
            claiming.set()
            await opened.wait()
        return await run(use_case, *args, **kwargs)

    monkeypatch.setattr(stage.store, "run", gated)
    stream = await Stream.open(stage, credential, epoch=1)
    await asyncio.wait_for(claiming.wait(), 20)
    with stage.parts.feed.subscribe(MANAGED_CLUSTERS, EDGE, changed.set):
        await stage.accept("edge1")
        await asyncio.wait_for(changed.wait(), 20)
    opened.set()
    async with asyncio.timeout(20):
        while not (await stream.expect("desired")).accepted:
            pass


async def test_end_of_a_silence_restores_the_verdict_and_a_shorter_lease_shortens_the_interval(stage: RpcStage) -> None:
    stream = await stage.welcomed(await stage.enrol("edge1"))
    await stream.beat(1, wire.VERDICT_UNAVAILABLE)
    await stage.store.run(clusters.set_condition, EDGE, UNKNOWN, ADMIN)
    await stream.beat(2, wire.VERDICT_UNAVAILABLE)

    async def is_restored() -> bool:  # the session may read of the silence before or after this beat
        return await condition(stage, conditions.AVAILABLE) == conditions.FALSE

    await until_found(is_restored)

    def shorten(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        clusters.put(tx, {**stored.document, "spec": {**stored.document["spec"], "leaseDurationSeconds": 2}}, stored, ADMIN)

    await stage.store.run(shorten)
    assert (await stream.expect("beat_ack")).next_interval.ToTimedelta() == timedelta(seconds=2)
    assert (await stream.expect("desired")).lease_duration.ToTimedelta() == timedelta(seconds=2)


async def test_beat_interval_grows_with_the_number_of_sessions_and_shrinks_again(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, beats_per_second=0.08) as stage:  # one every 12.5 s
        first = await Stream.open(stage, await stage.enrol("edge1"))
        assert (await first.expect("welcome")).beat_interval.ToTimedelta() == timedelta(seconds=10)
        second = await Stream.open(stage, await stage.enrol("edge2"))
        assert (await second.expect("welcome")).beat_interval.ToTimedelta() == timedelta(seconds=15)
        assert (await first.beat(1)).next_interval.ToTimedelta() == timedelta(seconds=25)
        await second.close()
        await stage.session_recorded("edge2", is_open=False)
        assert (await first.beat(2)).next_interval.ToTimedelta() == timedelta(seconds=15)
        assert not (await first.beat(3)).HasField("next_interval")


async def test_session_whose_certificate_is_revoked_while_it_opens_is_refused(stage: RpcStage) -> None:
    credential, known = await stage.enrol("edge1"), len(stage.parts.peers)
    stream = Stream(stage.channel(credential))
    waiting = asyncio.create_task(stream.status())
    async with asyncio.timeout(20):
        while len(stage.parts.peers) == known:  # noqa: ASYNC110 - nobody is notified of it
            await asyncio.sleep(0.01)
    revoked = asyncio.Event()
    stage.parts.peers.listen(lambda _serials: revoked.set())
    (record,) = await stage.records("edge1")
    await stage.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "test"))
    await asyncio.wait_for(revoked.wait(), 20)
    await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
    assert await waiting is grpc.StatusCode.UNAUTHENTICATED
    assert stage.parts.sessions.opened == 0


async def test_unknown_fields_and_messages_of_a_newer_agent_do_no_harm(stage: RpcStage) -> None:
    raw = Stream(stage.channel(await stage.enrol("edge1"))).raw()
    unknown_field = b"\xfa\x3e\x03new"  # field 1007, a string
    await raw.write(wire.AgentMessage(hello=wire.Hello(cluster_uid="uid-1")).SerializeToString() + unknown_field)
    await raw.write(b"\x9a\x06\x00")  # oneof member 99, an empty message
    await raw.write(wire.AgentMessage(beat=wire.Beat(sequence=1)).SerializeToString() + unknown_field)
    kinds = [wire.HubMessage.FromString(await raw.read()).WhichOneof("message") for _ in range(3)]
    assert kinds == ["welcome", "desired", "beat_ack"]
    raw.cancel()


SPACING = spacing(timedelta(seconds=60), INTERVAL)


class Recorded(Deferred):
    """Calls back only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[tuple[float, Callable[[], None]], None] = {}

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        self.calls[when, call] = None


async def test_fast_beats_share_an_acknowledgement_and_the_first_beat_of_a_session_has_its_own(stage: RpcStage) -> None:
    credential, deferred, time = await stage.enrol("edge1"), Recorded(), 1000.0
    object.__setattr__(stage.parts, "deferred", deferred)  # the same parts are the running door's

    async def opened(ack_timeout: int) -> Stream:
        before = stage.parts.sessions.all()
        stream = await Stream.open(stage, credential, ack_timeout_seconds=ack_timeout)
        await stream.expect("desired")
        (session,) = (each for each in stage.parts.sessions.all() if each not in before)
        cast("Session", session)._now = lambda: time
        return stream

    stream = await opened(0)
    await stream.beat(1)
    assert not deferred.calls

    for sequence in range(2, 8):
        await stream.send(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE))
        await until(lambda: stage.parts.beats.counts.stored == sequence)  # noqa: B023 - each beat is stored by its own flush
    ((due, acknowledge),) = deferred.calls
    assert due == time + SPACING
    time = due
    acknowledge()
    assert (await stream.expect("beat_ack")).sequence == 7

    time += SPACING
    await stream.beat(8)
    assert len(deferred.calls) == 1, "a beat after a pause does not wait"

    await (await opened(10)).beat(1)
    assert len(deferred.calls) == 1, "neither does the first beat of a session"


async def test_session_that_ends_is_sent_what_is_stored_and_ignores_what_comes_later(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    stream = await stage.welcomed(credential)
    await stream.beat(1)
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_UNAVAILABLE))
    await until(lambda: stage.parts.beats.counts.stored == 2)
    ended = cast("Session", stage.parts.sessions.all()[0])
    ended.end(ConflictError("superseded"))
    assert (await stream.expect("beat_ack")).sequence == 2
    assert await stream.status() is grpc.StatusCode.ABORTED
    stream = await stage.welcomed(credential)
    left = cast("Session", stage.parts.sessions.all()[0])
    await stream.close()
    await stage.session_recorded(is_open=False)
    for session in (ended, left):  # stored beats, changes and revocations may still reach it
        session.acknowledge(3, ended_silence=True)
        session.reconsider()
        session.end(ConflictError("revoked"))


async def test_ended_session_is_freed_without_garbage_collection(stage: RpcStage) -> None:
    """Only a full collection examines old objects. It is rare, and stops a hub with many sessions."""
    credential = await stage.enrol("edge1")
    leaving: tuple[Callable[[Stream], Awaitable[object]], ...] = (
        *(Stream.close, lambda stream: stream.call.done_writing(), lambda stream: stream.send(farewell=wire.Farewell())),
    )

    def known() -> int:
        return sum(type(each) is Session for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for leave in leaving:
            stream = await stage.welcomed(credential)
            await stream.beat(1)
            await leave(stream)
            await until(lambda: known() == 0)
        await (await stage.welcomed(credential)).beat(1)
        await stage.welcomed(credential)  # the hub ends the first session
        await until(lambda: known() == 1)
    finally:
        gc.enable()


@pytest.mark.parametrize("is_stored", [False, True], ids=["while it lies in the buffer", "when it was acknowledged"])
async def test_silence_noticed_at_the_moment_of_a_beat_ends_with_that_beat(tmp_path: Path, *, is_stored: bool) -> None:
    """The agent was acknowledged, and may not beat again for half a minute."""
    async with rpc_stage(tmp_path, flush_window=timedelta(minutes=1)) as stage:
        stream = await stage.welcomed(await stage.enrol("edge1"))
        await stream.beat(1, wire.VERDICT_UNAVAILABLE)
        await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_AVAILABLE))
        await until(lambda: len(stage.parts.beats) == 1)
        if is_stored:
            await stage.parts.beats.flush()
        await stage.store.run(clusters.set_condition, EDGE, UNKNOWN, ADMIN)

        async def is_available() -> bool:
            await stage.parts.beats.flush()
            return await condition(stage, conditions.AVAILABLE) == conditions.TRUE

        await until_found(is_available)


async def test_agent_reports_how_long_it_really_waits(stage: RpcStage) -> None:
    """`--hub-silence` is the operator's, and the hub is to be faster than that."""
    reported: list[float] = []
    credential = await stage.enrol("edge1")
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    identity, backoff = ClientIdentity(credential.chain, credential.key), HubBackoff()
    backoff.silent(address.target)
    for silence in (2, 5, 60):
        client = GrpcHubClient(address, identity, SystemClock(), Detection(silence=timedelta(seconds=silence)), backoff)
        async with asyncio.timeout(20), client.session(SessionHello("uid-1")):
            reported += (cast("Session", session).acks.ack_timeout.total_seconds() for session in stage.parts.sessions.all())
        await client.close()
        await stage.parts.sessions.none()
    assert reported == [4, 10, 10]
    assert backoff.timeout(address.target) == WELCOME_TIMEOUTS[0], "the hub has answered"


async def test_agents_of_a_busy_hub_retry_less_often_and_do_not_connect_again_to_find_the_cause(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy() -> None:
        raise TooManyRequestsError("busy", retry_after=timedelta(seconds=1))

    credential = await stage.enrol("edge1")
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    backoff, losses, refusals = HubBackoff(), list[HubLostError](), list[MusterError]()
    monkeypatch.setattr("spoke.transports.grpc.client.diagnose", None)

    async def attempt() -> None:
        client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock(), backoff=backoff)
        try:
            async with asyncio.timeout(20), client.session(SessionHello("uid-1")):
                pass
        except HubLostError as lost:
            losses.append(lost)
            with pytest.raises(TooManyRequestsError) as refused:
                await client.info()
            refusals.append(refused.value)
        await client.close()

    with monkeypatch.context() as patched:
        patched.setattr(stage.parts.limits, "begin", busy)
        for _ in range(4):
            await attempt()
    assert {(lost.loss, lost.message) for lost in losses} == {(SessionLoss.UNREACHABLE, "busy")}
    pauses = [present(error.retry_after).total_seconds() for pair in zip(losses, refusals, strict=True) for error in pair]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (2, 4, 8, 16, 32, 60, 60, 60), strict=True)), pauses
    await attempt()
    assert len(losses) == 4
    assert backoff.pause(address.target) <= timedelta(seconds=2), "the hub has answered"
