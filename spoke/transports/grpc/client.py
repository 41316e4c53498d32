"""HubClient over gRPC with one credential: unary calls, the stream of a certificate request, the session."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc import aio

from machinery.client.proxy import shown_proxy
from machinery.errors import MethodNotAllowedError, MusterError, NotFoundError, UnavailableError
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.observability import tracing
from machinery.runtime.clock import Clock
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1.session_pb2_grpc import SessionStub
from spoke.domain.addon import AddOnToken
from spoke.domain.hubs import HubAcceptance
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import ExternalEndpoint
from spoke.domain.schedule import Detection, ack_timeout
from spoke.ports.hub import (
    NONE,
    ClientIdentity,
    CSRState,
    HubAddress,
    HubClient,
    HubInfo,
    HubLostError,
    HubSession,
    RegistrationState,
    SessionHello,
    StandbyAnswer,
    TransportFeature,
)
from spoke.transports.grpc.channel import HubBackoff, diagnose, dialled
from spoke.transports.grpc.errors import OVERLOADED, HubBusyError, StreamBrokenError, to_error
from spoke.transports.grpc.messages import carried, client_configs, named, request_state, standby_answer
from spoke.transports.grpc.session import GrpcSession

if TYPE_CHECKING:
    from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationAsyncStub

Request = TypeVar("Request")
Answer = TypeVar("Answer")

_ACCEPTANCES = {
    wire.GetHubResponse.ACCEPTANCE_WAITING: HubAcceptance.WAITING,
    wire.GetHubResponse.ACCEPTANCE_ACCEPTED: HubAcceptance.ACCEPTED,
    wire.GetHubResponse.ACCEPTANCE_DENIED: HubAcceptance.DENIED,
}
SESSION_ATTEMPTS = 3
CALL_TIMEOUT = timedelta(seconds=15)
_OPTIONS = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's bandwidth probe is not needed here, and its pings would wake up the hub at each message.
    ("grpc.http2.bdp_probe", 0),
    # The agent itself reconnects, with a new channel for each attempt, so that gRPC's own backoff has no effect.
    ("grpc.enable_retries", 0),
)


class GrpcHubClient(HubClient):
    """A client with one channel, which the first call opens."""

    def __init__(
        self,
        address: HubAddress,
        identity: ClientIdentity,
        clock: Clock,
        detection: Detection | None = None,
        backoff: HubBackoff | None = None,
    ) -> None:
        self._address = address
        self._identity = identity
        self._clock = clock
        self._detection = detection or Detection()
        self._backoff = backoff or HubBackoff()
        self._dialled = dialled(address)
        self._opened: aio.Channel | None = None
        self._attestation = ""

    @property
    def features(self) -> frozenset[TransportFeature]:
        return frozenset(TransportFeature)

    @tracing.client_span("get hub")
    async def info(self) -> HubInfo:
        answer = await self._call(self._stub.GetHub, wire.GetHubRequest())
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
        answer = await self._call(self._stub.EnsureCluster, request)
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
        submitted = await self._call(self._stub.SubmitRequest, message)
        self._backoff.answered(self._address.target)
        return submitted.name

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        call = self._stub.FollowRequest(wire.FollowRequestRequest(name=name), metadata=carried())
        try:
            async for answer in _answers(call):
                if (state := request_state(answer)) is not None:
                    yield state
        except aio.AioRpcError as error:
            raise self._paused(error, to_error(error)) from error
        finally:
            call.cancel()

    @tracing.client_span("issue addon token")
    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        request = wire.IssueAddOnTokenRequest(cluster_name=cluster, addon_name=addon)
        request.requested_duration.FromTimedelta(duration)
        answer = await self._call(self._stub.IssueAddOnToken, request)
        return AddOnToken(answer.token, answer.expires_at.ToDatetime(UTC))

    @asynccontextmanager
    async def session(self, greeting: SessionHello) -> AsyncIterator[HubSession]:
        session = await self._open_session(greeting)
        try:
            yield session
        finally:
            await session.stop()

    @tracing.client_span("stand by")
    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> StandbyAnswer:
        request = wire.StandByRequest(**named(agent), owner_hub_id=owner or "", epoch=epoch, trusted_authorities=trusted)
        answer = await self._call(self._stub.StandBy, request)
        self._backoff.answered(self._address.target)
        return standby_answer(answer)

    @tracing.client_span("leave")
    async def leave(self, agent: AgentIdentity) -> bool:
        return (await self._call(self._stub.Leave, wire.LeaveRequest(**named(agent)))).left

    @tracing.client_span("get hub")
    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        del cluster  # the certificate contains the name
        answer = await self._call(self._stub.GetHub, wire.GetHubRequest(with_acceptance=True))
        return _ACCEPTANCES.get(answer.acceptance, HubAcceptance.UNKNOWN)

    @tracing.client_span("withdraw")
    async def withdraw(self, agent: AgentIdentity) -> bool:
        return not (await self._call(self._stub.Leave, wire.LeaveRequest(**named(agent)))).cluster_stays

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    @property
    def _channel(self) -> aio.Channel:
        if self._opened is None:
            credentials = grpc.ssl_channel_credentials(
                root_certificates=self._address.ca, private_key=self._identity.key, certificate_chain=self._identity.certificate
            )
            millisecond = timedelta(milliseconds=1)
            keepalive = (
                ("grpc.keepalive_time_ms", self._detection.keepalive // millisecond),
                ("grpc.keepalive_timeout_ms", self._detection.keepalive_timeout // millisecond),
            )
            first, options = self._dialled
            self._opened = aio.secure_channel(first, credentials, options=(*_OPTIONS, *keepalive, *options))
        return self._opened

    @property
    def _stub(self) -> "RegistrationAsyncStub":
        return RegistrationStub(self._channel)

    @tracing.client_span("open session")
    async def _open_session(self, greeting: SessionHello) -> GrpcSession:
        """Open a session. Retry if the hub refused it while Hello was being sent, because the reason was lost then."""
        self._dialled = await self._backoff.dialled(self._address)
        left = SESSION_ATTEMPTS
        while True:
            connect = partial(SessionStub(self._channel).Connect, metadata=carried())
            session = GrpcSession(connect, self._clock, ack_timeout(timedelta(), self._detection.silence))
            try:
                async with asyncio.timeout(self._backoff.timeout(self._address.target).total_seconds()):
                    await session.start(greeting)
            except BaseException as error:
                await session.stop()
                left -= 1
                if isinstance(error, TimeoutError):
                    self._backoff.silent(self._address.target)
                    silence = "the hub did not answer with Welcome in time"
                    raise HubLostError(silence, SessionLoss.SILENT, retry_after=self._pause()) from error
                if isinstance(error, HubBusyError):
                    error.retry_after = self._pause(error.retry_after)
                if not isinstance(error, StreamBrokenError):
                    if isinstance(error, HubLostError) and error.loss is SessionLoss.UNREACHABLE and error.retry_after is None:
                        raise HubLostError(await self._explain(error.message), SessionLoss.UNREACHABLE) from error
                    raise
                if not left:
                    raise
            else:
                self._backoff.answered(self._address.target)
                return session

    async def _call(self, method: "aio.UnaryUnaryMultiCallable[Request, Answer]", request: Request) -> Answer:
        try:
            return await method(request, timeout=CALL_TIMEOUT.total_seconds(), metadata=carried())
        except aio.AioRpcError as error:
            raise await self._translate(error) from error

    async def _translate(self, error: aio.AioRpcError) -> MusterError:
        translated = self._paused(error, to_error(error))
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return UnavailableError(await self._explain(translated.message), retry_after=translated.retry_after)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return MethodNotAllowedError(f"the hub's release does not have this call: {translated.message}")
        return translated

    def _pause(self, requested: timedelta | None = None) -> timedelta:
        """Return the pause after an attempt that the hub did not serve: at least as long as the hub has requested."""
        return max(self._backoff.pause(self._address.target), requested or timedelta())

    def _paused(self, error: aio.AioRpcError, translated: MusterError) -> MusterError:
        if error.code() in OVERLOADED:
            translated.retry_after = self._pause(translated.retry_after)
        return translated

    async def _explain(self, message: str) -> str:
        """Return the message of gRPC, or the actual cause if `diagnose` finds one."""
        if self._address.proxy:
            return f"{message} (through the proxy {shown_proxy(self._address.proxy)})"
        try:
            found = await diagnose(self._address, self._identity, self._clock.now())
        except MusterError:
            return message
        return found or message


async def _answers(
    call: "aio.UnaryStreamCall[Request, wire.FollowRequestResponse]",
) -> AsyncGenerator[wire.FollowRequestResponse, None]:
    """Yield the answers of a call. `async for` over the call makes a reference cycle, which keeps the connection open."""
    while isinstance(answer := await call.read(), wire.FollowRequestResponse):
        yield answer


class RecoveringHubClient(GrpcHubClient):
    """Client with a recovery certificate. The hub allows only the call Recover, which submits a request and follows it."""

    _request: wire.RecoverRequest | None = None

    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        del addon
        self._request = wire.RecoverRequest(**named(agent), request=request)
        if duration is not None:
            self._request.requested_duration.FromTimedelta(duration)
        async with aclosing(self._recover(self._request)) as answers:
            async for answer in answers:
                return answer.name
        raise UnavailableError("the hub did not return the name of the certificate signing request")

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        """Follow a request. Raises NotFoundError if another client has submitted it; the caller then submits it anew."""
        if self._request is None:
            raise NotFoundError(f'the certificate signing request "{name}" was submitted with another credential')
        async with aclosing(self._recover(self._request)) as answers:
            async for answer in answers:
                if (state := request_state(answer)) is not None:
                    yield state

    async def _recover(self, request: wire.RecoverRequest) -> AsyncGenerator[wire.FollowRequestResponse, None]:
        call = self._stub.Recover(request, metadata=carried())
        try:
            async for answer in _answers(call):
                yield answer
        except aio.AioRpcError as error:
            raise await self._translate(error) from error
        finally:
            call.cancel()
