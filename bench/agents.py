"""Agents without a cluster, many in one process: they get certificates from a running hub and use plain gRPC channels."""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from bench.stage import Stage
from machinery import pki
from machinery.client.kubeconfig import Credential, read_kubeconfig
from machinery.identity import CertificateSubject, agent_id, agent_subject, cluster_name
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2

API = "hub.open-cluster-management.io/v1alpha1"
AGENT = "bench"
AT_ONCE = 32
ACK_TIMEOUT = 10
"""Seconds for which the agent waits for an acknowledgement by default."""
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
)


@dataclass(frozen=True)
class Agent:
    cluster: str
    credential: Credential


@dataclass(frozen=True)
class Target:
    """Address and trust bundle of a hub's gRPC door."""

    server: str
    trust: bytes

    def channel(self, credential: Credential) -> aio.Channel:
        credentials = grpc.ssl_channel_credentials(self.trust, credential.key, credential.chain)
        return aio.secure_channel(self.server, credentials, OPTIONS)


async def bootstrap(stage: Stage) -> tuple[Target, Credential]:
    """Return a hub and a bootstrap credential for any number of clusters with any name."""
    key = pki.generate_key()
    request = pki.build_request(CertificateSubject("bench"), key)
    spec = {"request": request.decode("ascii"), "expirationSeconds": 3600}
    body = {"apiVersion": API, "kind": "BootstrapCredential", "metadata": {"generateName": "bench-"}, "spec": spec}
    async with stage.client() as client:
        made = await client.create(f"/apis/{API}/bootstrapcredentials", body)
    target = Target(f"localhost:{stage.grpc_port}", read_kubeconfig(stage.admin).cluster.certificate_authority)
    return target, Credential(made["status"]["certificate"].encode("ascii"), key)


def request_for(cluster: str) -> tuple[bytes, bytes]:
    """Return a key and a CSR."""
    key = pki.generate_key()
    return key, pki.build_request(agent_subject(cluster_name(cluster), agent_id(AGENT)), key)


async def register(channel: aio.Channel, cluster: str, key: bytes, request: bytes) -> Agent:
    """Make the three calls of a first registration. Return the agent when it has its certificate."""
    stub, uid = RegistrationStub(channel), f"uid-{cluster}"
    await stub.EnsureCluster(wire.EnsureClusterRequest(cluster_name=cluster, cluster_uid=uid, agent_id=AGENT))
    asked = wire.SubmitRequestRequest(cluster_name=cluster, agent_id=AGENT, cluster_uid=uid, request=request)
    name = (await stub.SubmitRequest(asked)).name
    async for answer in stub.FollowRequest(wire.FollowRequestRequest(name=name)):
        if answer.state == wire.FollowRequestResponse.STATE_ISSUED:
            return Agent(cluster, Credential(answer.certificate, key))
    raise RuntimeError(f"{cluster} got no certificate")


async def register_many(target: Target, credential: Credential, names: list[str]) -> list[Agent]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Agent:
        async with slots:
            return await register(channel, name, *request_for(name))

    async with target.channel(credential) as channel:
        return list(await asyncio.gather(*(one(name) for name in names)))


async def open_session(channel: aio.Channel, agent: Agent) -> Any:
    """Open a session and send Hello. Return the call; its first message is Welcome."""
    call: Any = channel.stream_stream("/muster.session.v1.Session/Connect")()
    hello = session_pb2.Hello(agent_version="bench", cluster_uid=f"uid-{agent.cluster}", ack_timeout_seconds=ACK_TIMEOUT)
    await call.write(session_pb2.AgentMessage(hello=hello).SerializeToString())
    return call
