"""No credential opens another cluster at this door, and no odd message disturbs another agent."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio
from grpc_health.v1 import health_pb2

from hub.api.certificates import CertificateHolder, Profile, Purpose
from hub.api.logins import Login
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS
from hub.grpc_door.errors import REASON
from hub.ports import Transaction
from hub.registry import authenticators as logins, certificates
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.identity import OPERATOR_GROUP, AddOnName, CertificateSubject, addon_subject, cluster_name
from machinery.meta.objects import Key, Query
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as session, session_pb2 as wire
from tests.fakes.odd_messages import odd
from tests.fakes.rpc_stage import RpcStage, Stream, csr, following, joining, refusal, submission
from tests.trials import repeated, soaked, trials

EDGE, OTHER, WAITING = cluster_name("edge1"), "edge2", "edge2-waits"
CLOSED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
UNKNOWN_TO_TLS = (grpc.StatusCode.UNAVAILABLE,)
SERVICES = (
    *registration.DESCRIPTOR.services_by_name.values(),
    *session.DESCRIPTOR.services_by_name.values(),
    *health_pb2.DESCRIPTOR.services_by_name.values(),
)
OF_OTHER: dict[str, Any] = {"cluster_name": OTHER, "agent_id": "agent", "cluster_uid": "uid-1"}


@dataclass(frozen=True)
class Expectation:
    """A request about the other cluster. `open_to`: callers that get an answer, because it is about no cluster."""

    ask: Callable[[], Message]
    open_to: frozenset[str] = frozenset()
    hidden: bool = False  # authorized callers get an answer as if it did not exist


LOGINS = frozenset(("login", "operator's login"))
HOLDERS = LOGINS | {"agent", "add-on", "recovery", "bootstrap", "operator"}
EXPECTED = {
    "Registration/GetHub": Expectation(registration.GetHubRequest, HOLDERS - {"recovery", *LOGINS}),
    "Registration/EnsureCluster": Expectation(lambda: joining(OTHER)),
    "Registration/SubmitRequest": Expectation(lambda: submission(OTHER)),
    "Registration/FollowRequest": Expectation(lambda: following(WAITING)),
    "Registration/Recover": Expectation(lambda: registration.RecoverRequest(request=csr(OTHER), **OF_OTHER)),
    "Registration/StandBy": Expectation(lambda: registration.StandByRequest(epoch=9, owner_hub_id="elsewhere", **OF_OTHER)),
    "Registration/Leave": Expectation(lambda: registration.LeaveRequest(**OF_OTHER)),
    "Registration/IssueAddOnToken": Expectation(
        lambda: registration.IssueAddOnTokenRequest(cluster_name=OTHER, addon_name="metrics")
    ),
    # A session is of the certificate's cluster whatever it says: an agent opens its own.
    "Session/Connect": Expectation(
        lambda: session.AgentMessage(hello=session.Hello(agent_version="1", cluster_uid="uid-1")), frozenset(("agent",))
    ),
    # Every caller with a certificate of this hub may see whether it serves.
    "Health/Check": Expectation(health_pb2.HealthCheckRequest, HOLDERS | {"revoked"}),
    "Health/Watch": Expectation(health_pb2.HealthCheckRequest, HOLDERS | {"revoked"}),
}  # by service and method


def methods() -> Iterator[tuple[str, Any]]:
    for service in SERVICES:
        for method in service.methods:
            if (service.name, method.name) == ("Health", "List"):
                continue  # of a newer protocol: this door does not have it, which the library logs as an error
            yield f"{service.name}/{method.name}", method


async def signed(stage: RpcStage, purpose: Purpose, subject: CertificateSubject, holder: CertificateHolder) -> Credential:
    key = pki.generate_key()

    def sign(tx: Transaction) -> bytes:
        ends = tx.now + timedelta(hours=1)
        profile = Profile(purpose, subject, pki.public_key_of(key), tx.now - stage.lifetimes.backdate, ends)
        return certificates.sign(tx, stage.issuer, profile, holder).chain

    return Credential(await stage.store.run(sign), key)


async def logged_in(stage: RpcStage, *groups: str) -> Credential:
    key, login = pki.generate_key(), Login("ann", groups)
    issued = await stage.store.run(logins.admit, login, pki.public_key_of(key), stage.issuer, stage.lifetimes)
    return Credential(issued.chain, key)


@pytest.fixture
async def askers(stage: RpcStage) -> dict[str, Credential | None]:
    """Everybody who may not open the other cluster."""
    await stage.enrol(OTHER)
    submitted = await stage.stub(await stage.bootstrap(OTHER)).SubmitRequest(submission(OTHER))
    EXPECTED["Registration/FollowRequest"] = Expectation(lambda: following(submitted.name), hidden=True)
    addon, revoked = CertificateHolder(cluster=EDGE, addon=AddOnName("metrics")), await stage.enrol("edge3")
    await stage.store.run(certificates.revoke_cluster, cluster_name("edge3"), "Test")
    return {
        "agent": await stage.enrol("edge1"),
        "add-on": await signed(
            stage, Purpose.ADDON, addon_subject(cluster_name("edge1"), AddOnName("metrics"), "agent"), addon
        ),
        "recovery": await stage.enrol("edge4", recovery=True),
        "bootstrap": await stage.bootstrap("edge5"),
        "login": await logged_in(stage, "ops"),
        "operator's login": await logged_in(stage, "ops", OPERATOR_GROUP),
        "operator": await signed(
            stage, Purpose.OPERATOR, CertificateSubject("admin", frozenset(("system:masters",))), CertificateHolder()
        ),
        "revoked": revoked,
        "nobody": None,
    }


async def code_of(channel: aio.Channel, name: str, method: Any) -> grpc.StatusCode:
    """The status of one call; of a stream the first answer is waited for: OK when there is one."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    forms = {"request_serializer": lambda message: message.SerializeToString(), "response_deserializer": bytes}
    asked = EXPECTED[name].ask()
    try:
        async with asyncio.timeout(20):
            if method.client_streaming:
                stream = channel.stream_stream(path, **forms)()
                await stream.write(asked)
                return await _first(stream)
            if method.server_streaming:
                return await _first(channel.unary_stream(path, **forms)(asked))
            await channel.unary_unary(path, **forms)(asked)
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _first(stream: Any) -> grpc.StatusCode:
    if await stream.read() is aio.EOF:
        code: grpc.StatusCode = await stream.code()
        return code
    stream.cancel()
    return grpc.StatusCode.OK


async def test_no_method_opens_another_cluster_to_anybody(stage: RpcStage, askers: dict[str, Credential | None]) -> None:
    assert {name for name, _ in methods()} == set(EXPECTED)
    before = await seen(stage)
    wrong = []
    for who, credential in askers.items():
        async with channel_of(stage, credential) as channel:
            for name, method in methods():
                code = await code_of(channel, name, method)
                closed = CLOSED[:1] if who in LOGINS else CLOSED
                closed = (*closed, grpc.StatusCode.NOT_FOUND) if EXPECTED[name].hidden else closed
                allowed = (grpc.StatusCode.OK,) if who in EXPECTED[name].open_to else closed
                if code not in (UNKNOWN_TO_TLS if credential is None else allowed):
                    wrong.append((who, name, code.name))
    assert (wrong, await seen(stage)) == ([], before)
    assert all(one.cluster != OTHER for one in stage.parts.sessions.all())


def channel_of(stage: RpcStage, credential: Credential | None) -> aio.Channel:
    if credential is not None:
        return stage.channel(credential)
    return aio.secure_channel(
        f"localhost:{stage.door.port}",
        grpc.ssl_channel_credentials(stage.issuer.trust_bundle),
        [("grpc.use_local_subchannel_pool", 1)],
    )


async def seen(stage: RpcStage) -> tuple[Any, ...]:
    """All that is stored of the other cluster."""

    def look(tx: Transaction) -> tuple[Any, ...]:
        cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", OTHER))
        requests = [stored.key.name for stored in tx.objects.find(REQUESTS, Query()).items if OTHER in stored.key.name]
        records = [(record.serial, record.revoked_at) for record in tx.certificates.of_cluster(cluster_name(OTHER))]
        return cluster.encoded if cluster else None, sorted(requests), records, tx.heartbeats.of(cluster_name(OTHER))

    return await stage.store.read(look)


DEFECT = "InternalError"
METHODS = {
    "GetHub": registration.GetHubRequest,
    "EnsureCluster": registration.EnsureClusterRequest,
    "SubmitRequest": registration.SubmitRequestRequest,
    "FollowRequest": registration.FollowRequestRequest,
    "Recover": registration.RecoverRequest,
    "StandBy": registration.StandByRequest,
    "Leave": registration.LeaveRequest,
    "IssueAddOnToken": registration.IssueAddOnTokenRequest,
}
CALLS = trials(test=40, soak=1_000)
LEAVERS = trials(test=100, soak=5_000)
WITHIN = 20.0


def check(error: aio.AioRpcError, sent: object) -> None:
    """A refusal has a reason, and it is not that the hub failed."""
    reason = dict(error.trailing_metadata() or ()).get(REASON)
    assert error.code() is not grpc.StatusCode.UNKNOWN, sent
    assert reason not in (None, DEFECT), (error.code(), error.details(), sent)


async def ask(stub: Any, method: str, request: object) -> None:
    """One call to its first answer."""
    call = getattr(stub, method)(request, timeout=WITHIN)
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except aio.AioRpcError as error:
        check(error, request)


@repeated(test=1, soak=20)
async def test_odd_messages_are_taken_or_refused_for_a_reason(stage: RpcStage, trial: int) -> None:
    random = Random(trial)
    other, credential = await stage.welcomed(await stage.enrol("far")), await stage.enrol("edge1")
    for stub in (stage.stub(await stage.bootstrap(None)), stage.stub(credential)):
        for number in range(CALLS):
            method = list(METHODS)[number % len(METHODS)]
            await ask(stub, method, odd(METHODS[method], random))
    await other.beat(1)

    for _ in range(CALLS // 2):
        stream = Stream(stage.channel(credential))
        messages = [wire.AgentMessage(hello=odd(wire.Hello, random)), *(odd(wire.AgentMessage, random) for _ in range(8))]
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages:
                await stream.call.write(message)
            await stream.call.done_writing()
        if (code := await stream.status()) is not grpc.StatusCode.OK:
            assert code is not grpc.StatusCode.UNKNOWN, messages
            assert await stream.trailing(REASON) != DEFECT, messages
        await stream.close()
    await other.beat(2)


async def test_bytes_that_are_no_message_end_the_call_alone(stage: RpcStage) -> None:
    other, channel = await stage.welcomed(await stage.enrol("far")), stage.channel(await stage.enrol("edge1"))
    for sent in (b"\xff\xff\xff", b"\x0a\xff"):  # no tag, no length
        for method in METHODS:
            call: Any = channel.unary_unary(f"/muster.registration.v1.Registration/{method}")
            refused = await refusal(call(sent, timeout=WITHIN))
            assert refused.reason == (grpc.StatusCode.INVALID_ARGUMENT, "BadRequest"), method
            assert refused.message == "the message cannot be decoded"
        session = Stream(channel).raw()
        with suppress(aio.AioRpcError, asyncio.InvalidStateError):
            await session.write(sent)
        async with asyncio.timeout(WITHIN):
            assert await session.code() is not grpc.StatusCode.OK
    await other.beat(1)


@soaked(LEAVERS)
async def test_agent_may_leave_a_stream_at_any_moment(stage: RpcStage) -> None:
    """When its generator is closed gRPC has forgotten the call: a question about it then takes the process down."""
    request = registration.RecoverRequest(cluster_name="edge1", agent_id="agent", cluster_uid="uid-1", request=csr())
    holder, random = await stage.enrol("edge1", recovery=True), Random(1)
    for trial in range(LEAVERS):
        channel = stage.channel(holder)
        call = RegistrationStub(channel).Recover(request)
        if trial % 2:
            await call.read()
        await asyncio.sleep(random.uniform(0, 0.004))  # how far the hub is by then is what is tried
        call.cancel()
        with suppress(aio.AioRpcError, asyncio.CancelledError):
            await call.code()
        await channel.close()
    assert (await stage.cluster("edge1"))["metadata"]["name"] == "edge1"
