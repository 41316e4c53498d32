"""A hub's gRPC door on a real port over a real store, and the certificates to call it with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import grpc
from grpc import aio

from hub.access import AccessLimits, Capacity, Peers
from hub.access.attestations import Attestor
from hub.access.attestations import Policy as Attestation
from hub.apiserver.entrance import account_tokens
from hub.audit import Auditor, Policy, default_policy
from hub.audit.storesink import StoreSink
from hub.audit.trail import Trail
from hub.domain.certificate import CertificateRecord, Lifetimes, Purpose
from hub.domain.change import Query
from hub.domain.credential import UNBOUND, Bounds
from hub.heartbeat import BeatBuffer
from hub.issuer import LocalIssuer, ServingNames
from hub.ports import Store
from hub.rpc.clocks import Clocks
from hub.rpc.cordon import Cordon
from hub.rpc.door import RpcDoor
from hub.rpc.feed import Feed
from hub.rpc.gate import Gate
from hub.rpc.parts import Hub, Parts
from hub.rpc.session import Session
from hub.rpc.sessions import Sessions
from hub.rpc.tempo import Tempo
from hub.rpc.trusting import Trusting
from hub.services import clusters, credentials, requests
from hub.store import SqlStore
from machinery import pki
from machinery.apiserver.authentication.asking import HttpsDocuments
from machinery.clock import Clock, SystemClock
from machinery.identity import HubId, agent_id, agent_subject, cluster_name
from machinery.kubeconfig import Credential
from machinery.pki import TokenKeys
from machinery.product import GROUP_SUFFIX
from machinery.tasks import GuardedTasks
from machinery.tls import Serving
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from machinery.wire.session.v1.session_pb2_grpc import SessionStub
from tests.fakes.databases import migrated
from tests.fakes.stage import until

HUB = HubId("b2f1d5a0-0000-4000-8000-000000000001")
ADMIN = "admin"
REPLICA = "stage"
WINDOW = timedelta(milliseconds=50)
INTERVAL = timedelta(seconds=10)


@dataclass
class RpcStage:
    """The parts of a running door, and short ways through registration."""

    folder: Path
    store: Store
    issuer: LocalIssuer
    door: RpcDoor
    parts: Parts
    lifetimes: Lifetimes
    serving: Serving

    def channel(self, credential: Credential, trust: bytes | None = None) -> aio.Channel:
        credentials_ = grpc.ssl_channel_credentials(trust or self.issuer.trust_bundle, credential.key, credential.chain)
        return aio.secure_channel(f"localhost:{self.door.port}", credentials_, [("grpc.use_local_subchannel_pool", 1)])

    async def bootstrap(
        self,
        cluster: str | None,
        *,
        uses: int | None = None,
        lifetime: timedelta | None = None,
        bounds: Bounds = UNBOUND,
    ) -> Credential:
        """A bootstrap credential."""
        key = pki.generate_key()
        bound = None if cluster is None else cluster_name(cluster)
        _record, issued = await self.store.run(
            credentials.create,
            cluster=bound,
            uses=uses,
            lifetime=lifetime,
            public_key=pki.public_key_of(key),
            issuer=self.issuer,
            lifetimes=self.lifetimes,
            actor=ADMIN,
            bounds=bounds,
        )
        return Credential(issued.chain, key)

    async def join(self, stub: Any, cluster: str, *, uid: str = "uid-1", agent: str = "agent") -> None:
        await stub.EnsureCluster(registration.EnsureClusterRequest(cluster_name=cluster, cluster_uid=uid, agent_id=agent))

    async def enrol(
        self,
        cluster: str,
        *,
        agent: str = "agent",
        uid: str = "uid-1",
        accepted: bool = True,
        lifetimes: Lifetimes | None = None,
        recovery: bool = False,
    ) -> Credential:
        """An agent's certificate, by the whole way through the door; the operator's part by the services.

        `recovery`: the recovery certificate that came with it.
        """
        key = pki.generate_key()
        request = pki.build_request(agent_subject(cluster_name(cluster), agent_id(agent)), key)
        async with self.channel(await self.bootstrap(cluster)) as channel:
            stub = RegistrationStub(channel)
            await self.join(stub, cluster, uid=uid, agent=agent)
            asked = registration.SubmitRequestRequest(cluster_name=cluster, agent_id=agent, cluster_uid=uid, request=request)
            name = (await stub.SubmitRequest(asked)).name
            await self.accept(cluster, accepted=accepted)
            await self.approve(name, lifetimes)
            async for answer in stub.FollowRequest(registration.FollowRequestRequest(name=name)):
                if answer.state == registration.FollowRequestResponse.STATE_ISSUED:
                    return Credential(answer.recovery_certificate if recovery else answer.certificate, key)
        raise AssertionError("the certificate was not issued")

    async def accept(self, cluster: str, *, accepted: bool = True) -> None:
        await self.store.run(clusters.set_accepted, cluster_name(cluster), accepted, ADMIN)

    async def approve(self, name: str, lifetimes: Lifetimes | None = None) -> None:
        await self.store.run(requests.decide, name, approve=True, reason="Test", message="", actor=ADMIN)
        await self.store.run(requests.issue, name, self.issuer, lifetimes or self.lifetimes, ADMIN)

    async def records(self, cluster: str, purpose: Purpose = Purpose.AGENT) -> list[CertificateRecord]:
        found = await self.store.read(lambda tx: tx.certificates.of_cluster(cluster_name(cluster)))
        return [record for record in found if record.purpose is purpose]

    async def cluster(self, name: str) -> dict[str, Any]:
        return dict((await self.store.read(clusters.find, cluster_name(name))).document)

    async def silence_noticed(self) -> None:
        """Returns when the one session that is open has read that its cluster is silent: its next beat is news."""
        (session,) = self.parts.sessions.all()
        await until(lambda: cast("Session", session)._silent)

    async def all(self, kind: Any) -> list[Any]:
        return [stored.document for stored in (await self.store.read(lambda tx: tx.objects.find(kind, Query()))).items]


class Stream:
    """An agent's end of a session."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel
        self.call = SessionStub(channel).Connect()

    @classmethod
    async def open(cls, stage: RpcStage, credential: Credential, *, uid: str = "uid-1", **more: Any) -> "Stream":
        """An opened stream that has said hello; one that the door refuses before it has read that tells so by its status."""
        stream = cls(stage.channel(credential))
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await stream.send(hello=wire.Hello(agent_version="1.2.3", cluster_uid=uid, **more))
        return stream

    async def send(self, **member: Any) -> None:
        await self.call.write(wire.AgentMessage(**member))

    async def expect(self, kind: str) -> Any:
        """The next message of this kind; others are skipped. AssertionError when the stream ends before."""
        while isinstance(message := await self.call.read(), wire.HubMessage):
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)
        raise AssertionError(f"the stream ended without {kind}: {await self.call.code()} {await self.call.details()}")

    async def expect_quiet(self, stage: RpcStage) -> None:
        """Returns when the door has told this session's handler of every change there is."""
        newest = await stage.store.read(lambda tx: tx.changes.newest())
        await stage.store.wait_for_change(newest - 1, timedelta(seconds=5))
        await asyncio.sleep(0.2)

    def limited_to(self, seconds: float) -> Any:
        """A session stream that has only so much time."""
        return SessionStub(self._channel).Connect(timeout=seconds)

    def raw(self) -> Any:
        """A call without serializers."""
        return self._channel.stream_stream("/muster.session.v1.Session/Connect")()

    async def status(self) -> grpc.StatusCode:
        """Reads on until the stream has ended."""
        try:
            while isinstance(await self.call.read(), wire.HubMessage):
                pass
        except aio.AioRpcError as error:
            return error.code()
        return await self.call.code()

    async def trailing(self, name: str) -> str:
        """An entry of what the stream ended with."""
        return str(dict(await self.call.trailing_metadata() or ()).get(name, ""))

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


def parts_over(
    store: Store,
    issuer: LocalIssuer,
    clock: Clock,
    *,
    window: timedelta = WINDOW,
    auditor: Auditor | None = None,
    capacity: Capacity | None = None,
    beats_per_second: float = 0,
) -> Parts:
    sessions = Sessions(store)
    return Parts(
        hub=Hub(HUB, "0.0.1", issuer),
        store=store,
        clock=clock,
        peers=Peers(store, clock),
        beats=BeatBuffer(store, clock, window),
        feed=Feed(store),
        sessions=sessions,
        cordon=Cordon(sessions=sessions.all),
        clocks=Clocks(store, timedelta()),
        gate=Gate(clock),
        auditor=auditor or Auditor(default_policy(GROUP_SUFFIX), [], clock),
        limits=AccessLimits(clock, capacity),
        tempo=Tempo(INTERVAL, beats_per_second=beats_per_second, sessions=sessions.__len__),
        default_lease_duration=timedelta(seconds=60),
        tokens=account_tokens(HUB, TokenKeys([pki.generate_key()])),
        trusting=Trusting(store, lambda: issuer.trust_bundle),
    )


@asynccontextmanager
async def rpc_stage(
    folder: Path,
    *,
    port: int = 0,
    window: timedelta = WINDOW,
    policy: Policy | None = None,
    capacity: Capacity | None = None,
    attestation: Attestation | None = None,
    beats_per_second: float = 0,
    interval: timedelta = INTERVAL,
) -> AsyncIterator[RpcStage]:
    """A door that serves until the block ends, and is stopped in its order then. With a `policy` it keeps audit records."""
    clock, lifetimes = SystemClock(), Lifetimes()
    async with AsyncExitStack() as stack:
        store = SqlStore(f"sqlite:///{migrated(folder / 'hub.db')}", poll=timedelta(milliseconds=50))
        await store.open()
        stack.push_async_callback(store.close)
        issuer = LocalIssuer.open(folder, lifetimes, clock.now())
        serving = Serving(issuer.serving(folder, ServingNames(("localhost",), ("127.0.0.1",)), lifetimes, clock.now()))
        trails = [Trail(StoreSink(store, REPLICA), clock, window=window)] if policy else []
        auditor = Auditor(policy or default_policy(GROUP_SUFFIX), trails, clock)
        await auditor.open()
        parts = parts_over(
            store, issuer, clock, window=window, auditor=auditor, capacity=capacity, beats_per_second=beats_per_second
        )
        parts = replace(parts, attestor=Attestor(store, HUB, HttpsDocuments.trusting, clock, attestation))
        parts = replace(parts, tempo=replace(parts.tempo, interval=interval))
        tasks = await stack.enter_async_context(GuardedTasks("door"))
        tasks.start("feed", parts.feed.run())
        tasks.start("sessions", parts.sessions.run())
        tasks.start("cordon", parts.cordon.run())
        if parts.clocks is not None:
            tasks.start("clocks", parts.clocks.run())
        tasks.start("beats", parts.beats.run())
        tasks.start("peers", parts.peers.run())
        if parts.trusting is not None:
            tasks.start("trust", parts.trusting.run())
        if trails:
            tasks.start("audit", auditor.run())
            stack.push_async_callback(auditor.finish)
        door = RpcDoor("127.0.0.1", port, serving, parts)
        stack.push_async_callback(door.close, timedelta(seconds=1))
        await door.start()
        await door.tell_ready(ready=True)
        yield RpcStage(folder, store, issuer, door, parts, lifetimes, serving)
