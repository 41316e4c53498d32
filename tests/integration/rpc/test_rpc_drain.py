"""Many streams at a stop: each is told to leave before it is ended, and they end evenly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.rpc.door import TO_LEAVE
from machinery import pki
from machinery.errors import MusterError
from machinery.identity import agent_id, agent_subject, cluster_name
from machinery.kubeconfig import Credential
from machinery.pacing import LEAST_RATE
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import RpcStage, Stream
from tests.trials import soaked, trials

STREAMS = trials(test=100, soak=2_000)
GRACE = timedelta(seconds=trials(test=6, soak=10))
WINDOW = 0.1
AT_ONCE = 50


@dataclass
class End:
    """How one agent saw the stop."""

    reconnect_after: timedelta = timedelta()
    code: grpc.StatusCode | None = None
    acknowledged: int = 0


async def opened(stage: RpcStage, name: str) -> Stream:
    """A session that has said hello and was welcomed; its beats count."""
    stream = await Stream.open(stage, await stage.enrol(name))
    await stream.expect("welcome")
    return stream


async def seen(stream: Stream) -> End:
    """Reads to the end, answering a drain with one more beat, as an agent does that has something to tell."""
    end = End()
    try:
        while isinstance(message := await stream.call.read(), wire.HubMessage):
            kind = message.WhichOneof("message")
            if kind == "drain":
                end.reconnect_after = message.drain.reconnect_after.ToTimedelta()
                await stream.send(beat=wire.Beat(sequence=7))
            elif kind == "beat_ack":
                end.acknowledged = max(end.acknowledged, message.beat_ack.sequence)
        end.code = await stream.call.code()
    except aio.AioRpcError as error:
        end.code = error.code()
    return end


@dataclass
class Acted:
    """When the door told one session to leave, and when it ended it. What agents see of it depends on the machine's load."""

    told: float = 0.0
    ended: float = 0.0


def recorded(session: Any) -> Acted:
    acted, drain, end, loop = Acted(), session.drain, session.end, asyncio.get_running_loop()

    def drained(reconnect_after: timedelta) -> None:
        acted.told = loop.time()
        drain(reconnect_after)

    def ended(error: MusterError) -> None:
        acted.ended = acted.ended or loop.time()
        end(error)

    session.drain, session.end = drained, ended
    return acted


@asynccontextmanager
async def sessions(stage: RpcStage, count: int) -> AsyncIterator[list[Stream]]:
    """Many open sessions, each of a cluster of its own."""
    slots = asyncio.Semaphore(AT_ONCE)
    streams: list[Stream] = []

    async def open_one(number: int) -> None:
        async with slots:
            streams.append(await opened(stage, f"edge{number}"))

    try:
        await asyncio.gather(*(open_one(number) for number in range(count)))
        yield streams
    finally:
        await asyncio.gather(*(stream.close() for stream in streams))


@soaked(STREAMS)
async def test_sessions_are_told_to_leave_and_end_evenly_and_their_last_beats_are_kept(stage: RpcStage) -> None:
    async with sessions(stage, STREAMS) as streams:
        reading = [asyncio.create_task(seen(stream)) for stream in streams]
        acts = [recorded(session) for session in stage.parts.sessions.all()]
        await stage.door.refuse()
        await stage.door.drain(GRACE)
        ends = await asyncio.gather(*reading)
    rate = max(LEAST_RATE, STREAMS / (GRACE.total_seconds() - 1))
    assert {end.code for end in ends} == {grpc.StatusCode.UNAVAILABLE}
    assert all(end.reconnect_after > timedelta() for end in ends)
    assert {end.acknowledged for end in ends} == {7}, "what was told in the meantime is stored"
    assert all(act.ended - act.told > TO_LEAVE.total_seconds() - 0.001 for act in acts), "time to open a session elsewhere"
    moments = sorted(act.told for act in acts)
    assert max(act.ended for act in acts) - moments[0] <= GRACE.total_seconds() + 1
    assert moments[-1] - moments[0] > 0.8 * (STREAMS - 1) / rate, "evenly, not at once"
    crowded = [sum(1 for each in moments[index:] if each < moment + WINDOW) for index, moment in enumerate(moments)]
    assert max(crowded) <= 1.5 * rate * WINDOW


async def test_sessions_that_cannot_end_evenly_in_time_end_at_its_end(stage: RpcStage) -> None:
    async with sessions(stage, 3) as streams:
        reading = [asyncio.create_task(seen(stream)) for stream in streams]
        await stage.door.refuse()
        async with asyncio.timeout(20):
            await stage.door.drain(timedelta(milliseconds=200))
        assert {end.code for end in await asyncio.gather(*reading)} == {grpc.StatusCode.UNAVAILABLE}


async def test_streams_that_have_said_nothing_or_only_wait_end_too(stage: RpcStage) -> None:
    credential = await stage.bootstrap("edge1")
    silent = Stream(stage.channel(await stage.enrol("edge2")))
    await silent.call.wait_for_connection()
    async with stage.channel(credential) as channel:
        following = await followed(stage, channel)
        assert (await following.read()).state == registration.FollowRequestResponse.STATE_PENDING
        async with asyncio.timeout(20):
            while stage.parts.gate.in_flight < 2:  # noqa: ASYNC110 - the gate tells nobody
                await asyncio.sleep(0.01)
        await stage.door.refuse()
        async with asyncio.timeout(20):
            await stage.door.drain(GRACE)
        assert await following.code() is grpc.StatusCode.UNAVAILABLE
        assert await silent.status() is grpc.StatusCode.UNAVAILABLE
    await silent.close()


async def followed(stage: RpcStage, channel: aio.Channel) -> Any:
    """A request that nobody decides, and the stream that waits for it."""
    stub = RegistrationStub(channel)
    await stage.join(stub, "edge1")
    request = pki.build_request(agent_subject(cluster_name("edge1"), agent_id("agent")), pki.generate_key())
    asked = registration.SubmitRequestRequest(cluster_name="edge1", agent_id="agent", cluster_uid="uid-1", request=request)
    name = (await stub.SubmitRequest(asked)).name
    return stub.FollowRequest(registration.FollowRequestRequest(name=name))


async def test_a_session_that_comes_while_the_door_drains_is_not_forgotten(stage: RpcStage) -> None:
    """It passed the gate before that closed, and would open its session after the drain has counted them."""
    credential: Credential = await stage.enrol("edge1")
    stream = Stream(stage.channel(credential))
    await stream.call.wait_for_connection()
    async with asyncio.timeout(20):
        while stage.parts.gate.in_flight < 1:  # noqa: ASYNC110 - the gate tells nobody
            await asyncio.sleep(0.01)
    stage.parts.gate.close()
    await stream.send(hello=wire.Hello(agent_version="1", cluster_uid="uid-1"))
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE
    assert len(stage.parts.sessions) == 0
    await stream.close()


async def test_the_listener_closes_without_cancelling_what_has_just_come(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.rpc.door.STILL_WITHIN", timedelta(minutes=1))  # a busy machine needs longer for so many
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stub.GetHub(registration.GetHubRequest())
        calls = [stub.GetHub(registration.GetHubRequest()) for _ in range(300)]
        await asyncio.sleep(0.02)
        await stage.door.stop_listening()
        codes = {await call.code() for call in calls}
        assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    late = Stream(stage.channel(await stage.bootstrap("edge2")))
    assert await late.status() is grpc.StatusCode.UNAVAILABLE
    await late.close()
