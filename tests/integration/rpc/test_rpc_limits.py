"""The limits of the agents' door: a level that is full refuses its own and leaves the others alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hub.access import Capacity
from hub.access.limits import REGISTRATIONS, REPORTS, SESSIONS
from hub.rpc.decisions import MOST_OF_ONE
from machinery import pki
from machinery.identity import agent_id, agent_subject, cluster_name
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import RpcStage, Stream, rpc_stage
from tests.fakes.stage import until

ALWAYS = timedelta(seconds=30)


@asynccontextmanager
async def limited(folder: Path, **numbers: int) -> AsyncIterator[RpcStage]:
    async with rpc_stage(folder, capacity=Capacity(**numbers)) as stage:
        yield stage


@asynccontextmanager
async def full(stage: RpcStage, level: str) -> AsyncIterator[None]:
    """The one seat of a level is taken."""
    pool = stage.parts.limits.pools[level]
    await pool.take("somebody", ALWAYS)
    yield
    pool.give("somebody")


async def refusal(call: Any) -> tuple[grpc.StatusCode, dict[str, str]]:
    try:
        await call
    except aio.AioRpcError as error:
        return error.code(), {str(name): str(value) for name, value in error.trailing_metadata() or ()}
    raise AssertionError("the call was answered")


def renewal(cluster: str) -> registration.SubmitRequestRequest:
    request = pki.build_request(agent_subject(cluster_name(cluster), agent_id("agent")), pki.generate_key())
    return registration.SubmitRequestRequest(cluster_name=cluster, agent_id="agent", cluster_uid="uid-1", request=request)


async def test_a_full_registration_level_refuses_with_a_pushback_and_leaves_agents_alone(tmp_path: Path) -> None:
    async with limited(tmp_path, registrations=1) as stage:
        credential, bootstrap = await stage.enrol("edge"), await stage.bootstrap("new")
        stream = await Stream.open(stage, credential)
        await stream.expect("welcome")
        async with full(stage, REGISTRATIONS), stage.channel(bootstrap) as storm, stage.channel(credential) as agent:
            joining = registration.EnsureClusterRequest(cluster_name="new", cluster_uid="uid-2", agent_id="agent")
            for method, request in (
                ("EnsureCluster", joining),
                ("SubmitRequest", renewal("new")),
                ("GetHub", registration.GetHubRequest()),
            ):
                code, trailing = await refusal(getattr(RegistrationStub(storm), method)(request, timeout=10))
                assert (code, trailing["reason"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TooManyRequests")
                assert int(trailing["grpc-retry-pushback-ms"]) >= 1000
            await RegistrationStub(agent).SubmitRequest(renewal("edge"), timeout=10)
            await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE))
            await stream.expect("beat_ack")
            await stream.send(status=wire.StatusReport(sequence=1, complete=True))
            assert (await stream.expect("report_ack")).reason == ""
        async with stage.channel(bootstrap) as again:
            await RegistrationStub(again).EnsureCluster(joining, timeout=5)
        await stream.close()
        assert stage.parts.limits.snapshot()[REGISTRATIONS]["refused"] == 3


async def test_a_call_that_waits_is_answered_when_there_is_room(tmp_path: Path) -> None:
    async with limited(tmp_path, registrations=1) as stage:
        bootstrap = await stage.bootstrap("new")
        async with stage.channel(bootstrap) as channel:
            async with full(stage, REGISTRATIONS):
                joining = registration.EnsureClusterRequest(cluster_name="new", cluster_uid="uid-2", agent_id="agent")
                waiting = asyncio.ensure_future(RegistrationStub(channel).EnsureCluster(joining))
                await until(lambda: stage.parts.limits.snapshot()[REGISTRATIONS]["waiting"])
            assert (await waiting).created


async def test_sessions_of_one_cluster_are_bounded_and_those_of_others_are_not(tmp_path: Path) -> None:
    async with limited(tmp_path, sessions_per_cluster=1) as stage:
        one, other = await stage.enrol("edge"), await stage.enrol("far", uid="uid-2")
        first = await Stream.open(stage, one)
        await first.expect("welcome")
        second = await Stream.open(stage, one)
        assert await second.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
        third = await Stream.open(stage, other, uid="uid-2")
        await third.expect("welcome")
        await first.call.done_writing()
        assert await first.status() is grpc.StatusCode.OK
        fourth = await Stream.open(stage, one)
        await fourth.expect("welcome")
        for stream in (first, second, third, fourth):
            await stream.close()


async def test_a_session_whose_start_finds_no_room_is_told_to_come_again(tmp_path: Path) -> None:
    async with limited(tmp_path, sessions=1) as stage:
        credential = await stage.enrol("edge")
        async with full(stage, SESSIONS):
            stream = Stream(stage.channel(credential))
            stream.call = stream.limited_to(4)  # of which it waits for a second
            await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
            assert await stream.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await stream.close()


async def test_a_report_that_waits_is_stored_when_there_is_room(tmp_path: Path) -> None:
    async with limited(tmp_path, reports=1) as stage:
        stream = await Stream.open(stage, await stage.enrol("edge"))
        await stream.expect("welcome")
        async with full(stage, REPORTS):
            await stream.send(status=wire.StatusReport(sequence=1, complete=True))
            await until(lambda: stage.parts.limits.snapshot()[REPORTS]["waiting"])
        assert (await stream.expect("report_ack")).reason == ""
        await stream.close()


async def test_a_beat_does_not_wait_behind_reports(tmp_path: Path) -> None:
    """A report may wait for its turn for longer than an agent waits for its hub. They are stored in their order."""
    async with limited(tmp_path, reports=1) as stage:
        stream = await Stream.open(stage, await stage.enrol("edge"))
        await stream.expect("welcome")
        async with full(stage, REPORTS):
            await stream.send(status=wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1.30.0"))
            await until(lambda: stage.parts.limits.snapshot()[REPORTS]["waiting"])
            await stream.send(status=wire.StatusReport(sequence=2, complete=True, kubernetes_version="v1.31.0"))
            await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE))
            assert (await asyncio.wait_for(stream.expect("beat_ack"), 10)).sequence == 1
        await stream.call.done_writing()
        assert [(await stream.expect("report_ack")).sequence for _ in range(2)] == [1, 2]
        assert (await stage.cluster("edge"))["status"]["version"]["kubernetes"] == "v1.31.0"
        await stream.close()


async def test_calls_that_wait_when_the_hub_stops_are_answered_or_told_to_come_again(tmp_path: Path) -> None:
    async with limited(tmp_path, registrations=1) as stage:
        bootstrap = await stage.bootstrap("new")
        async with stage.channel(bootstrap) as channel:
            async with full(stage, REGISTRATIONS):
                joining = registration.EnsureClusterRequest(cluster_name="new", cluster_uid="uid-2", agent_id="agent")
                waiting = asyncio.ensure_future(RegistrationStub(channel).EnsureCluster(joining))
                await until(lambda: stage.parts.limits.snapshot()[REGISTRATIONS]["waiting"])
                await stage.door.refuse()
                draining = asyncio.ensure_future(stage.door.drain(timedelta(seconds=5)))
            assert (await waiting).created
            await draining


async def test_one_request_is_followed_in_a_bounded_number_of_streams(tmp_path: Path) -> None:
    async with limited(tmp_path) as stage, stage.channel(await stage.bootstrap("new")) as channel:
        stub = RegistrationStub(channel)
        await stub.EnsureCluster(registration.EnsureClusterRequest(cluster_name="new", cluster_uid="uid-1", agent_id="agent"))
        followed = registration.FollowRequestRequest(name=(await stub.SubmitRequest(renewal("new"))).name)
        streams: list[Any] = [stub.FollowRequest(followed) for _ in range(MOST_OF_ONE)]
        for stream in streams:
            assert (await stream.read()).state == registration.FollowRequestResponse.STATE_PENDING
        code, trailing = await refusal(stub.FollowRequest(followed).read())
        assert (code, trailing["reason"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TooManyRequests")
        streams[0].cancel()
        async with asyncio.timeout(5):
            while await ended(again := stub.FollowRequest(followed)):  # noqa: ASYNC110 - the hub tells nobody
                await asyncio.sleep(0.05)
        for stream in (*streams, again):
            stream.cancel()


async def ended(stream: Any) -> bool:
    """Whether it was refused for now."""
    try:
        return bool((await stream.read()).state != registration.FollowRequestResponse.STATE_PENDING)
    except aio.AioRpcError:
        return True
