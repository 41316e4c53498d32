"""A replica that is drained while it runs: sessions are told to leave and are heard until they have, new ones turned away."""

import grpc

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
    refused = await Stream.open(stage, other)
    assert await refused.status() is grpc.StatusCode.UNAVAILABLE
    assert "drained" in str(await refused.call.details())
    stage.parts.cordon.order(False)  # noqa: FBT003 - likewise
    welcome = await Stream.open(stage, other)
    await welcome.expect("welcome")
    assert len(stage.parts.sessions) == 2
    for stream in (stays, refused, welcome):
        await stream.close()
