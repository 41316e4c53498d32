"""A MemoryHub behind a real gRPC port with mutual TLS: what the agent's gRPC adapter is tried on before any hub is there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from ipaddress import ip_address
from typing import Any

import grpc
from grpc import aio

from machinery.conditions import Condition
from machinery.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
)
from machinery.identity import AddOnName, AgentId, ClusterName, HubId, Subject
from machinery.pki import Plan, Usage, generate_key, public_key_of, random_serial
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationServicer, add_RegistrationServicer_to_server
from machinery.wire.session.v1 import session_pb2 as wire
from machinery.wire.session.v1.session_pb2_grpc import SessionServicer, add_SessionServicer_to_server
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.namespace import ManagedNamespace, NamespaceReport
from spoke.domain.news import News
from spoke.domain.report import ClusterClaim, ClusterReport, ExternalEndpoint
from spoke.ports import ClientIdentity, Greeting, HubLostError, HubSession, Loss, RequestState, StaleEpochError
from tests.fakes.hub import MemoryHub, MemoryHubClient, RecoveringMemoryClient

Context = aio.ServicerContext[Any, Any]

_CODES = {
    AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    InvalidError: grpc.StatusCode.INVALID_ARGUMENT,
    MethodNotAllowedError: grpc.StatusCode.UNIMPLEMENTED,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    UnauthorizedError: grpc.StatusCode.UNAUTHENTICATED,
}
_LOSSES = {
    Loss.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Loss.REFUSED: grpc.StatusCode.PERMISSION_DENIED,
    Loss.SUPERSEDED: grpc.StatusCode.ABORTED,
    Loss.FORGOTTEN: grpc.StatusCode.NOT_FOUND,
    Loss.STALE: grpc.StatusCode.FAILED_PRECONDITION,
}
_STATES = {
    "pending": registration.FollowRequestResponse.STATE_PENDING,
    "denied": registration.FollowRequestResponse.STATE_DENIED,
    "issued": registration.FollowRequestResponse.STATE_ISSUED,
}


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the hub answers."""

    port: int
    server: aio.Server


@asynccontextmanager
async def listen(hub: MemoryHub, *, begins_in: timedelta = timedelta(days=-2), port: int = 0) -> AsyncIterator[Listening]:
    """Serves `hub` on a loopback port; `begins_in`: when the serving certificate begins."""
    key = generate_key()
    now = hub.clock.now()
    chain = hub.authority.sign(
        Plan(
            Subject("hub"),
            public_key_of(key),
            random_serial(),
            now + begins_in,
            now + timedelta(days=365),
            Usage.SERVER,
            ip_addresses=(str(ip_address("127.0.0.1")),),
        )
    )
    server = aio.server(options=[("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 5000)])
    add_RegistrationServicer_to_server(_Registration(hub), server)
    add_SessionServicer_to_server(_Session(hub), server)
    credentials = grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=hub.authority.certificate, require_client_auth=True
    )
    bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    await server.start()
    try:
        yield Listening(bound, server)
    finally:
        await server.stop(0)


async def _client(hub: MemoryHub, context: Context) -> MemoryHubClient:
    (pem,) = context.auth_context()["x509_pem_cert"]
    return MemoryHubClient(hub, ClientIdentity(pem, b""))


async def _refuse(context: Context, error: MusterError) -> None:
    context.set_trailing_metadata((("reason", error.reason),))
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.UNAVAILABLE)
    await context.abort(code, error.message)


def _answer(name: str, state: RequestState) -> registration.FollowRequestResponse:
    answer = registration.FollowRequestResponse(
        name=name,
        state=_STATES[state.state],
        message=state.message,
        certificate=state.certificate,
        recovery_certificate=state.recovery_certificate,
    )
    if state.hub_time is not None:
        answer.hub_time.FromDatetime(state.hub_time)
    return answer


class _Registration(RegistrationServicer):
    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def GetHub(self, request: registration.GetHubRequest, context: Context) -> registration.GetHubResponse:  # noqa: N802
        del request
        answer = registration.GetHubResponse()
        try:
            info = await (await _client(self._hub, context)).info()
            answer = registration.GetHubResponse(hub_id=info.hub_id, version=info.version, trust_bundle=info.trust_bundle)
            answer.hub_time.FromDatetime(info.time)
        except MusterError as error:
            await _refuse(context, error)
        return answer

    async def EnsureCluster(  # noqa: N802
        self, request: registration.EnsureClusterRequest, context: Context
    ) -> registration.EnsureClusterResponse:
        try:
            made = await (await _client(self._hub, context)).ensure_cluster(
                ClusterName(request.cluster_name),
                AgentId(request.agent_id),
                request.cluster_uid,
                endpoints=[ExternalEndpoint(entry.url, entry.ca_bundle) for entry in request.client_configs],
                annotations=request.annotations,
                labels=request.labels,
            )
        except MusterError as error:
            await _refuse(context, error)
            raise
        return registration.EnsureClusterResponse(created=made.created, accepted=made.accepted, uid=made.uid)

    async def SubmitRequest(  # noqa: N802
        self, request: registration.SubmitRequestRequest, context: Context
    ) -> registration.SubmitRequestResponse:
        addon = (AddOnName(request.addon.addon_name), request.addon.signer_name) if request.HasField("addon") else None
        try:
            name = await (await _client(self._hub, context)).submit_request(
                ClusterName(request.cluster_name),
                AgentId(request.agent_id),
                request.cluster_uid,
                request.request,
                duration=None,
                addon=addon,
            )
        except MusterError as error:
            await _refuse(context, error)
            raise
        return registration.SubmitRequestResponse(name=name)

    async def FollowRequest(  # noqa: N802
        self, request: registration.FollowRequestRequest, context: Context
    ) -> AsyncIterator[registration.FollowRequestResponse]:
        try:
            async for state in (await _client(self._hub, context)).follow_request(request.name):
                yield _answer(request.name, state)
        except MusterError as error:
            await _refuse(context, error)

    async def Recover(  # noqa: N802
        self, request: registration.RecoverRequest, context: Context
    ) -> AsyncIterator[registration.FollowRequestResponse]:
        try:
            (pem,) = context.auth_context()["x509_pem_cert"]
            client = RecoveringMemoryClient(self._hub, ClientIdentity(pem, b""))
            cluster, agent = ClusterName(request.cluster_name), AgentId(request.agent_id)
            name = await client.submit_request(cluster, agent, request.cluster_uid, request.request, duration=None)
            async for state in client.follow_request(name):
                yield _answer(name, state)
        except MusterError as error:
            await _refuse(context, error)

    async def StandBy(  # noqa: N802
        self, request: registration.StandByRequest, context: Context
    ) -> registration.StandByResponse:
        cluster, owner = ClusterName(request.cluster_name), HubId(request.owner_hub_id) or None
        agent = AgentId(request.agent_id)
        try:
            client = await _client(self._hub, context)
            own, trusted = (cluster, agent, request.cluster_uid), request.trusted_authorities
            told = await client.stand_by(*own, owner=owner, epoch=request.epoch, trusted=trusted)
        except MusterError as error:
            await _refuse(context, error)
            raise
        answer = registration.StandByResponse(accepted=told.accepted, epoch=told.epoch, trust_bundle=told.trust_bundle)
        answer.hub_time.FromDatetime(told.time)
        if told.renew_within is not None:
            answer.renew_within.FromTimedelta(told.renew_within)
        if told.again_after is not None:
            answer.again_after.FromTimedelta(told.again_after)
        return answer

    async def Leave(self, request: registration.LeaveRequest, context: Context) -> registration.LeaveResponse:  # noqa: N802
        cluster, agent = ClusterName(request.cluster_name), AgentId(request.agent_id)
        try:
            left = await (await _client(self._hub, context)).leave(cluster, agent, request.cluster_uid)
        except MusterError as error:
            await _refuse(context, error)
            raise
        return registration.LeaveResponse(left=left)

    async def IssueAddOnToken(  # noqa: N802
        self, request: registration.IssueAddOnTokenRequest, context: Context
    ) -> registration.IssueAddOnTokenResponse:
        duration = request.requested_duration.ToTimedelta()
        try:
            client = await _client(self._hub, context)
            issued = await client.addon_token(ClusterName(request.cluster_name), AddOnName(request.addon_name), duration)
        except MusterError as error:
            await _refuse(context, error)
            raise
        answer = registration.IssueAddOnTokenResponse(token=issued.token)
        answer.expires_at.FromDatetime(issued.expires_at)
        return answer


class _Session(SessionServicer):
    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    async def Connect(  # noqa: N802
        self, request_iterator: AsyncIterator[wire.AgentMessage], context: Context
    ) -> AsyncIterator[wire.HubMessage]:
        hello = await anext(request_iterator)
        down: asyncio.Queue[wire.HubMessage | HubLostError] = asyncio.Queue()
        client = await _client(self._hub, context)
        try:
            async with client.session(_greeting(hello.hello)) as session, asyncio.TaskGroup() as group:
                tasks = [group.create_task(work) for work in self._feeds(session, request_iterator, down)]
                welcome = wire.Welcome(hub_id=self._hub.hub_id, protocol_version="v1", session_id="s")
                welcome.hub_time.FromDatetime(self._hub.clock.now())
                welcome.beat_interval.FromTimedelta(session.beat_interval)
                yield wire.HubMessage(welcome=welcome)
                while isinstance(message := await down.get(), wire.HubMessage):
                    yield message
                for task in tasks:
                    task.cancel()
                raise message
        except* HubLostError as lost:
            error = lost.exceptions[0]
            if isinstance(error, StaleEpochError):
                context.set_trailing_metadata((("reason", "StaleEpoch"), ("epoch", str(error.epoch))))
            code = _LOSSES.get(error.loss) if isinstance(error, HubLostError) else None
            await context.abort(code or grpc.StatusCode.UNAVAILABLE, str(error))

    def _feeds(
        self, session: HubSession, up: AsyncIterator[wire.AgentMessage], down: "asyncio.Queue[wire.HubMessage | HubLostError]"
    ) -> Any:
        yield _take(session, up, down)
        yield _want(session, down)
        yield _drain(session, down)
        yield _push(session, down)
        yield _end(session, down)


async def _take(
    session: HubSession, up: AsyncIterator[wire.AgentMessage], down: "asyncio.Queue[wire.HubMessage | HubLostError]"
) -> None:
    with suppress(HubLostError):
        async for message in up:
            match message.WhichOneof("message"):
                case "beat":
                    verdicts = {wire.VERDICT_AVAILABLE: True, wire.VERDICT_UNAVAILABLE: False}
                    await session.beat(available=verdicts.get(message.beat.verdict))
                    down.put_nowait(wire.HubMessage(beat_ack=wire.BeatAck(sequence=message.beat.sequence)))
                case "status":
                    down.put_nowait(wire.HubMessage(report_ack=await _report(session, message.status)))
                case "hubs":
                    await session.tell_hubs(_hubs(message.hubs))
                case "trust_installed":
                    await session.trust_installed(message.trust_installed.trusted_authorities)
                case "event":
                    told = message.event
                    await session.tell(News(told.reason, told.message, told.type, told.addon_name))
                case "farewell":
                    await session.farewell(HubId(message.farewell.hub_id), message.farewell.epoch)
                case "addon":
                    conditions = [Condition(c.type, c.status, c.reason, c.message) for c in message.addon.conditions]
                    name, driver = AddOnName(message.addon.addon_name), message.addon.kube_client_driver
                    revision = await session.report_addon(name, conditions, driver=driver)
                    ack = wire.ReportAck(sequence=message.addon.sequence, revision=revision)
                    down.put_nowait(wire.HubMessage(report_ack=ack))


def _greeting(hello: wire.Hello) -> Greeting:
    return Greeting(hello.cluster_uid, hello.epoch, _hubs(hello.hubs), tuple(hello.trusted_authorities))


def _hubs(listed: wire.Hubs) -> tuple[ListedHub, ...]:
    return tuple(
        ListedHub(
            HubId(hub.hub_id),
            hub.name,
            hub.url,
            HubState[wire.Hub.State.Name(hub.state).removeprefix("STATE_")],
            hub.credential_ends_at.ToDatetime(UTC) if hub.HasField("credential_ends_at") else None,
        )
        for hub in listed.hubs
    )


async def _report(session: HubSession, status: wire.StatusReport) -> wire.ReportAck:
    report = ClusterReport(
        conditions=tuple(Condition(c.type, c.status, c.reason, c.message) for c in status.conditions),
        complete=status.complete,
        capacity=dict(status.capacity),
        allocatable=dict(status.allocatable),
        kubernetes_version=status.kubernetes_version,
        claims=tuple(ClusterClaim(claim.name, claim.value) for claim in status.claims),
        node_count=status.node_count,
        endpoints=tuple(ExternalEndpoint(entry.url, entry.ca_bundle) for entry in status.client_configs),
        namespaces=tuple(
            NamespaceReport(ManagedNamespace(one.name, one.cluster_set), Condition(c.type, c.status, c.reason, c.message))
            for one in status.managed_namespaces
            for c in one.conditions
        ),
    )
    try:
        return wire.ReportAck(sequence=status.sequence, revision=await session.report(report))
    except HubLostError:
        raise
    except MusterError as error:
        return wire.ReportAck(sequence=status.sequence, reason=error.reason, message=error.message)


async def _want(session: HubSession, down: "asyncio.Queue[wire.HubMessage | HubLostError]") -> None:
    with suppress(HubLostError):
        async for desired in session.desired():
            message = wire.Desired(accepted=desired.accepted, revision=desired.revision)
            message.lease_duration.FromTimedelta(desired.lease_duration)
            if desired.renewal is not None and desired.renewal.within is not None:
                message.renew_within.FromTimedelta(desired.renewal.within)
            if desired.renewal is not None and desired.renewal.addons_before is not None:
                message.renew_addons_before.FromDatetime(desired.renewal.addons_before)
            for each in desired.namespaces:
                message.managed_namespaces.add(name=each.name, cluster_set=each.cluster_set)
            for addon in desired.addons:
                message.addons.add(
                    name=addon.name,
                    install_namespace=addon.install_namespace,
                    token_account_uid=addon.account_uid,
                    registrations=[
                        wire.AddOnRegistration(
                            signer_name=entry.signer_name, user=entry.user, groups=entry.groups, driver=entry.driver
                        )
                        for entry in addon.registrations
                    ],
                )
            down.put_nowait(wire.HubMessage(desired=message))


async def _drain(session: HubSession, down: "asyncio.Queue[wire.HubMessage | HubLostError]") -> None:
    while True:
        drain = await session.drained()
        message = wire.Drain(reason=drain.reason, target_hub_id=drain.target or "")
        message.reconnect_after.FromTimedelta(drain.reconnect_after)
        down.put_nowait(wire.HubMessage(drain=message))


async def _push(session: HubSession, down: "asyncio.Queue[wire.HubMessage | HubLostError]") -> None:
    while True:
        bundle = await session.trust_bundle()
        down.put_nowait(wire.HubMessage(trust_bundle=wire.TrustBundle(certificates=bundle)))


async def _end(session: HubSession, down: "asyncio.Queue[wire.HubMessage | HubLostError]") -> None:
    lost = await session.ended()
    if isinstance(lost, HubLostError):
        down.put_nowait(lost)
