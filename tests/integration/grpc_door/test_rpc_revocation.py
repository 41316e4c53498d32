"""Revocation cuts off open streams with a status and a cause, and every next call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.revocations import RevocationTarget
from hub.registry import revocations as revocation
from hub.registry.certificates import service as certificates
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.identity import cluster_name
from machinery.meta.conditions import HUB_ACCEPTED, TRUE, Condition
from machinery.meta.objects import Key
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.session.v1 import session_pb2 as session
from tests.fakes.rpc_stage import ADMIN, PENDING, RpcStage, SetClock, Stream, csr, following, refusal, rpc_stage, submission
from tests.fakes.stage import until

EDGE = cluster_name("edge1")
REVOKED = (grpc.StatusCode.UNAUTHENTICATED, "CertificateRevoked")
EXPIRED = (grpc.StatusCode.UNAUTHENTICATED, "CertificateExpired")


async def revoke_certificates(stage: RpcStage) -> None:
    """The certificates alone: what becomes of a request would end a stream that follows it as well."""
    await stage.store.run(certificates.revoke_cluster, EDGE, "Test")


@dataclass
class Followed:
    """A stream that waits for the decision on a request."""

    call: Any

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """Status and cause."""

        async def read() -> None:
            async with asyncio.timeout(20):
                while await self.call.read() is not aio.EOF:
                    pass

        refused = await refusal(read())
        return refused.code, refused.trailing.get("cause", "")


@asynccontextmanager
async def waiting(stage: RpcStage, credential: Credential, *, recovers: bool = False) -> AsyncIterator[Followed]:
    """A request that is not decided, and the stream that follows it, opened by its first answer."""
    stub = stage.stub(credential)
    if recovers:
        about: dict[str, Any] = {"cluster_name": "edge1", "agent_id": "agent", "cluster_uid": "uid-1"}
        call = stub.Recover(wire.RecoverRequest(request=csr(), **about))
    else:
        call = stub.FollowRequest(following((await stub.SubmitRequest(submission())).name))
    assert (await call.read()).state == PENDING
    yield Followed(call)
    call.cancel()


async def end_of(stream: Stream) -> tuple[grpc.StatusCode, str, str]:
    return await stream.status(), await stream.trailing("reason"), await stream.trailing("cause")


async def test_revocation_cuts_sessions_and_streams_that_wait_and_no_other_cluster(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    object.__setattr__(stage.parts, "unattended_recovery", False)  # the same parts are the running door's
    async with waiting(stage, holder, recovers=True) as recovery:
        await revoke_certificates(stage)
        assert await recovery.end() == REVOKED

    bootstrap = await stage.bootstrap("edge1")
    async with waiting(stage, bootstrap) as followed:
        serial = pki.parse_certificate(bootstrap.chain).serial
        await stage.store.run(lambda tx: tx.certificates.revoke([serial], tx.now, "CredentialRevoked"))
        assert await followed.end() == (grpc.StatusCode.UNAUTHENTICATED, "CredentialRevoked")

    async with waiting(stage, await stage.enrol("edge1")) as followed:
        await revoke_certificates(stage)
        assert await followed.end() == REVOKED

    credential, kept = await stage.enrol("edge1"), await stage.welcomed(await stage.enrol("edge2"))
    stream = await stage.welcomed(credential)
    await stage.store.run(revocation.revoke, RevocationTarget(cluster=EDGE), "KeyCompromise", ADMIN)
    revoked = (grpc.StatusCode.UNAUTHENTICATED, "Unauthorized", "CertificateRevoked")
    assert await end_of(stream) == revoked
    assert await end_of(await Stream.open(stage, credential)) == revoked
    assert await stage.store.read(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "edge2"))) is not None
    await kept.beat(1)


async def test_streams_end_with_their_certificate(tmp_path: Path) -> None:
    clock, soon = SetClock(), timedelta(milliseconds=20)
    async with rpc_stage(tmp_path, clock=clock) as stage:
        credential = await stage.enrol("edge1")
        stream, (record,) = Stream(stage.channel(credential)), await stage.records("edge1")
        await until(lambda: stage.parts.gate.in_flight)
        clock.at = record.not_after - soon  # before the session begins, which then sets its timer
        async with waiting(stage, credential) as followed:
            await stream.send(hello=session.Hello(agent_version="1.2.3", cluster_uid="uid-1"))
            assert (await stream.status(), await stream.trailing("cause")) == EXPIRED
            clock.at = record.not_after + soon
            assert await followed.end() == EXPIRED


async def test_denied_deleted_revoked_and_moved_clusters_get_different_answers(stage: RpcStage) -> None:
    judged = Condition(HUB_ACCEPTED, TRUE, "HubClusterAdminAccepted", "")  # which a controller sets when it is accepted

    async def deny() -> None:
        await stage.store.run(clusters.set_condition, cluster_name("denied"), judged, ADMIN)
        await stage.accept("denied", accepted=False)

    async def delete() -> None:
        await stage.store.run(lambda tx: clusters.remove(tx, clusters.find(tx, cluster_name("deleted")), ADMIN))

    async def revoke() -> None:
        await stage.store.run(revocation.revoke, RevocationTarget(cluster=cluster_name("revoked")), "Unspecified", ADMIN)

    answers, first = {}, {}
    for name, act in (("denied", deny), ("deleted", delete), ("revoked", revoke), ("moved", None)):
        credential = await stage.enrol(name)
        stream = await stage.welcomed(credential, epoch=5)
        if act is not None:
            await act()
            first[name] = await end_of(stream)
        answers[name] = await end_of(await Stream.open(stage, credential, epoch=5 if act else 4))
    assert all(cause for _, _, cause in first.values()), first
    assert first["deleted"][0] in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAUTHENTICATED)
    if answers["deleted"][0] is grpc.StatusCode.UNAUTHENTICATED:  # the end of its certificate was noticed first
        assert answers["deleted"][1] == "Unauthorized"
        answers["deleted"] = (grpc.StatusCode.NOT_FOUND, "NotFound", answers["deleted"][2])
    assert answers == {
        "denied": (grpc.StatusCode.PERMISSION_DENIED, "Forbidden", "ClusterDenied"),
        "deleted": (grpc.StatusCode.NOT_FOUND, "NotFound", "ClusterDeleted"),
        "revoked": (grpc.StatusCode.UNAUTHENTICATED, "Unauthorized", "CertificateRevoked"),
        "moved": (grpc.StatusCode.FAILED_PRECONDITION, "StaleEpoch", "ClusterMoved"),
    }


async def test_replica_that_cannot_read_revocations_accuses_no_certificate(stage: RpcStage) -> None:
    """An agent whose certificate counts as revoked registers anew, perhaps with a bootstrap credential that has ended."""
    credential = await stage.enrol("edge1")
    stream = await stage.welcomed(credential)
    async with waiting(stage, credential) as followed:
        stage.parts.peers._tell(None)
        assert await stream.status() is grpc.StatusCode.UNAVAILABLE
        assert await stream.trailing("cause") == ""
        # the follower asked again and was answered, as the database can be read
        await revoke_certificates(stage)
        assert (await followed.end())[0] is grpc.StatusCode.UNAUTHENTICATED
