"""Messages and ends of streams that no agent would send: each is taken or refused for a reason, and no other agent notices."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import grpc
from grpc import aio

from hub.grpc_door.errors import REASON
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.odd_messages import odd
from tests.fakes.rpc_stage import RpcStage, Stream, csr, refusal
from tests.trials import repeated, soaked, trials

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
LEAVERS = trials(test=100, soak=5_000)
WITHIN = 20.0


def check(error: aio.AioRpcError, sent: object) -> None:
    """A refusal has a reason, and it is not that the hub failed."""
    reason = dict(error.trailing_metadata() or ()).get(REASON)
    assert error.code() is not grpc.StatusCode.UNKNOWN, sent
    assert reason not in (None, DEFECT), (error.code(), error.details(), sent)


async def ask(stub: Any, method: str, request: object) -> None:
    """One call to its first answer."""
    call = getattr(stub, method)(request, timeout=WITHIN)
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except aio.AioRpcError as error:
        check(error, request)


@repeated(test=1, soak=20)
async def test_odd_messages_are_taken_or_refused_for_a_reason(stage: RpcStage, trial: int) -> None:
    random = Random(trial)
    other, credential = await stage.welcomed(await stage.enrol("far")), await stage.enrol("edge1")
    for stub in (stage.stub(await stage.bootstrap(None)), stage.stub(credential)):
        for number in range(CALLS):
            method = list(METHODS)[number % len(METHODS)]
            await ask(stub, method, odd(METHODS[method], random))
    await other.beat(1)

    for _ in range(CALLS // 2):
        stream = Stream(stage.channel(credential))
        messages = [wire.AgentMessage(hello=odd(wire.Hello, random)), *(odd(wire.AgentMessage, random) for _ in range(8))]
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await stream.call.write(message)
            await stream.call.done_writing()
        if (code := await stream.status()) is not grpc.StatusCode.OK:
            assert code is not grpc.StatusCode.UNKNOWN, messages
            assert await stream.trailing(REASON) != DEFECT, messages
        await stream.close()
    await other.beat(2)


async def test_bytes_that_are_no_message_end_the_call_alone(stage: RpcStage) -> None:
    other, channel = await stage.welcomed(await stage.enrol("far")), stage.channel(await stage.enrol("edge1"))
    for sent in (b"\xff\xff\xff", b"\x0a\xff"):  # no tag, no length
        for method in METHODS:
            call: Any = channel.unary_unary(f"/muster.registration.v1.Registration/{method}")
            refused = await refusal(call(sent, timeout=WITHIN))
            assert refused.reason == (grpc.StatusCode.INVALID_ARGUMENT, "BadRequest"), method
            assert refused.message == "the message cannot be decoded"
        session = Stream(channel).raw()
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await session.write(sent)
        async with asyncio.timeout(WITHIN):
            assert await session.code() is not grpc.StatusCode.OK
    await other.beat(1)


@soaked(LEAVERS)
async def test_agent_may_leave_a_stream_at_any_moment(stage: RpcStage) -> None:
    """When its generator is closed gRPC has forgotten the call: a question about it then takes the process down."""
    request = registration.RecoverRequest(cluster_name="edge1", agent_id="agent", cluster_uid="uid-1", request=csr())
    holder, random = await stage.enrol("edge1", recovery=True), Random(1)
    for trial in range(LEAVERS):
        channel = stage.channel(holder)
        call = RegistrationStub(channel).Recover(request)
        if trial % 2:
            await call.read()
        await asyncio.sleep(random.uniform(0, 0.004))  # how far the hub is by then is what is tried
        call.cancel()
        with suppress(aio.AioRpcError, asyncio.CancelledError):
            await call.code()
        await channel.close()
    assert (await stage.cluster("edge1"))["metadata"]["name"] == "edge1"
