"""Messages that no agent would send: each is taken or refused for a reason, and nobody else notices."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.rpc.status import REASON
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.odd_messages import odd
from tests.fakes.rpc_stage import RpcStage, Stream
from tests.trials import repeated, trials

DEFECT = "InternalError"
METHODS = {
    "GetHub": registration.GetHubRequest,
    "EnsureCluster": registration.EnsureClusterRequest,
    "SubmitRequest": registration.SubmitRequestRequest,
    "FollowRequest": registration.FollowRequestRequest,
    "Recover": registration.RecoverRequest,
    "StandBy": registration.StandByRequest,
    "Leave": registration.LeaveRequest,
    "IssueAddOnToken": registration.IssueAddOnTokenRequest,
}
CALLS = trials(test=40, soak=1_000)
WITHIN = 5.0


def check(error: aio.AioRpcError, sent: object) -> None:
    """A refusal has a reason, and it is not that the hub failed."""
    reason = dict(error.trailing_metadata() or ()).get(REASON)
    assert error.code() is not grpc.StatusCode.UNKNOWN, sent
    assert reason not in (None, DEFECT), (error.code(), error.details(), sent)


async def ask(channel: aio.Channel, method: str, request: object) -> None:
    """One call to its first answer."""
    call = getattr(RegistrationStub(channel), method)(request, timeout=WITHIN)
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except aio.AioRpcError as error:
        check(error, request)


async def beat(stream: Stream, sequence: int) -> None:
    """Another agent's session goes on."""
    await stream.send(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE))
    async with asyncio.timeout(WITHIN):
        assert (await stream.expect("beat_ack")).sequence == sequence


@repeated(test=1, soak=20)
async def test_odd_registrations_are_taken_or_refused_for_a_reason(stage: RpcStage, trial: int) -> None:
    random = Random(trial)
    other = await Stream.open(stage, await stage.enrol("far"))
    credentials = (await stage.bootstrap(None), await stage.enrol("edge1"))
    for credential in credentials:
        async with stage.channel(credential) as channel:
            for number in range(CALLS):
                method = list(METHODS)[number % len(METHODS)]
                await ask(channel, method, odd(METHODS[method], random))
    await beat(other, 1)
    await other.close()


@repeated(test=1, soak=20)
async def test_odd_sessions_go_on_or_end_for_a_reason(stage: RpcStage, trial: int) -> None:
    random = Random(trial)
    other, credential = await Stream.open(stage, await stage.enrol("far")), await stage.enrol("edge1")
    for _ in range(CALLS // 2):
        stream = Stream(stage.channel(credential))
        messages = [wire.AgentMessage(hello=odd(wire.Hello, random)), *(odd(wire.AgentMessage, random) for _ in range(8))]
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await stream.call.write(message)
            await stream.call.done_writing()
        async with asyncio.timeout(WITHIN):
            if await stream.status() is not grpc.StatusCode.OK:
                assert await stream.status() is not grpc.StatusCode.UNKNOWN, messages
                assert await stream.trailing(REASON) != DEFECT, messages
        await stream.close()
    await beat(other, 1)
    await other.close()


@pytest.mark.parametrize("sent", [b"\xff\xff\xff", b"\x0a\xff"], ids=["tag", "length"])
async def test_bytes_that_are_no_message_end_the_call_alone(stage: RpcStage, sent: bytes) -> None:
    other = await Stream.open(stage, await stage.enrol("far"))
    async with stage.channel(await stage.enrol("edge1")) as channel:
        for method in METHODS:
            call: Any = channel.unary_unary(f"/muster.registration.v1.Registration/{method}")
            with pytest.raises(aio.AioRpcError):
                await call(sent, timeout=WITHIN)
        session = Stream(channel).raw()
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await session.write(sent)
        async with asyncio.timeout(WITHIN):
            assert await session.code() is not grpc.StatusCode.OK
    await beat(other, 1)
    await other.close()
