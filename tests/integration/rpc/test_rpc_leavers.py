"""Whoever leaves a stream in the middle, at any moment, does the hub no harm."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from grpc import aio

from hub.audit.default import default_policy
from machinery import pki
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.product import GROUP_SUFFIX
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.rpc_stage import rpc_stage
from tests.trials import soaked, trials

LEAVERS = trials(test=200, soak=5_000)


@soaked(LEAVERS)
@pytest.mark.parametrize("pause", [0.001, 0.003])
async def test_a_stream_that_its_reader_leaves_at_any_moment_ends_and_is_remembered(tmp_path: Path, pause: float) -> None:
    """When its generator is closed gRPC has forgotten the call: asked about it then, it takes the process down."""
    subject = agent_subject(ClusterName("edge1"), AgentId("agent"))
    csr = pki.build_request(subject, pki.generate_key())
    request = wire.RecoverRequest(cluster_name="edge1", agent_id="agent", cluster_uid="uid-1", request=csr)
    async with rpc_stage(tmp_path, policy=default_policy(GROUP_SUFFIX)) as stage:
        holder = await stage.enrol("edge1", recovery=True)
        for trial in range(LEAVERS):
            channel = stage.channel(holder)
            call = RegistrationStub(channel).Recover(request)
            if trial % 2:
                await call.read()
            await asyncio.sleep(pause)  # where the hub is by then is what is tried
            call.cancel()
            with suppress(aio.AioRpcError, asyncio.CancelledError):
                await call.code()
            await channel.close()
        assert (await stage.cluster("edge1"))["metadata"]["name"] == "edge1"
