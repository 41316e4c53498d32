"""What is revoked is cut off at this door: open streams from inside their handlers with a status, and every next call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from time import monotonic
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.revocation import Target
from hub.services import certificates, clusters, revocation
from machinery import pki
from machinery.conditions import HUB_ACCEPTED, TRUE, Condition
from machinery.identity import agent_id, agent_subject, cluster_name
from machinery.kubeconfig import Credential
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream

PROMISED = 1.0
EDGE = cluster_name("edge1")


async def revoke(stage: RpcStage, reason: str = "KeyCompromise") -> None:
    await stage.store.run(revocation.revoke, Target(cluster=EDGE), reason, ADMIN)


@dataclass
class Following:
    """A stream that waits for the decision on a request."""

    call: Any

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """Status and cause."""
        with pytest.raises(aio.AioRpcError) as ended:
            while await self.call.read() is not aio.EOF:
                pass
        trailing = dict(ended.value.trailing_metadata() or ())
        return ended.value.code(), str(trailing.get("cause", ""))


@asynccontextmanager
async def waiting(stage: RpcStage, credential: Credential, *, recovers: bool = False) -> AsyncIterator[Following]:
    """A request that nobody decides, and the stream that follows it, opened by its first answer."""
    request = pki.build_request(agent_subject(EDGE, agent_id("agent")), pki.generate_key())
    about: dict[str, Any] = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1", "request": request}
    async with stage.channel(credential) as channel:
        stub = RegistrationStub(channel)
        if recovers:
            call: Any = stub.Recover(wire.RecoverRequest(**about))
        else:
            name = (await stub.SubmitRequest(wire.SubmitRequestRequest(**about))).name
            call = stub.FollowRequest(wire.FollowRequestRequest(name=name))
        first: Any = await call.read()
        assert first.state == wire.FollowRequestResponse.STATE_PENDING
        yield Following(call)
        call.cancel()


async def test_a_revoked_session_is_cut_and_told_why(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    stream = await Stream.open(stage, credential)
    await stream.expect("welcome")
    began = monotonic()
    await revoke(stage)
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    assert monotonic() - began < 5 * PROMISED
    assert (await stream.trailing("reason"), await stream.trailing("cause")) == ("Unauthorized", "CertificateRevoked")
    again = await Stream.open(stage, credential)
    assert await again.status() is grpc.StatusCode.UNAUTHENTICATED
    assert await again.trailing("cause") == "CertificateRevoked"
    for each in (stream, again):
        await each.close()


async def test_a_stream_that_waits_for_its_request_is_cut_at_once(stage: RpcStage) -> None:
    """It used to notice within half a minute."""
    async with waiting(stage, await stage.enrol("edge1")) as following:
        began = monotonic()
        # the certificate alone: what becomes of the request would end the stream as well
        await stage.store.run(certificates.revoke_cluster, EDGE, "Test")
        assert await following.ended() == (grpc.StatusCode.UNAUTHENTICATED, "CertificateRevoked")
        assert monotonic() - began < 5 * PROMISED


async def test_a_stream_that_waits_with_a_revoked_bootstrap_credential_is_cut_at_once(stage: RpcStage) -> None:
    bootstrap = await stage.bootstrap("edge1")
    async with stage.channel(bootstrap) as channel:
        await stage.join(RegistrationStub(channel), "edge1")
    async with waiting(stage, bootstrap) as following:
        serial = pki.parse_certificate(bootstrap.chain).serial
        # the certificate alone, as above
        await stage.store.run(lambda tx: tx.certificates.revoke([serial], tx.now, "CredentialRevoked"))
        assert await following.ended() == (grpc.StatusCode.UNAUTHENTICATED, "CredentialRevoked")


async def test_a_recovery_that_waits_is_cut_at_once(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    object.__setattr__(stage.parts, "unattended_recovery", False)  # the same parts are the running door's
    async with waiting(stage, holder, recovers=True) as following:
        await stage.store.run(certificates.revoke_cluster, EDGE, "Test")
        assert await following.ended() == (grpc.StatusCode.UNAUTHENTICATED, "CertificateRevoked")


async def test_a_stream_that_waits_ends_with_its_certificate(stage: RpcStage) -> None:
    """It used to be noticed at the next look, up to half a minute later."""
    brief = replace(stage.lifetimes, agent=timedelta(seconds=4))
    async with waiting(stage, await stage.enrol("edge1", lifetimes=brief)) as following:
        began = monotonic()
        assert await following.ended() == (grpc.StatusCode.UNAUTHENTICATED, "CertificateExpired")
        assert monotonic() - began < 4 + 5 * PROMISED


async def test_a_session_that_ends_with_its_certificate_says_so(stage: RpcStage) -> None:
    brief = replace(stage.lifetimes, agent=timedelta(seconds=4))
    stream = await Stream.open(stage, await stage.enrol("edge1", lifetimes=brief))
    await stream.expect("welcome")
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    assert await stream.trailing("cause") == "CertificateExpired"
    await stream.close()


async def test_denied_deleted_revoked_and_moved_are_different_answers(stage: RpcStage) -> None:
    answers = {}
    for name in ("denied", "deleted", "revoked", "moved"):
        credential = await stage.enrol(name)
        async with AsyncExitStack() as stack:
            stream = await Stream.open(stage, credential, epoch=5)
            stack.push_async_callback(stream.close)
            await stream.expect("welcome")
            await _happen(stage, name)
            if name != "moved":
                await stream.status()
                assert await stream.trailing("cause") != ""
            later = await Stream.open(stage, credential, epoch=4 if name == "moved" else 5)
            stack.push_async_callback(later.close)
            answers[name] = (await later.status(), await later.trailing("reason"), await later.trailing("cause"))
    if answers["deleted"][0] is grpc.StatusCode.UNAUTHENTICATED:  # the end of its certificate was heard of first
        assert answers["deleted"][1] == "Unauthorized"
        answers["deleted"] = (grpc.StatusCode.NOT_FOUND, "NotFound", answers["deleted"][2])
    assert answers == {
        "denied": (grpc.StatusCode.PERMISSION_DENIED, "Forbidden", "ClusterDenied"),
        "deleted": (grpc.StatusCode.NOT_FOUND, "NotFound", "ClusterDeleted"),
        "revoked": (grpc.StatusCode.UNAUTHENTICATED, "Unauthorized", "CertificateRevoked"),
        "moved": (grpc.StatusCode.FAILED_PRECONDITION, "StaleEpoch", "ClusterMoved"),
    }


async def _happen(stage: RpcStage, what: str) -> None:
    name = cluster_name(what)
    if what == "denied":
        judged = Condition(HUB_ACCEPTED, TRUE, "HubClusterAdminAccepted", "")  # which a controller sets when it is accepted
        await stage.store.run(clusters.set_condition, name, judged, ADMIN)
        await stage.accept(what, accepted=False)
    elif what == "deleted":
        await stage.store.run(lambda tx: clusters.remove(tx, clusters.find(tx, name), ADMIN))
    elif what == "revoked":
        await stage.store.run(revocation.revoke, Target(cluster=name), "Unspecified", ADMIN)


async def test_a_replica_that_cannot_read_revocations_has_no_word_against_anybody(stage: RpcStage) -> None:
    """It used to answer as to a revoked one, and agents registered anew with bootstrap credentials that had long ended."""
    credential = await stage.enrol("edge1")
    stream = await Stream.open(stage, credential)
    await stream.expect("welcome")
    async with waiting(stage, credential) as following:
        stage.parts.peers._tell(None)
        assert await stream.status() is grpc.StatusCode.UNAVAILABLE
        assert await stream.trailing("cause") == ""
        await asyncio.sleep(0)  # the one that waits asks again, and is answered, as the database can be read
        await stage.store.run(certificates.revoke_cluster, EDGE, "Test")
        assert (await following.ended())[0] is grpc.StatusCode.UNAUTHENTICATED
    await stream.close()


async def test_the_end_of_one_cluster_is_no_other_ones(stage: RpcStage) -> None:
    await stage.enrol("edge1")
    kept = await Stream.open(stage, await stage.enrol("edge2"))
    await kept.expect("welcome")
    await revoke(stage)
    assert await stage.store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "edge2"))) is not None
    await kept.expect_quiet(stage)
    assert not kept.call.done()
    await kept.close()
