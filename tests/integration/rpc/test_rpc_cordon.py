"""A replica that is drained while it runs: sessions are told to leave and are heard until they have, new ones turned away."""

import asyncio

import grpc

from machinery.identity import cluster_name
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import RpcStage, Stream


async def test_a_drained_replica_takes_no_session_and_hears_those_that_have_not_gone_yet(stage: RpcStage) -> None:
    agent, other = await stage.enrol("edge1"), await stage.enrol("edge2")
    stays = await Stream.open(stage, agent)
    await stays.expect("welcome")
    stage.parts.cordon.order(True)  # noqa: FBT003 - what is ordered
    assert "drained" in (await stays.expect("drain")).reason
    await stays.send(beat=wire.Beat(sequence=3))
    assert (await stays.expect("beat_ack")).sequence == 3
    refused = await Stream.open(stage, other, epoch=5)
    assert await refused.status() is grpc.StatusCode.UNAVAILABLE
    assert "drained" in str(await refused.call.details())
    assert await stage.store.read(lambda tx: tx.heartbeats.of(cluster_name("edge2"))) is None, "it owns itself to nobody"
    stage.parts.cordon.order(False)  # noqa: FBT003 - likewise
    welcome = await Stream.open(stage, other)
    await welcome.expect("welcome")
    assert len(stage.parts.sessions) == 2
    for stream in (stays, refused, welcome):
        await stream.close()


async def test_an_agent_that_says_hello_while_the_replica_is_drained_is_turned_away(stage: RpcStage) -> None:
    stream = Stream(stage.channel(await stage.enrol("edge1")))
    opening = asyncio.ensure_future(stream.call.wait_for_connection())
    async with asyncio.timeout(20):
        while not stage.parts.gate.in_flight:  # noqa: ASYNC110 - the call's arrival is the condition
            await asyncio.sleep(0.01)
    stage.parts.cordon.order(True)  # noqa: FBT003 - what is ordered
    await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE
    assert len(stage.parts.sessions) == 0
    opening.cancel()
    await stream.close()
