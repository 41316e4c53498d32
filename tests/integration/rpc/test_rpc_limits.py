"""The limits of the agents' door: a level that is full refuses its own and leaves the others alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hub.access.limits import REGISTRATIONS, REPORTS, SESSIONS
from hub.rpc.decisions import MOST_OF_ONE
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import (
    PENDING,
    RpcStage,
    Stream,
    following,
    joining,
    refusal,
    rpc_stage,
    submission,
    until_found,
)
from tests.fakes.stage import until

ALWAYS = timedelta(seconds=30)
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def full(stage: RpcStage, level: str) -> AsyncIterator[None]:
    """The one seat of a level is taken."""
    pool = stage.parts.limits.pools[level]
    await pool.take("somebody", ALWAYS)
    yield
    pool.give("somebody")


async def one_waits(stage: RpcStage, level: str) -> None:
    await until(lambda: stage.parts.limits.snapshot()[level]["waiting"])


async def test_full_registration_level_refuses_with_a_pushback_and_leaves_agents_alone(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, max_registrations_inflight=1) as stage:
        credential, bootstrap = await stage.enrol("edge"), await stage.bootstrap("new")
        storm, agent, stream = stage.stub(bootstrap), stage.stub(credential), await stage.welcomed(credential)
        async with full(stage, REGISTRATIONS):
            calls = (
                storm.EnsureCluster(joining("new", "uid-2"), timeout=8),
                storm.SubmitRequest(submission("new"), timeout=8),
                storm.GetHub(registration.GetHubRequest(), timeout=8),
            )
            for refused in await asyncio.gather(*map(refusal, calls)):
                assert refused.reason == (EXHAUSTED, "TooManyRequests")
                assert int(refused.trailing["grpc-retry-pushback-ms"]) >= 1000
            await agent.SubmitRequest(submission("edge"), timeout=20)
            await stream.beat(1)
            assert (await stream.report(complete=True)).reason == ""
        assert stage.parts.limits.snapshot()[REGISTRATIONS]["refused"] == 3

        async with full(stage, REGISTRATIONS):
            waiting = asyncio.ensure_future(storm.EnsureCluster(joining("new", "uid-2")))
            await one_waits(stage, REGISTRATIONS)
        assert (await waiting).created

        async with full(stage, REGISTRATIONS):
            other = stage.stub(await stage.bootstrap("newer"))
            waiting = asyncio.ensure_future(other.EnsureCluster(joining("newer", "uid-3")))
            await one_waits(stage, REGISTRATIONS)
            await stage.door.refuse()
            draining = asyncio.ensure_future(stage.door.drain(timedelta(seconds=5)))
        assert (await waiting).created, "a call that waits when the hub stops is answered"
        await draining


async def test_sessions_of_a_cluster_and_starts_of_sessions_are_bounded(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, max_sessions_per_cluster=1, max_session_starts_inflight=1) as stage:
        one, other = await stage.enrol("edge"), await stage.enrol("far", uid="uid-2")
        first = await stage.welcomed(one)
        assert await (await Stream.open(stage, one)).status() is EXHAUSTED
        await stage.welcomed(other, uid="uid-2")
        await first.call.done_writing()
        assert await first.status() is grpc.StatusCode.OK
        await (await stage.welcomed(one)).close()
        await until(lambda: len(stage.parts.sessions) == 1)

        async with full(stage, SESSIONS):
            stream = Stream(stage.channel(one))
            stream.call = stream.limited_to(4)  # of which it waits for a second
            await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
            assert await stream.status() is EXHAUSTED


async def test_beat_does_not_wait_behind_reports_which_are_stored_in_order_when_there_is_room(tmp_path: Path) -> None:
    """A report may wait for its turn for longer than an agent waits for its hub."""
    async with rpc_stage(tmp_path, max_status_reports_inflight=1) as stage:
        stream = await stage.welcomed(await stage.enrol("edge"))
        async with full(stage, REPORTS):
            await stream.send(status=wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1.30.0"))
            await one_waits(stage, REPORTS)
            await stream.send(status=wire.StatusReport(sequence=2, complete=True, kubernetes_version="v1.31.0"))
            await stream.beat(1)
        await stream.call.done_writing()
        acks = [await stream.expect("report_ack") for _ in range(2)]
        assert [(ack.sequence, ack.reason) for ack in acks] == [(1, ""), (2, "")]
        assert (await stage.cluster("edge"))["status"]["version"]["kubernetes"] == "v1.31.0"


async def test_request_is_followed_in_a_bounded_number_of_streams(stage: RpcStage) -> None:
    stub = stage.stub(await stage.bootstrap("new"))
    await stage.join(stub, "new")
    followed = following((await stub.SubmitRequest(submission("new"))).name)
    streams: list[Any] = [stub.FollowRequest(followed) for _ in range(MOST_OF_ONE)]
    for stream in streams:
        assert (await stream.read()).state == PENDING
    assert (await refusal(stub.FollowRequest(followed).read())).reason == (EXHAUSTED, "TooManyRequests")
    streams[0].cancel()

    async def has_room() -> bool:
        try:
            return bool((await stub.FollowRequest(followed).read()).state == PENDING)
        except aio.AioRpcError:
            return False

    await until_found(has_room)
