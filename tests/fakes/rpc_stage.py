"""A hub's door for agents, and the certificates to call it with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hub.api.auditrecords import AuditQuery, AuditRecord, read_record
from hub.api.bootstrapcredentials import UNBOUND, CredentialBounds
from hub.api.certificates import CertificateRecord, Lifetimes, Purpose
from hub.api.liveness import LastBeat
from hub.grpc_door.errors import REASON
from hub.grpc_door.server import RpcDoor
from hub.grpc_door.session.context import DoorContext
from hub.ports import Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.certificatesigningrequests import issuance, service as requests
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.identity import agent_id, agent_subject, cluster_name
from machinery.meta.objects import Query
from machinery.runtime.clock import SystemClock
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from machinery.wire.session.v1.session_pb2_grpc import SessionStub
from tests.fakes.inprocess_hub import InProcessHub

ADMIN = "admin"
REPLICA = "stage"
PATIENT = {"shutdown_grace": timedelta(milliseconds=250)}
"""For a stage whose door is stopped while calls come: as long a wait for a quiet moment as with the default settings."""
INTERVAL = timedelta(seconds=10)
PENDING, ISSUED = registration.FollowRequestResponse.STATE_PENDING, registration.FollowRequestResponse.STATE_ISSUED


def csr(cluster: str = "edge1", agent: str = "agent", key: bytes | None = None) -> bytes:
    """A certificate request of an agent."""
    return pki.build_request(agent_subject(cluster_name(cluster), agent_id(agent)), key or pki.generate_key())


def submission(cluster: str = "edge1", request: bytes | None = None, **fields: Any) -> registration.SubmitRequestRequest:
    asked = {"cluster_name": cluster, "agent_id": "agent", "cluster_uid": "uid-1", **fields}
    return registration.SubmitRequestRequest(request=csr(cluster) if request is None else request, **asked)


def joining(
    cluster: str = "edge1", uid: str = "uid-1", agent: str = "agent", **fields: Any
) -> registration.EnsureClusterRequest:
    return registration.EnsureClusterRequest(cluster_name=cluster, cluster_uid=uid, agent_id=agent, **fields)


def following(name: str) -> registration.FollowRequestRequest:
    return registration.FollowRequestRequest(name=name)


class SetClock(SystemClock):
    """The machine's clocks, but the time of day stands still until a test sets it."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC)

    def now(self) -> datetime:
        return self.at


@dataclass(frozen=True)
class Refusal:
    """How a call failed."""

    code: grpc.StatusCode
    message: str
    trailing: dict[str, str]

    @property
    def reason(self) -> tuple[grpc.StatusCode, str]:
        return self.code, self.trailing.get(REASON, "")


async def refusal(call: Awaitable[Any]) -> Refusal:
    """AssertionError when the call succeeds."""
    try:
        await call
    except aio.AioRpcError as error:
        trailing = {str(name): str(value) for name, value in error.trailing_metadata() or ()}
        return Refusal(error.code(), error.details() or "", trailing)
    raise AssertionError("the call succeeded")


async def until_found(look: Callable[[], Awaitable[object]]) -> None:
    """Waits until what `look` reads is true. Raises TimeoutError."""
    async with asyncio.timeout(20):
        while not await look():  # noqa: ASYNC110 - the database notifies nobody
            await asyncio.sleep(0.01)


class RpcStage(InProcessHub):
    """A hub that runs no controllers: its door for agents, and short ways through registration."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"replica_name": REPLICA, "beat_interval": INTERVAL, **options})
        self.channels: list[aio.Channel] = []  # closed at the end of the stage

    @property
    def door(self) -> RpcDoor:
        return self.hub.agents.door

    @property
    def parts(self) -> DoorContext:
        return self.hub.agents.parts

    @property
    def lifetimes(self) -> Lifetimes:
        return self.hub.core.context.lifetimes

    def channel(self, credential: Credential, trust: bytes | None = None) -> aio.Channel:
        credentials_ = grpc.ssl_channel_credentials(trust or self.issuer.trust_bundle, credential.key, credential.chain)
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels.append(aio.secure_channel(f"localhost:{self.door.port}", credentials_, options))
        return self.channels[-1]

    def stub(self, credential: Credential) -> Any:
        """For calls of the registration service, over a connection of its own."""
        return RegistrationStub(self.channel(credential))

    async def bootstrap(
        self,
        cluster: str | None,
        *,
        uses: int | None = None,
        lifetime: timedelta | None = None,
        bounds: CredentialBounds = UNBOUND,
    ) -> Credential:
        """A bootstrap credential."""
        key, bound = pki.generate_key(), None if cluster is None else cluster_name(cluster)
        terms = CredentialTerms(bound, uses, self.lifetimes.bootstrap if lifetime is None else lifetime, bounds)
        public_key, lifetimes = pki.public_key_of(key), self.lifetimes
        _, issued = await self.store.run(credentials.create, terms, public_key, self.issuer, lifetimes=lifetimes, actor=ADMIN)
        return Credential(issued.chain, key)

    async def join(self, stub: Any, cluster: str, *, uid: str = "uid-1", agent: str = "agent") -> None:
        await stub.EnsureCluster(joining(cluster, uid, agent))

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
        request = csr(cluster, agent, key)
        async with self.channel(await self.bootstrap(cluster)) as channel:
            stub = RegistrationStub(channel)
            await self.join(stub, cluster, uid=uid, agent=agent)
            name = (await stub.SubmitRequest(submission(cluster, request, agent_id=agent, cluster_uid=uid))).name
            await self.accept(cluster, accepted=accepted)
            await self.approve(name, lifetimes)
            async for answer in stub.FollowRequest(following(name)):
                if answer.state == ISSUED:
                    return Credential(answer.recovery_certificate if recovery else answer.certificate, key)
        raise AssertionError("the certificate was not issued")

    async def approve(self, name: str, lifetimes: Lifetimes | None = None) -> None:
        await self.store.run(requests.decide, name, approve=True, reason="Test", message="", actor=ADMIN)
        await self.store.run(issuance.issue, name, self.issuer, lifetimes or self.lifetimes, ADMIN)

    async def records(self, cluster: str, purpose: Purpose = Purpose.AGENT) -> list[CertificateRecord]:
        found = await self.store.read(lambda tx: tx.certificates.of_cluster(cluster_name(cluster)))
        return [record for record in found if record.purpose is purpose]

    async def cluster(self, name: str) -> dict[str, Any]:
        return dict((await self.store.read(clusters.find, cluster_name(name))).document)

    async def last_beat(self, cluster: str = "edge1") -> LastBeat:
        """AssertionError when there is none."""
        last = await self.store.read(lambda tx: tx.heartbeats.of(cluster_name(cluster)))
        assert last is not None, f"{cluster} has neither a session nor a beat"
        return last

    async def session_recorded(self, cluster: str = "edge1", *, is_open: bool) -> None:
        """Returns when the cluster is on record as one with an open session, or as one without."""

        async def recorded() -> bool:
            last = await self.store.read(lambda tx: tx.heartbeats.of(cluster_name(cluster)))
            return (last is not None and last.session is not None) is is_open

        await until_found(recorded)

    async def audit(self) -> list[AuditRecord]:
        """All audit records; nothing is recorded afterwards."""
        await self.parts.sessions.write()
        await self.parts.auditor.finish()

        def stored(tx: Transaction) -> list[bytes]:
            return [entry.document for entry in tx.audit.find(AuditQuery())]

        return [record for document in await self.store.read(stored) if (record := read_record(document))]

    async def welcomed(self, credential: Credential, *, uid: str = "uid-1", **more: Any) -> "Stream":
        """A session that is open."""
        stream = await Stream.open(self, credential, uid=uid, **more)
        await stream.expect("welcome")
        return stream

    async def all(self, kind: Any) -> list[Any]:
        return [stored.document for stored in (await self.store.read(lambda tx: tx.objects.find(kind, Query()))).items]


class Stream:
    """An agent's end of a session."""

    def __init__(self, channel: aio.Channel) -> None:
        self._channel = channel
        self.call = SessionStub(channel).Connect()

    @classmethod
    async def open(cls, stage: RpcStage, credential: Credential, *, uid: str = "uid-1", **more: Any) -> "Stream":
        """An opened stream that has said hello; a refused one shows that in its status."""
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

    async def beat(self, sequence: int, verdict: wire.Verdict.ValueType = wire.VERDICT_AVAILABLE) -> wire.BeatAck:
        """Sends a heartbeat and returns the acknowledgement of it."""
        await self.send(beat=wire.Beat(sequence=sequence, verdict=verdict))
        async with asyncio.timeout(20):
            ack: wire.BeatAck = await self.expect("beat_ack")
        assert ack.sequence == sequence
        return ack

    async def report(self, sequence: int = 1, **fields: Any) -> wire.ReportAck:
        """Sends a status report and returns its acknowledgement."""
        await self.send(status=wire.StatusReport(sequence=sequence, **fields))
        ack: wire.ReportAck = await self.expect("report_ack")
        assert ack.sequence == sequence
        return ack

    def raw(self) -> Any:
        """A call without serializers."""
        return self._channel.stream_stream("/muster.session.v1.Session/Connect")()

    async def status(self) -> grpc.StatusCode:
        """Reads on until the stream has ended."""
        async with asyncio.timeout(20):
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


@asynccontextmanager
async def rpc_stage(folder: Path, **options: Any) -> AsyncIterator[RpcStage]:
    """Started, until the block ends; `options` as of InProcessHub."""
    stage = RpcStage(folder, **options)
    await stage.start()
    try:
        yield stage
    finally:
        await asyncio.gather(*(channel.close() for channel in stage.channels))
    await stage.stop()
