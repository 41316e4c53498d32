"""The listener: its port and certificates, health, and its stop, at which sessions are asked to leave and end evenly."""

import asyncio
import ssl
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from hub.grpc_door.server import TO_LEAVE, RpcDoor
from hub.issuer.local import ServingNames
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.errors import InvalidError, MusterError
from machinery.lifecycle.startup import StartError
from machinery.runtime.clock import SystemClock
from machinery.runtime.event_loop import LEAST_RATE
from machinery.runtime.tls import Material, client_context, shown_certificate
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.checks import check_refusal, check_refusal_of
from tests.fakes.authority import OtherCA
from tests.fakes.rpc_stage import PATIENT, PENDING, RpcStage, Stream, following, refusal, rpc_stage, submission
from tests.fakes.stage import until
from tests.trials import soaked, trials

STREAMS = trials(test=20, soak=2_000)
GRACE = timedelta(seconds=trials(test=6, soak=10))
AT_ONCE = 50
GET_HUB = registration.GetHubRequest()
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def test_taken_port_is_reported_and_health_is_served_until_the_door_closes(stage: RpcStage) -> None:
    second = RpcDoor("127.0.0.1", stage.door.port, stage.serving, stage.parts)
    try:
        await check_refusal_of(StartError, second.start(), match=f"{stage.door.port}.*in use.*--grpc-listen")
    finally:
        await second.close(timedelta())
    stub: Any = HealthStub(stage.channel(await stage.bootstrap("edge1")))  # type: ignore[no-untyped-call]
    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    await stage.door.refuse()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    async with asyncio.timeout(20):
        assert await watch.read() is aio.EOF


async def test_trusted_cas_and_serving_certificate_are_replaced_while_it_serves(stage: RpcStage, tmp_path: Path) -> None:
    """A certificate of a trusted CA gets as far as the records, where a stranger has none."""
    other, before = OtherCA(), stage.serving.material
    stranger, mine = other.issue("x"), await stage.bootstrap("edge1")
    kept = stage.stub(mine)

    async def code_for_stranger() -> grpc.StatusCode:
        return (await refusal(stage.stub(stranger).GetHub(GET_HUB))).code

    assert (await kept.GetHub(GET_HUB)).hub_id
    assert await code_for_stranger() is UNAVAILABLE
    stage.serving.replace(replace(before, trust=before.trust + other.certificate))
    assert await code_for_stranger() is grpc.StatusCode.UNAUTHENTICATED
    assert (await stage.stub(mine).GetHub(GET_HUB)).hub_id
    stage.serving.replace(before)
    assert await code_for_stranger() is UNAVAILABLE
    assert (await kept.GetHub(GET_HUB)).hub_id

    check_refusal(InvalidError, stage.serving.replace, Material(before.chain, pki.generate_key(), before.trust))
    assert stage.serving.material is before
    assert client_context(before.trust)
    shown, folder = await shown_certificate("localhost", stage.door.port), tmp_path / "next"
    folder.mkdir()
    material = stage.issuer.current.serving(folder, ServingNames(("localhost",)), stage.lifetimes, SystemClock().now())
    stage.serving.replace(material)
    assert shown != await shown_certificate("localhost", stage.door.port) == ssl.PEM_cert_to_DER_cert(material.chain.decode())
    assert (await stage.stub(mine).GetHub(GET_HUB)).hub_id


async def test_calls_at_a_stop_are_answered_or_refused_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.grpc_door.server.QUIET_TIMEOUT", timedelta(minutes=1))  # a busy machine needs longer for so many
    possible = {
        grpc.StatusCode.OK,
        UNAVAILABLE,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }  # the last: a busy hub let it wait too long
    async with rpc_stage(tmp_path, **PATIENT) as stage:
        stub, credential = stage.stub(await stage.bootstrap("edge1")), await stage.bootstrap("edge2")
        calls = [stub.GetHub(GET_HUB) for _ in range(200)]
        await calls[0].code()
        await stage.door.stop_listening()
        assert {await call.code() for call in calls} <= possible
        assert await Stream(stage.channel(credential)).status() is UNAVAILABLE
        calls = [stub.GetHub(GET_HUB) for _ in range(200)]
        await stage.door.refuse()
        await stage.door.drain(timedelta(seconds=5))
        await stage.door.close(timedelta(seconds=1))
        assert {await call.code() for call in calls} <= possible


@dataclass
class End:
    """How one agent saw the stop."""

    reconnect_after: timedelta = timedelta()
    code: grpc.StatusCode | None = None
    acknowledged: int = 0


async def seen(stream: Stream, *, leaves: bool = False) -> End:
    """Reads to the end, answering a drain with one more beat, as an agent does that has something to report.

    One that `leaves` ends its stream when that beat is acknowledged; the others wait until the hub ends it.
    """
    end = End()
    try:
        while isinstance(message := await stream.call.read(), wire.HubMessage):
            kind = message.WhichOneof("message")
            if kind == "drain":
                end.reconnect_after = message.drain.reconnect_after.ToTimedelta()
                await stream.send(beat=wire.Beat(sequence=7))
            elif kind == "beat_ack":
                end.acknowledged = max(end.acknowledged, message.beat_ack.sequence)
                if leaves:
                    await stream.call.done_writing()
        end.code = await stream.call.code()
    except aio.AioRpcError as error:
        end.code = error.code()
    return end


@dataclass
class Acted:
    """When the door asked one session to leave, and when it ended it."""

    asked: float = 0.0
    ended: float = 0.0


def recorded(session: Any) -> Acted:
    acted, drain, end, loop = Acted(), session.drain, session.end, asyncio.get_running_loop()

    def drained(reconnect_after: timedelta) -> None:
        acted.asked = loop.time()
        drain(reconnect_after)

    def ended(error: MusterError) -> None:
        acted.ended = acted.ended or loop.time()
        end(error)

    session.drain, session.end = drained, ended
    return acted


async def sessions(stage: RpcStage, count: int) -> list[Stream]:
    """Open sessions, each of a cluster of its own."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def open_one(number: int) -> Stream:
        async with slots:
            return await stage.welcomed(await stage.enrol(f"edge{number}"))

    return await asyncio.gather(*(open_one(number) for number in range(count)))


@soaked(STREAMS)
async def test_sessions_end_evenly_at_a_stop_with_their_last_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That no more end at once than the rate allows is shown in virtual time, with `machinery.runtime.event_loop`."""
    monkeypatch.setattr(
        "hub.grpc_door.server.TO_LEAVE", timedelta(minutes=1)
    )  # the agents leave before, however busy the machine is
    async with rpc_stage(tmp_path, **PATIENT) as stage:
        streams = await sessions(stage, STREAMS)
        silent, late = Stream(stage.channel(await stage.enrol("silent"))), await stage.bootstrap("late")
        stub = stage.stub(await stage.bootstrap("waits"))
        await stage.join(stub, "waits")
        followed = stub.FollowRequest(following((await stub.SubmitRequest(submission("waits"))).name))
        assert (await followed.read()).state == PENDING
        await until(lambda: stage.parts.gate.in_flight >= STREAMS + 2)
        reading = [asyncio.create_task(seen(stream, leaves=True)) for stream in streams]
        acts = [recorded(session) for session in stage.parts.sessions.all()]
        await stage.door.refuse()
        await stage.door.drain(GRACE - TO_LEAVE + timedelta(minutes=1))
        ends = await asyncio.gather(*reading)
        assert await followed.code() is UNAVAILABLE
        assert await silent.status() is UNAVAILABLE, "it has sent no hello"
        assert len(stage.parts.sessions) == 0
        assert (await stage.last_beat()).session is None
        assert await (await Stream.open(stage, late)).status() is UNAVAILABLE
    rate = max(LEAST_RATE, STREAMS / (GRACE.total_seconds() - 1))
    assert all(end.reconnect_after > timedelta() for end in ends)
    assert {end.acknowledged for end in ends} == {7}, "what was reported in the meantime is stored"
    moments = sorted(act.asked for act in acts)
    assert moments[-1] - moments[0] > 0.8 * (STREAMS - 1) / rate, "evenly, not at once"


async def test_a_session_that_does_not_leave_is_ended_after_the_time_to_open_another(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, **PATIENT) as stage:
        (stream,) = await sessions(stage, 1)
        reading, (act,) = asyncio.create_task(seen(stream)), [recorded(session) for session in stage.parts.sessions.all()]
        await stage.door.refuse()
        await stage.door.drain(GRACE)
    assert (await reading).code is UNAVAILABLE
    assert act.ended - act.asked > TO_LEAVE.total_seconds() - 0.001


async def test_sessions_that_cannot_end_evenly_in_time_end_together(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, **PATIENT) as stage:
        reading = [asyncio.create_task(seen(stream)) for stream in await sessions(stage, 3)]
        await stage.door.refuse()
        await stage.door.drain(timedelta(milliseconds=200))
        assert {end.code for end in await asyncio.gather(*reading)} == {UNAVAILABLE}


async def connecting(stage: RpcStage, credential: Credential) -> Stream:
    """A stream that has passed the gate and has sent no hello."""
    before, stream = stage.parts.gate.in_flight, Stream(stage.channel(credential))
    await until(lambda: stage.parts.gate.in_flight > before)
    return stream


async def test_drained_replica_takes_no_session_and_keeps_those_that_have_not_left(stage: RpcStage) -> None:
    agent, other = await stage.enrol("edge1"), await stage.enrol("edge2")
    hello = wire.Hello(agent_version="1.2.3", cluster_uid="uid-1")
    stays, late = await stage.welcomed(agent), await connecting(stage, other)
    stage.parts.cordon.order(True)  # noqa: FBT003 - what is ordered
    assert "drained" in (await stays.expect("drain")).reason
    await stays.beat(3)
    refused = await Stream.open(stage, other, epoch=5)
    assert await refused.status() is UNAVAILABLE
    assert "drained" in str(await refused.call.details())
    await late.send(hello=hello)
    assert await late.status() is UNAVAILABLE
    await check_refusal_of(AssertionError, stage.last_beat("edge2"), match="edge2 has neither")
    stage.parts.cordon.order(False)  # noqa: FBT003 - likewise
    await stage.welcomed(other)
    assert len(stage.parts.sessions) == 2

    late = await connecting(stage, other)
    stage.parts.gate.close()  # after it has passed: its session would open after the drain has counted them
    await late.send(hello=hello)
    assert await late.status() is UNAVAILABLE
    assert len(stage.parts.sessions) == 2
