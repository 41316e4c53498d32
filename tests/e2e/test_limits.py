"""A registration storm on a real hub: heartbeats, renewals and operators go on, and every newcomer gets in."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc import aio

from machinery import pki
from machinery.identity import ClusterName, agent_subject
from machinery.kubeconfig import read_kubeconfig
from machinery.tls import client_context
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from machinery.wire.session.v1.session_pb2_grpc import SessionStub
from spoke.ports import ClientIdentity
from tests.e2e.joining import AGENT, Entrance, Joiner, entrance
from tests.e2e.processes import CLUSTERS, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

CLIENTS = 500
UNHEARD = 5
"""Seconds after which an agent whose beat is not acknowledged leaves."""


def channel(entry: Entrance, identity: ClientIdentity) -> aio.Channel:
    credentials = grpc.ssl_channel_credentials(entry.address.ca, identity.key, identity.certificate)
    return aio.secure_channel(entry.address.target, credentials, [("grpc.use_local_subchannel_pool", 1)])


def request_of(cluster: str) -> registration.SubmitRequestRequest:
    pem = pki.build_request(agent_subject(ClusterName(cluster), AGENT), pki.generate_key())
    return registration.SubmitRequestRequest(cluster_name=cluster, agent_id=AGENT, cluster_uid=f"uid-of-{cluster}", request=pem)


@dataclass
class Storm:
    """Clusters that want to join, all at once; `refused` counts how often one was told to come later."""

    entry: Entrance
    refused: int = 0
    joined: int = 0
    requests: list[registration.SubmitRequestRequest] = field(
        default_factory=lambda: [request_of(f"storm-{number}") for number in range(CLIENTS)]
    )

    async def rage(self) -> None:
        channels = [channel(self.entry, self.entry.identity) for _ in range(50)]
        await asyncio.gather(*(self._join(channels[n % 50], request) for n, request in enumerate(self.requests)))
        await asyncio.gather(*(each.close() for each in channels))

    async def _join(self, over: aio.Channel, request: registration.SubmitRequestRequest) -> None:
        stub, name = RegistrationStub(over), request.cluster_name
        joining = registration.EnsureClusterRequest(cluster_name=name, cluster_uid=request.cluster_uid, agent_id=AGENT)
        await self._insisted(stub.EnsureCluster, joining)
        await self._insisted(stub.SubmitRequest, request)
        self.joined += 1

    async def _insisted(self, method: object, request: object) -> None:
        while True:
            try:
                await method(request, timeout=12)  # type: ignore[operator]
            except aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise
                self.refused += 1
                trailing = dict(error.trailing_metadata() or ())
                await asyncio.sleep(int(trailing.get("grpc-retry-pushback-ms", 100)) / 1000)
            else:
                return


async def beat(agent: Joiner, storm: "asyncio.Task[None]") -> list[float]:
    """How long each beat of a session waited for its acknowledgement while the storm went on."""
    waited: list[float] = []
    async with channel(agent.entrance, agent.identity) as over:
        stream = SessionStub(over).Connect()
        await stream.write(wire.AgentMessage(hello=wire.Hello(agent_version="1", cluster_uid=f"uid-of-{agent.name}")))
        while not storm.done():
            began, sequence = time.monotonic(), len(waited) + 1
            await stream.write(wire.AgentMessage(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE)))
            acknowledged = 0
            while acknowledged < sequence:
                message = await stream.read()
                assert isinstance(message, wire.HubMessage), await stream.details()
                acknowledged = max(acknowledged, message.beat_ack.sequence)
            waited.append(time.monotonic() - began)
        stream.cancel()
    return waited


async def renew(agent: Joiner, storm: "asyncio.Task[None]") -> list[float]:
    """How long each renewal took while the storm went on."""
    took = []
    async with channel(agent.entrance, agent.identity) as over:
        while not storm.done():
            began = time.monotonic()
            name = (await RegistrationStub(over).SubmitRequest(request_of(agent.name))).name
            async for answer in RegistrationStub(over).FollowRequest(registration.FollowRequestRequest(name=name)):
                if answer.state == registration.FollowRequestResponse.STATE_ISSUED:
                    break
            took.append(time.monotonic() - began)
            await asyncio.wait({storm}, timeout=0.3)
    return took


async def test_heartbeats_renewals_and_operators_live_through_a_registration_storm(bench: Bench) -> None:
    flags = ("--auto-approve=agent-*", "--max-registrations-inflight=16", "--flush-window=200ms")
    await bench.hub(*flags)
    entry = await entrance(bench.admin, CLIENTS + 10)
    agent = Joiner(ClusterName("agent-1"), entry)
    await agent.join()
    storm = Storm(entry)
    raging = asyncio.create_task(storm.rage())
    beating, renewing = asyncio.create_task(beat(agent, raging)), asyncio.create_task(renew(agent, raging))
    asked = []
    while not raging.done():
        began = time.monotonic()
        await bench.get(f"{CLUSTERS}/agent-1")
        asked.append(time.monotonic() - began)
        await asyncio.wait({raging}, timeout=0.3)
    await raging
    waited, took = await beating, await renewing
    assert storm.joined == CLIENTS
    assert waited
    assert max(waited) < UNHEARD
    assert took
    assert max(took) < UNHEARD
    assert max(asked) < UNHEARD
    found = await bench.get(CLUSTERS)
    assert len(found["items"]) == CLIENTS + 1


def resident(pid: int) -> int:
    """MiB of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


async def test_a_body_without_end_is_not_kept(bench: Bench) -> None:
    hub = await bench.hub()
    kubeconfig = read_kubeconfig(bench.admin)
    credential = kubeconfig.require_credential()
    context = client_context(kubeconfig.cluster.certificate_authority, credential.chain, credential.key)
    before, most = resident(hub.pid), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal most
        for _ in range(1_000):
            yield b" " * 100_000
            most = max(most, resident(hub.pid))

    url = f"https://127.0.0.1:{bench.https_port}{CLUSTERS}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with suppress(aiohttp.ClientOSError):  # the hub does not read on after its answer
            async with session.post(url, data=endless(), headers={"Content-Type": "application/json"}) as response:
                assert response.status == 413
    assert most
    assert most - before < 40
    assert (await bench.get(CLUSTERS))["items"] == []
