"""HubClient over gRPC with one credential: unary calls, the stream of a certificate request, the session."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from typing import TypedDict, TypeVar

import grpc
from grpc import aio

from machinery.errors import MethodNotAllowedError, MusterError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.observability import tracing
from machinery.runtime.clock import Clock
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1.session_pb2_grpc import SessionStub
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionEnd
from spoke.domain.report import ExternalEndpoint
from spoke.domain.route import shown_proxy
from spoke.domain.schedule import Detection, patience
from spoke.ports.hub import (
    NONE,
    AddOnToken,
    Capability,
    ClientIdentity,
    CSRState,
    HubAcceptance,
    HubAddress,
    HubClient,
    HubInfo,
    HubLostError,
    HubSession,
    RegistrationState,
    SessionHello,
    StandbyAnswer,
)
from spoke.transports.grpc.channel import AddressRotation, diagnose, dialled
from spoke.transports.grpc.errors import StreamBrokenError, to_error
from spoke.transports.grpc.messages import client_configs, request_state, standby_answer
from spoke.transports.grpc.session import GrpcSession

T = TypeVar("T")

_ACCEPTANCES = {
    wire.GetHubResponse.ACCEPTANCE_WAITING: HubAcceptance.WAITING,
    wire.GetHubResponse.ACCEPTANCE_ACCEPTED: HubAcceptance.ACCEPTED,
    wire.GetHubResponse.ACCEPTANCE_DENIED: HubAcceptance.DENIED,
}
CALL_TIMEOUT = timedelta(seconds=15)
WELCOME_TIMEOUT = timedelta(seconds=5)
"""A frozen replica behind a load balancer still accepts connections; after this time the next attempt uses another address."""
_OPTIONS = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # The bandwidth probe is unused here, and its ping for each message wakes up the hub.
    ("grpc.http2.bdp_probe", 0),
    # Reconnecting is ours: each attempt opens a new channel, so that gRPC never waits by itself.
    ("grpc.enable_retries", 0),
)


class _Bounded(TypedDict):
    timeout: float
    metadata: aio.Metadata | None


class GrpcHubClient(HubClient):
    """One channel, opened by the first call."""

    def __init__(
        self,
        address: HubAddress,
        identity: ClientIdentity,
        clock: Clock,
        detection: Detection | None = None,
        turns: AddressRotation | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._clock = clock
        self._detection = detection or Detection()
        self._turns = turns or AddressRotation()
        self._dialled = dialled(address)
        self._opened: aio.Channel | None = None
        self._attestation = ""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    @tracing.client_span("get hub")
    async def info(self) -> HubInfo:
        answer = await self._call(RegistrationStub(self._channel).GetHub(wire.GetHubRequest(), **_bounded()))
        return HubInfo(
            hub_id=HubId(answer.hub_id),
            time=answer.hub_time.ToDatetime(UTC),
            version=answer.version,
            trust_bundle=answer.trust_bundle,
            attestation_audience=answer.attestation_audience,
        )

    def bring(self, attestation: str) -> None:
        self._attestation = attestation

    @tracing.client_span("ensure cluster")
    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        request = wire.EnsureClusterRequest(
            **named(agent),
            client_configs=client_configs(endpoints),
            annotations=dict(annotations),
            labels=dict(labels),
            attestation=self._attestation,
        )
        stub = RegistrationStub(self._channel)
        answer = await self._call(stub.EnsureCluster(request, **_bounded()))
        return RegistrationState(created=answer.created, accepted=answer.accepted, uid=answer.uid)

    @tracing.client_span("submit request")
    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        message = wire.SubmitRequestRequest(**named(agent), request=request, attestation=self._attestation)
        if duration is not None:
            message.requested_duration.FromTimedelta(duration)
        if addon is not None:
            name, signer = addon
            message.addon.CopyFrom(wire.AddOnRequest(addon_name=name, signer_name=signer))
        stub = RegistrationStub(self._channel)
        return (await self._call(stub.SubmitRequest(message, **_bounded()))).name

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        call = RegistrationStub(self._channel).FollowRequest(wire.FollowRequestRequest(name=name), metadata=carried())
        try:
            async for answer in call:
                if (state := request_state(answer)) is not None:
                    yield state
        except aio.AioRpcError as error:
            raise to_error(error) from error
        finally:
            call.cancel()

    @tracing.client_span("issue addon token")
    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        request = wire.IssueAddOnTokenRequest(cluster_name=cluster, addon_name=addon)
        request.requested_duration.FromTimedelta(duration)
        stub = RegistrationStub(self._channel)
        answer = await self._call(stub.IssueAddOnToken(request, **_bounded()))
        return AddOnToken(answer.token, answer.expires_at.ToDatetime(UTC))

    @asynccontextmanager
    async def session(self, greeting: SessionHello) -> AsyncIterator[HubSession]:
        session = await self._opened_session(greeting)
        try:
            yield session
        finally:
            await session.stop()

    @tracing.client_span("stand by")
    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> StandbyAnswer:
        request = wire.StandByRequest(
            **named(agent),
            owner_hub_id=owner or "",
            epoch=epoch,
            trusted_authorities=trusted,
        )
        return standby_answer(await self._call(RegistrationStub(self._channel).StandBy(request, **_bounded())))

    @tracing.client_span("leave")
    async def leave(self, agent: AgentIdentity) -> bool:
        request = wire.LeaveRequest(**named(agent))
        return (await self._call(RegistrationStub(self._channel).Leave(request, **_bounded()))).left

    @tracing.client_span("get hub")
    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        del cluster  # the certificate names it
        request = wire.GetHubRequest(with_acceptance=True)
        answer = await self._call(RegistrationStub(self._channel).GetHub(request, **_bounded()))
        return _ACCEPTANCES.get(answer.acceptance, HubAcceptance.UNKNOWN)

    @tracing.client_span("withdraw")
    async def withdraw(self, agent: AgentIdentity) -> bool:
        request = wire.LeaveRequest(**named(agent))
        return not (await self._call(RegistrationStub(self._channel).Leave(request, **_bounded()))).cluster_stays

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    @property
    def _channel(self) -> aio.Channel:
        if self._opened is None:
            credentials = grpc.ssl_channel_credentials(
                root_certificates=self._address.ca,
                private_key=self._identity.key,
                certificate_chain=self._identity.certificate,
            )
            first, options = self._dialled
            self._opened = aio.secure_channel(first, credentials, options=(*_OPTIONS, *_keepalive(self._detection), *options))
        return self._opened

    @tracing.client_span("open session")
    async def _opened_session(self, greeting: SessionHello) -> GrpcSession:
        """Open a session. A refusal that our own Hello interrupted is repeated (three attempts), because its reason matters."""
        attempts = 3
        self._dialled = await self._turns.dialled(self._address)
        while True:
            stream = SessionStub(self._channel).Connect(metadata=carried())
            session = GrpcSession(stream, self._clock, patience(timedelta(), self._detection.silence))
            try:
                await self._welcome(session, greeting)
            except StreamBrokenError:
                await session.stop()
                attempts -= 1
                if not attempts:
                    raise
            except BaseException:
                await session.stop()
                raise
            else:
                return session

    async def _welcome(self, session: GrpcSession, greeting: SessionHello) -> None:
        try:
            async with asyncio.timeout(_seconds(WELCOME_TIMEOUT)):
                await session.start(greeting)
        except TimeoutError as error:
            self._turns.silent(self._address.target)
            raise HubLostError("the hub did not welcome the session in time", SessionEnd.SILENT) from error
        except HubLostError as error:
            if error.loss is not SessionEnd.UNREACHABLE or isinstance(error, StreamBrokenError):
                raise
            raise HubLostError(await self._explained(error.message), SessionEnd.UNREACHABLE) from error

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except aio.AioRpcError as error:
            translated = to_error(error)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                explained = await self._explained(translated.message)
                raise UnavailableError(explained, retry_after=translated.retry_after) from error
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise MethodNotAllowedError(
                    f"the hub is of a release that does not know this call: {translated.message}"
                ) from error
            raise translated from error

    async def _explained(self, message: str) -> str:
        """Return the message of gRPC, or the actual cause if `diagnose` finds one."""
        if self._address.proxy:
            return f"{message} (through the proxy {shown_proxy(self._address.proxy)})"
        try:
            found = await diagnose(self._address, self._identity, self._clock.now())
        except MusterError:
            return message
        return found or message


class _Named(TypedDict):
    cluster_name: str
    agent_id: str
    cluster_uid: str


def named(agent: AgentIdentity) -> _Named:
    return {"cluster_name": agent.cluster, "agent_id": agent.agent, "cluster_uid": agent.cluster_uid}


def _keepalive(detection: Detection) -> tuple[tuple[str, int], ...]:
    milliseconds = timedelta(milliseconds=1)
    return (
        ("grpc.keepalive_time_ms", detection.keepalive // milliseconds),
        ("grpc.keepalive_timeout_ms", detection.keepalive_timeout // milliseconds),
    )


def _bounded() -> _Bounded:
    """Timeout and metadata of every unary call."""
    return {"timeout": _seconds(CALL_TIMEOUT), "metadata": carried()}


def carried() -> aio.Metadata | None:
    """The trace context for the hub as gRPC metadata; None without one."""
    sent = tracing.carried()
    return aio.Metadata(*sent) if sent else None


def _seconds(duration: timedelta) -> float:
    return duration.total_seconds()
