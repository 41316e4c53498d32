"""What agents trust, when they renew and what ends them: trust bundles, renewals by order and by CA rotation, revocation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.api.certificateauthorities.authority import AgentTrust, AuthorityId, AuthorityRecord, Phase
from hub.api.managedclusters.agent_annotations import LATE_RENEWAL
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.revocations import RevocationTarget
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush, fingerprints
from hub.registry import certificates, revocations as revocation
from hub.registry.certificateauthorities import service
from hub.registry.managedclusters import actions, service as clusters
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.errors import MusterError
from machinery.identity import AgentId, CertificateSubject, ClusterName, cluster_name
from machinery.meta.conditions import HUB_ACCEPTED, TRUE, Condition
from machinery.meta.objects import Key
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.session.v1 import session_pb2 as session
from tests.checks import check_refusal_of
from tests.fakes.rpc_stage import (
    ADMIN,
    PENDING,
    RpcStage,
    SetClock,
    Stream,
    csr,
    following,
    refusal,
    rpc_stage,
    submission,
    until_found,
)
from tests.fakes.stage import until
from tests.integration.grpc_door.test_rpc_owners import stand_by

EDGE = ClusterName("edge1")
OTHER = "c" * 64
HOUR = timedelta(hours=1)


async def until_trusted(stage: RpcStage, wanted: frozenset[str] | None, cluster: str = "edge1") -> AgentTrust:
    found: list[AgentTrust] = []

    async def kept() -> bool:
        last = await stage.store.read(lambda tx: tx.trusts.get(ClusterName(cluster), AgentId("agent")))
        found[:] = [last] if last is not None and last.trusted == wanted else []
        return bool(found)

    await until_found(kept)
    return found[0]


def own(stage: RpcStage) -> frozenset[str]:
    return fingerprints(stage.issuer.trust_bundle)


def trusting_of(stage: RpcStage) -> TrustBundlePush:
    return stage.parts.trust_push


async def test_trust_of_an_agent_is_recorded_once(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    await stage.welcomed(credential, trusted_authorities=sorted(own(stage)))
    found = await until_trusted(stage, own(stage))
    (record,) = await stage.records("edge1")
    assert (found.serial, found.signed_by, found.issued_at) == (record.serial, record.signed_by, record.issued_at)
    assert str(found.signed_by).startswith("hub/")
    newest = await stage.store.read(lambda tx: tx.changes.newest())
    await stage.welcomed(credential, trusted_authorities=sorted(own(stage)))
    await trusting_of(stage).reports.write()
    assert (await until_trusted(stage, own(stage)), await stage.store.read(lambda tx: tx.changes.newest())) == (found, newest)

    # One of a release that does not report its trust would not know what the bundle is.
    await stage.welcomed(await stage.enrol("edge2"))
    await until_trusted(stage, None, "edge2")
    assert (len(trusting_of(stage)), trusting_of(stage).pushed) == (0, 0)

    assert (await stand_by(stage, credential, trusted_authorities=[OTHER])).trust_bundle == stage.issuer.trust_bundle
    assert not (await until_trusted(stage, frozenset((OTHER,)))).trusts(*own(stage))


async def test_agent_whose_trust_differs_is_sent_the_bundle_and_its_answer_is_recorded(stage: RpcStage) -> None:
    for number, reported in enumerate(([OTHER], [*own(stage), OTHER])):
        cluster = f"edge{number}"
        stream = await Stream.open(stage, await stage.enrol(cluster), trusted_authorities=reported)
        assert (await stream.expect("trust_bundle")).certificates == stage.issuer.trust_bundle
        await until_trusted(stage, frozenset(reported), cluster)
        await stream.send(trust_installed={"trusted_authorities": sorted(own(stage))})
        await until_trusted(stage, own(stage), cluster)


async def test_changed_bundle_is_pushed_to_open_sessions(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [
        await Stream.open(stage, await stage.enrol(f"edge{number}"), trusted_authorities=sorted(own(stage)))
        for number in range(3)
    ]
    for stream in streams:
        await stream.expect("desired")
    now, day = datetime.now(UTC), timedelta(days=1)
    new = pki.create_authority(CertificateSubject("new"), pki.generate_key(), pki.random_serial(), now - day, now + day)
    both = stage.issuer.trust_bundle + new.certificate
    monkeypatch.setattr(type(stage.issuer), "trust_bundle", both)
    for stream in streams:
        assert (await stream.expect("trust_bundle")).certificates == both


async def test_trust_that_cannot_be_written_now_is_written_later(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.welcomed(await stage.enrol("edge1"))
    await until_trusted(stage, None)
    (record,) = await stage.records("edge1")

    def broken(*_: object) -> int:
        raise MusterError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(service, "note_trust", broken)
        trusting_of(stage).note(record, frozenset((OTHER,)))
        await check_refusal_of(MusterError, trusting_of(stage).reports.write())
    await until_trusted(stage, frozenset((OTHER,)))


async def order(stage: RpcStage, within: timedelta = HOUR) -> Any:
    return await stage.store.run(actions.order_renewal, EDGE, within, ADMIN)


async def renewal_requested(stream: Stream) -> Any:
    """The next Desired that asks for a renewal."""
    while not (desired := await stream.expect("desired")).HasField("renew_within"):
        pass
    return desired


async def test_renewal_order_reaches_only_agents_whose_certificate_is_older(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    stream = await Stream.open(stage, credential)
    assert not (await stream.expect("desired")).HasField("renew_within")
    assert not (await stand_by(stage, credential)).HasField("renew_within")
    given, _ = await order(stage)
    desired = await renewal_requested(stream)
    assert timedelta(minutes=59) < desired.renew_within.ToTimedelta() <= HOUR
    assert desired.renew_addons_before.ToDatetime(UTC) == given.before
    assert (await stand_by(stage, credential)).HasField("renew_within")

    renewed = await stage.enrol("edge1")
    desired = await (await Stream.open(stage, renewed)).expect("desired")
    assert not desired.HasField("renew_within")
    assert desired.renew_addons_before.ToDatetime(UTC) == given.before, "certificates of add-ons may be older"
    assert not (await stand_by(stage, renewed)).HasField("renew_within")
    wanted, newest = await stage.store.read(actions.renewal_progress, EDGE)
    assert [(held.agent, wanted is not None and wanted.asks(held.issued_at)) for held in newest] == [("agent", False)]


async def test_agent_that_returns_after_the_deadline_gets_a_little_time_to_renew(stage: RpcStage) -> None:
    credential = await stage.enrol("edge1")
    await order(stage, timedelta(seconds=0))
    await order(stage, timedelta(minutes=1))
    assert (await renewal_requested(await Stream.open(stage, credential))).renew_within.ToTimedelta() > LATE_RENEWAL
    assert (await stand_by(stage, credential)).renew_within.ToTimedelta() > LATE_RENEWAL
    wanted, newest = await stage.store.read(actions.renewal_progress, EDGE)
    assert wanted is not None
    assert all(wanted.asks(held.issued_at) for held in newest)


async def test_connected_agents_of_an_outgoing_ca_are_asked_to_renew(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.expect("desired")
    (record,) = await stage.records("edge1")
    now = stage.parts.clock.now()
    present = AuthorityRecord(AuthorityId(str(record.signed_by).removeprefix("hub/")), b"", Phase.ISSUING, now, now)
    current = [present]
    object.__setattr__(stage.parts, "authorities", lambda: tuple(current))
    monkeypatch.setattr(trusting_of(stage), "_authorities", lambda: tuple(current))
    current[:] = [replace(present, phase=Phase.OUTGOING)]
    assert (await renewal_requested(stream)).renew_within.ToTimedelta() >= timedelta(seconds=10)
    current[:] = [replace(present, phase=Phase.RETIRING)]
    while (await stream.expect("desired")).HasField("renew_within"):
        pass


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
    assert (await end_of(stream), await end_of(await Stream.open(stage, credential))) == (revoked, revoked)
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
        stage.parts.peers._notify(None)
        assert await stream.status() is grpc.StatusCode.UNAVAILABLE
        assert await stream.trailing("cause") == ""
        # the follower asked again and was answered, as the database can be read
        await revoke_certificates(stage)
        assert (await followed.end())[0] is grpc.StatusCode.UNAUTHENTICATED
