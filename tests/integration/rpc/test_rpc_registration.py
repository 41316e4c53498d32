"""Registration against a real door: the good path, and every bad request with its status and its reason."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.duration_pb2 import Duration
from grpc import aio

from hub.domain.certificate import Purpose
from hub.domain.change import REQUESTS
from hub.rpc.status import REASON
from hub.services import request_objects
from machinery import pki
from machinery.apiserver.limits import BODY_LIMIT
from machinery.identity import Subject, agent_id, agent_subject, cluster_name
from machinery.pki import names
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.rpc_stage import ADMIN, RpcStage

Response = wire.FollowRequestResponse


def csr(cluster: str, agent: str = "agent", key: bytes | None = None) -> bytes:
    return pki.build_request(agent_subject(cluster_name(cluster), agent_id(agent)), key or pki.generate_key())


def asked(cluster: str, request: bytes, **fields: Any) -> wire.SubmitRequestRequest:
    return wire.SubmitRequestRequest(
        **{"cluster_name": cluster, "agent_id": "agent", "cluster_uid": "uid-1", "request": request, **fields}
    )


def of_another_key(cluster: str) -> bytes:
    """A request whose signature is not of the key in it: its last byte is another."""
    first, *body, last = csr(cluster).splitlines()
    der = bytearray(base64.b64decode(b"".join(body)))
    der[-1] ^= 1
    return b"\n".join((first, *base64.encodebytes(bytes(der)).splitlines(), last, b""))


def of_a_foreign_kind_of_key(cluster: str) -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    subject = names.build(agent_subject(cluster_name(cluster), agent_id("agent")))
    return x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, None).public_bytes(Encoding.PEM)


async def reading(following: Any) -> AsyncIterator[Any]:
    """The rest of a stream that was begun with `read`."""
    while (answer := await following.read()) is not aio.EOF:
        yield answer


async def refused(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Status, reason and message of a call that fails."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    trailing = caught.value.trailing_metadata()
    return caught.value.code(), str(trailing.get(REASON)), caught.value.details() or ""


@pytest.mark.parametrize("told", [Duration(seconds=2**62), Duration(seconds=-(2**62)), Duration(nanos=2**31 - 1)])
async def test_a_duration_that_is_none_is_a_bad_request_and_no_defect(stage: RpcStage, told: Duration) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        request = asked("edge1", csr("edge1"), requested_duration=told)
        code, _, message = await refused(RegistrationStub(channel).SubmitRequest(request))
    assert (code, message) == (grpc.StatusCode.INVALID_ARGUMENT, "the requested duration is out of bounds")


async def test_the_hub_says_who_it_is(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        answer = await RegistrationStub(channel).GetHub(wire.GetHubRequest())
    assert answer.hub_id == stage.parts.hub.hub_id
    assert answer.trust_bundle == stage.issuer.trust_bundle
    assert answer.HasField("hub_time")


@pytest.mark.parametrize("name", ["edge1", "c" * 63, "0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70"])
async def test_a_cluster_of_any_valid_name_gets_a_certificate_that_opens_a_call(stage: RpcStage, name: str) -> None:
    credential = await stage.enrol(name)
    assert pki.parse_certificate(credential.chain).subject == agent_subject(cluster_name(name), agent_id("agent"))
    async with stage.channel(credential) as channel:
        assert (await RegistrationStub(channel).GetHub(wire.GetHubRequest())).hub_id


async def test_a_request_is_followed_from_pending_to_issued(stage: RpcStage) -> None:
    key = pki.generate_key()
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        name = (await stub.SubmitRequest(asked("edge1", csr("edge1", key=key)))).name
        following = stub.FollowRequest(wire.FollowRequestRequest(name=name))
        first = await following.read()
        assert isinstance(first, Response)
        assert first.state == Response.STATE_PENDING
        await stage.accept("edge1")
        await stage.approve(name)
        states = [answer async for answer in reading(following)]
    assert states[-1].state == Response.STATE_ISSUED
    assert pki.key_matches(states[-1].certificate, key)
    assert pki.key_matches(states[-1].recovery_certificate, key)
    assert len(await stage.records("edge1")) == 1
    assert len(await stage.records("edge1", Purpose.RECOVERY)) == 1


async def test_a_request_that_is_deleted_while_it_is_followed_is_not_found(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        name = (await stub.SubmitRequest(asked("edge1", csr("edge1")))).name
        following = stub.FollowRequest(wire.FollowRequestRequest(name=name))
        await following.read()
        await stage.store.run(lambda tx: request_objects.remove(tx, request_objects.find(tx, name), ADMIN))
        assert (await refused(following.read()))[:2] == (grpc.StatusCode.NOT_FOUND, "NotFound")


async def test_the_same_request_again_is_the_same_request(stage: RpcStage) -> None:
    request = csr("edge1")
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        names = {(await stub.SubmitRequest(asked("edge1", request))).name for _ in range(3)}
    assert len(names) == 1
    assert len(await stage.all(REQUESTS)) == 1


async def test_a_request_replayed_for_another_cluster_is_refused(stage: RpcStage) -> None:
    key = pki.generate_key()
    for cluster in ("edge1", "edge2"):
        async with stage.channel(await stage.bootstrap(cluster)) as channel:
            stub = RegistrationStub(channel)
            await stage.join(stub, cluster)
            call = stub.SubmitRequest(asked(cluster, csr(cluster, key=key)))
            if cluster == "edge1":
                name = (await call).name
                await stage.accept(cluster)
                await stage.approve(name)
            else:
                code, _, _ = await refused(call)
                assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    ("request_bytes", "reason", "says"),
    [
        (b"", "Invalid", "PEM"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "Invalid", "decoded"),
        (b"A" * (pki.MAX_REQUEST_BYTES + 1), "RequestEntityTooLarge", "16384"),
        (of_another_key("edge1"), "Invalid", "signature"),
        (of_a_foreign_kind_of_key("edge1"), "Invalid", "Ed25519"),
        (csr("edge2"), "Invalid", ""),
        (pki.build_request(Subject("system:masters", frozenset(("system:masters",))), pki.generate_key()), "Invalid", ""),
    ],
    ids=[
        "empty",
        "garbage",
        "oversized",
        "another key's signature",
        "a key that gRPC cannot use",
        "another cluster's name",
        "an operator's name",
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(stage: RpcStage, request_bytes: bytes, reason: str, says: str) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        _, told, message = await refused(stub.SubmitRequest(asked("edge1", request_bytes)))
    assert told == reason
    assert says in message
    assert not await stage.all(REQUESTS)


async def test_a_message_over_the_limit_never_reaches_a_use_case(stage: RpcStage) -> None:
    room = BODY_LIMIT - asked("edge1", b"").ByteSize() - 5  # the field's number and length
    assert asked("edge1", b"A" * room).ByteSize() == BODY_LIMIT
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        code, reason, _ = await refused(stub.SubmitRequest(asked("edge1", b"A" * room)))
        assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RequestEntityTooLarge"), (
            "it is the request that is too long"
        )
        code, reason, _ = await refused(stub.SubmitRequest(asked("edge1", b"A" * (room + 1))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reason == "None", "a reason of ours: the use case was reached"


async def test_a_credential_acts_for_no_other_cluster(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        joining = wire.EnsureClusterRequest(cluster_name="edge2", cluster_uid="uid-1", agent_id="agent")
        assert (await refused(stub.EnsureCluster(joining)))[:2] == (grpc.StatusCode.PERMISSION_DENIED, "Forbidden")
        assert (await refused(stub.SubmitRequest(asked("edge2", csr("edge2")))))[1] == "Forbidden"


async def test_a_used_up_credential_admits_nobody_new_and_retries_for_free(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap(None, uses=1)) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        await stage.join(stub, "edge1")
        joining = wire.EnsureClusterRequest(cluster_name="edge2", cluster_uid="uid-2", agent_id="agent")
        assert (await refused(stub.EnsureCluster(joining)))[1] == "Forbidden"


async def test_an_expired_credential_opens_nothing(stage: RpcStage) -> None:
    from datetime import timedelta  # noqa: PLC0415 - only here

    credential = await stage.bootstrap("edge1", lifetime=timedelta(seconds=3))
    async with stage.channel(credential) as channel:
        stub = RegistrationStub(channel)
        await stub.GetHub(wire.GetHubRequest())
        code = grpc.StatusCode.OK
        async with asyncio.timeout(15):
            while code is grpc.StatusCode.OK:
                await asyncio.sleep(0.05)
                call = stub.GetHub(wire.GetHubRequest())
                code = await call.code()
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_certificate_that_the_hub_has_no_record_of_opens_nothing(stage: RpcStage) -> None:
    from dataclasses import replace  # noqa: PLC0415 - only here

    from hub.domain.certificate import Profile  # noqa: PLC0415 - only here
    from machinery.clock import SystemClock  # noqa: PLC0415 - only here
    from machinery.kubeconfig import Credential  # noqa: PLC0415 - only here

    key, now = pki.generate_key(), SystemClock().now()
    facts = pki.parse_certificate((await stage.bootstrap("edge1")).chain)
    profile = Profile(Purpose.BOOTSTRAP, facts.subject, pki.public_key_of(key), now, facts.not_after)
    unknown = stage.issuer.issue(replace(profile), pki.random_serial(), now)
    async with stage.channel(Credential(unknown.chain, key)) as channel:
        call = RegistrationStub(channel).GetHub(wire.GetHubRequest())
        assert (await refused(call))[:2] == (grpc.StatusCode.UNAUTHENTICATED, "Unauthorized")


async def test_a_second_cluster_of_the_same_name_is_noticed_and_not_merged(stage: RpcStage) -> None:
    await stage.enrol("edge1", uid="uid-1")
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        joining = wire.EnsureClusterRequest(cluster_name="edge1", cluster_uid="uid-2", agent_id="other")
        code, reason, message = await refused(RegistrationStub(channel).EnsureCluster(joining))
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "AlreadyExists")
    assert "another cluster" in message
    types = {entry["type"] for entry in (await stage.cluster("edge1"))["status"]["conditions"]}
    assert "ManagedClusterDuplicated" in types


async def test_an_invalid_cluster_name_is_refused_with_the_rule(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap(None)) as channel:
        for name in ("", "Edge1", "a" * 64, "a.b", "-a"):
            joining = wire.EnsureClusterRequest(cluster_name=name, cluster_uid="uid-1", agent_id="agent")
            code, reason, _ = await refused(RegistrationStub(channel).EnsureCluster(joining))
            assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "Invalid")


async def test_an_agent_renews_and_its_first_certificate_stays_good(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    async with stage.channel(credential) as channel:
        stub = RegistrationStub(channel)
        name = (await stub.SubmitRequest(asked("edge1", csr("edge1")))).name
        await stage.approve(name)
        states = [answer.state async for answer in stub.FollowRequest(wire.FollowRequestRequest(name=name))]
        assert states[-1] == Response.STATE_ISSUED
        assert (await stub.GetHub(wire.GetHubRequest())).hub_id


async def test_an_agent_cannot_renew_as_another_agent(stage: RpcStage) -> None:
    async with stage.channel(await stage.enrol("edge1")) as channel:
        call = RegistrationStub(channel).SubmitRequest(asked("edge1", csr("edge1", "other"), agent_id="other"))
        assert (await refused(call))[1] == "Forbidden"


async def test_a_request_is_not_shown_to_another_cluster(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        stub = RegistrationStub(channel)
        await stage.join(stub, "edge1")
        name = (await stub.SubmitRequest(asked("edge1", csr("edge1")))).name
    async with stage.channel(await stage.enrol("edge2")) as channel:
        following = RegistrationStub(channel).FollowRequest(wire.FollowRequestRequest(name=name))
        assert (await refused(following.read()))[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_a_request_that_is_not_there_is_said_so(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        following = RegistrationStub(channel).FollowRequest(wire.FollowRequestRequest(name="nowhere"))
        assert (await refused(following.read()))[:2] == (grpc.StatusCode.NOT_FOUND, "NotFound")


async def test_what_nobody_foresaw_is_told_as_an_internal_error_and_no_more(stage: RpcStage) -> None:
    await stage.enrol("edge1")

    def damage(tx: Any) -> None:
        tx.objects._connection.exec_driver_sql("UPDATE objects SET document = 'canary'")

    await stage.store.run(damage)
    async with stage.channel(await stage.bootstrap("edge1")) as channel:
        joining = wire.EnsureClusterRequest(cluster_name="edge1", cluster_uid="uid-1", agent_id="agent")
        told = await refused(RegistrationStub(channel).EnsureCluster(joining))
    assert told == (grpc.StatusCode.INTERNAL, "InternalError", "internal error")
