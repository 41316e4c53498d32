"""Registration, recovery and attestation: the good path, and every bad request with its status and its reason."""

import base64
import gc
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.duration_pb2 import Duration
from grpc import aio
from sqlalchemy import delete

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from hub.api.auditrecords import Stage
from hub.api.bootstrapcredentials import FAILED, AttestationRequirement, CredentialBounds
from hub.api.certificates import Profile, Purpose
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.extensions.attestation import read_issuers
from hub.ports import Transaction
from hub.registry import recovery
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from hub.registry.certificatesigningrequests import issuance, service as request_objects
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery import RestoreOrder
from hub.store import schema
from machinery import pki
from machinery.apiserver.http.limits import BODY_LIMIT
from machinery.client.kubeconfig import Credential
from machinery.client.rest import KubeClient
from machinery.errors import DenialCause, ForbiddenError, InvalidError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import AgentId, CertificateSubject, ClusterName, agent_id, agent_subject, cluster_name
from machinery.pki import names
from machinery.runtime.clock import SystemClock
from machinery.wire.registration.v1 import registration_pb2 as wire
from spoke.cluster import ServiceAccountAttest
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionLoss
from spoke.ports.hub import ClientIdentity, HubAddress, HubLostError, SessionHello
from spoke.transports.grpc.client import GrpcHubClient, RecoveringHubClient
from tests.checks import CASE_FILES, awaited_refusal, check_refusal_of, present
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import (
    ADMIN,
    ISSUED,
    PENDING,
    RpcStage,
    SetClock,
    csr,
    following,
    joining,
    refusal,
    rpc_stage,
    submission,
)
from tests.fakes.stage import until

TABLES = yaml.safe_load((CASE_FILES / "issuers.yaml").read_text())

GET_HUB = wire.GetHubRequest()
INVALID, FORBIDDEN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
MASTERS = CertificateSubject("system:masters", frozenset(("system:masters",)))


def with_invalid_signature() -> bytes:
    first, *body, last = csr().splitlines()
    der = bytearray(base64.b64decode(b"".join(body)))
    der[-1] ^= 1
    return b"\n".join((first, *base64.encodebytes(bytes(der)).splitlines(), last, b""))


def with_ed25519_key() -> bytes:
    subject = names.build(agent_subject(cluster_name("edge1"), agent_id("agent")))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(ed25519.Ed25519PrivateKey.generate(), None).public_bytes(Encoding.PEM)


async def test_request_is_followed_from_pending_to_issued_and_renewed(stage: RpcStage) -> None:
    key, stub = pki.generate_key(), stage.stub(await stage.bootstrap("edge1"))
    hub = await stub.GetHub(GET_HUB)
    assert (hub.hub_id, hub.trust_bundle) == (stage.parts.hub_id, stage.issuer.trust_bundle)
    assert hub.HasField("hub_time")

    await stage.join(stub, "edge1")
    request = csr(key=key)
    (name,) = {(await stub.SubmitRequest(submission(request=request))).name for _ in range(3)}
    assert len(await stage.all(REQUESTS)) == 1, "the same request again is the same request"
    followed = stub.FollowRequest(following(name))
    assert (await followed.read()).state == PENDING
    await stage.accept("edge1")
    await stage.approve(name)
    answers = []
    while (answer := await followed.read()) is not aio.EOF:
        answers.append(answer)
    assert answers[-1].state == ISSUED
    assert pki.key_matches(answers[-1].certificate, key)
    assert pki.key_matches(answers[-1].recovery_certificate, key)
    assert [len(await stage.records("edge1", purpose)) for purpose in (Purpose.AGENT, Purpose.RECOVERY)] == [1, 1]

    agent = stage.stub(Credential(answers[-1].certificate, key))
    assert pki.parse_certificate(answers[-1].certificate).subject == agent_subject(cluster_name("edge1"), agent_id("agent"))
    renewed = (await agent.SubmitRequest(submission())).name
    await stage.approve(renewed)
    assert [answer.state async for answer in agent.FollowRequest(following(renewed))][-1] == ISSUED
    assert (await agent.GetHub(GET_HUB)).hub_id, "the first certificate stays valid"


async def test_cluster_names_are_accepted_or_refused_by_the_rule(stage: RpcStage) -> None:
    for name in ("c" * 63, "0f7c9c2e-9f3b-4e9e-8a31-0d2a4f1f6b70"):
        credential = await stage.enrol(name)
        assert pki.parse_certificate(credential.chain).subject == agent_subject(cluster_name(name), agent_id("agent"))
        assert (await stage.stub(credential).GetHub(GET_HUB)).hub_id
    stub = stage.stub(await stage.bootstrap(None))
    refused = {name: (await refusal(stub.EnsureCluster(joining(name)))).reason for name in ("", "Edge1", "a" * 64, "a.b", "-a")}
    assert refused == dict.fromkeys(refused, (INVALID, "Invalid"))


async def test_bad_requests_are_refused_with_their_reason(stage: RpcStage) -> None:
    stub = stage.stub(await stage.bootstrap("edge1"))
    await stage.join(stub, "edge1")
    out_of_bounds = "the requested duration is out of bounds"
    garbage = b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
    room = BODY_LIMIT - submission(request=b"").ByteSize() - 5  # the field's number and length
    assert submission(request=b"A" * room).ByteSize() == BODY_LIMIT
    rows = {
        "empty": (submission(request=b""), "Invalid", "PEM"),
        "garbage": (submission(request=garbage), "Invalid", "decoded"),
        "oversized": (submission(request=b"A" * (pki.MAX_REQUEST_BYTES + 1)), "RequestEntityTooLarge", "16384"),
        "as large as a message may be": (submission(request=b"A" * room), "RequestEntityTooLarge", ""),
        "larger than a message may be": (submission(request=b"A" * (room + 1)), "", ""),  # never reaches a use case
        "another key's signature": (submission(request=with_invalid_signature()), "Invalid", "signature"),
        "a key that gRPC cannot use": (submission(request=with_ed25519_key()), "Invalid", "Ed25519"),
        "another cluster's name": (submission(request=csr("edge2")), "Invalid", ""),
        "an operator's name": (submission(request=pki.build_request(MASTERS, pki.generate_key())), "Invalid", ""),
        "another cluster": (submission("edge2"), "Forbidden", ""),
        "huge duration": (submission(requested_duration=Duration(seconds=2**62)), "Invalid", out_of_bounds),
        "negative duration": (submission(requested_duration=Duration(seconds=-(2**62))), "Invalid", out_of_bounds),
        "odd duration": (submission(requested_duration=Duration(nanos=2**31 - 1)), "Invalid", out_of_bounds),
    }
    codes = {"Invalid": INVALID, "Forbidden": FORBIDDEN}
    wrong = []
    for name, (request, reason, words) in rows.items():
        refused = await refusal(stub.SubmitRequest(request))
        expected = (codes.get(reason, grpc.StatusCode.RESOURCE_EXHAUSTED), reason)
        if refused.reason != expected or words not in refused.message or await stage.all(REQUESTS):
            wrong.append((name, refused))
    assert not wrong
    assert (await refusal(stub.SubmitRequest(rows["huge duration"][0]))).message == out_of_bounds
    assert (await refusal(stub.EnsureCluster(joining("edge2")))).reason == (FORBIDDEN, "Forbidden")


async def test_agent_gets_nothing_for_another_cluster_agent_or_key(stage: RpcStage) -> None:
    key = pki.generate_key()
    first, second = stage.stub(await stage.bootstrap("edge1")), stage.stub(await stage.enrol("edge2"))
    await stage.join(first, "edge1")
    name = (await first.SubmitRequest(submission(request=csr(key=key)))).name
    refused, unknown = [await refusal(second.FollowRequest(following(each)).read()) for each in (name, "nowhere")]
    assert (refused.reason, refused.message) == (unknown.reason, unknown.message.replace("nowhere", name))
    await stage.accept("edge1")
    await stage.approve(name)
    assert (await refusal(second.SubmitRequest(submission("edge2", csr("edge2", key=key))))).code in (INVALID, FORBIDDEN)
    other_agent = submission("edge2", csr("edge2", "other"), agent_id="other")
    assert (await refusal(second.SubmitRequest(other_agent))).reason == (FORBIDDEN, "Forbidden")


async def test_missing_or_deleted_request_is_not_found(stage: RpcStage) -> None:
    missing = (grpc.StatusCode.NOT_FOUND, "NotFound")
    stub = stage.stub(await stage.bootstrap("edge1"))
    assert (await refusal(stub.FollowRequest(following("nowhere")).read())).reason == missing
    await stage.join(stub, "edge1")
    name = (await stub.SubmitRequest(submission())).name
    followed = stub.FollowRequest(following(name))
    await followed.read()
    await stage.store.run(lambda tx: request_objects.remove(tx, request_objects.find(tx, name), ADMIN))
    assert (await refusal(followed.read())).reason == missing


async def test_used_up_credential_admits_no_further_cluster_and_retries_for_free(stage: RpcStage) -> None:
    stub = stage.stub(await stage.bootstrap(None, uses=1))
    await stage.join(stub, "edge1")
    await stage.join(stub, "edge1")
    assert (await refusal(stub.EnsureCluster(joining("edge2", "uid-2")))).reason == (FORBIDDEN, "Forbidden")


async def test_expired_and_unrecorded_credentials_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.access.limits.REFUSALS", 0.001)
    monkeypatch.setattr("hub.access.limits.REFUSALS_AT_ONCE", 3)
    unauthorized = (grpc.StatusCode.UNAUTHENTICATED, "Unauthorized")
    clock = SetClock()
    async with rpc_stage(tmp_path, clock=clock) as stage:
        credential = await stage.bootstrap("edge1", lifetime=timedelta(minutes=1))
        key, facts = pki.generate_key(), pki.parse_certificate(credential.chain)
        profile = Profile(Purpose.BOOTSTRAP, facts.subject, pki.public_key_of(key), clock.now(), facts.not_after)
        unknown = stage.issuer.issue(replace(profile), pki.random_serial(), clock.now())
        stranger, stub = stage.stub(Credential(unknown.chain, key)), stage.stub(credential)
        assert (await refusal(stranger.GetHub(GET_HUB))).reason == unauthorized
        assert (await refusal(stranger.FollowRequest(following("any")).read())).reason == unauthorized
        await stage.join(stub, "edge1")
        name = (await stub.SubmitRequest(submission())).name
        followed = stub.FollowRequest(following(name))
        assert (await followed.read()).state == PENDING
        clock.at = facts.not_after + timedelta(seconds=1)
        await stage.accept("edge1")
        await stage.approve(name)
        assert (await refusal(followed.read())).reason == unauthorized, "the certificate comes too late"
        assert (await refusal(stub.GetHub(GET_HUB))).reason == unauthorized
        for asked in (stranger.GetHub(GET_HUB), stranger.FollowRequest(following("any")).read()):
            refused = await refusal(asked)
            assert refused.reason == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TooManyRequests")
            assert int(refused.trailing["grpc-retry-pushback-ms"]) > 0
        known = await stage.bootstrap("edge2", lifetime=timedelta(minutes=5))
        assert (await stage.stub(known).GetHub(GET_HUB)).hub_id, "at the same address"


async def test_second_cluster_of_the_same_name_is_refused_and_noted(stage: RpcStage) -> None:
    await stage.enrol("edge1", uid="uid-1")
    refused = await refusal(stage.stub(await stage.bootstrap("edge1")).EnsureCluster(joining("edge1", "uid-2", "other")))
    assert refused.reason == (grpc.StatusCode.ALREADY_EXISTS, "AlreadyExists")
    assert "another cluster" in refused.message
    assert "ManagedClusterDuplicated" in {entry["type"] for entry in (await stage.cluster("edge1"))["status"]["conditions"]}


async def test_only_listed_labels_are_set_at_join(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, join_labels=("example.com/*",)) as stage:
        labels = {"example.com/tier": "1", "region": "eu", "cluster.open-cluster-management.io/clusterset": "prod"}
        await stage.stub(await stage.bootstrap("edge1")).EnsureCluster(joining(labels=labels))
        kept = doc.labels(await stage.cluster("edge1"))
        assert (kept.get("example.com/tier"), "region" in kept, "prod" in kept.values()) == ("1", False, False)


async def test_unforeseen_error_is_internal_and_reveals_nothing(stage: RpcStage) -> None:
    await stage.enrol("edge1")

    def damage(tx: Transaction) -> None:
        objects: Any = tx.objects
        objects._connection.exec_driver_sql("UPDATE objects SET document = 'canary'")

    await stage.store.run(damage)
    refused = await refusal(stage.stub(await stage.bootstrap("edge1")).EnsureCluster(joining()))
    assert (*refused.reason, refused.message) == (grpc.StatusCode.INTERNAL, "InternalError", "internal error")


EDGE, AGENT = ClusterName("edge1"), AgentId("agent")


def dialled(stage: RpcStage, credential: Credential, kind: type[GrpcHubClient]) -> GrpcHubClient:
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    return kind(address, ClientIdentity(credential.chain, credential.key), SystemClock())


def identity(cluster: ClusterName = EDGE, uid: str = "uid-1") -> AgentIdentity:
    return AgentIdentity(AgentNames(cluster, AGENT), uid)


async def recover(stage: RpcStage, holder: Credential, *, cluster: str = "edge1", uid: str = "uid-1") -> str:
    """The name of the request, which waits."""
    client = dialled(stage, holder, RecoveringHubClient)
    try:
        return await client.submit_request(identity(cluster_name(cluster), uid), csr(cluster), duration=timedelta(hours=1))
    finally:
        await client.close()


async def recover_and_open_a_session(stage: RpcStage, holder: Credential) -> None:
    key, client = pki.generate_key(), dialled(stage, holder, RecoveringHubClient)
    request = csr(key=key)
    (name,) = {await client.submit_request(identity(), request, duration=None) for _ in range(2)}
    await stage.store.run(issuance.issue, name, stage.issuer, stage.lifetimes, ADMIN)
    async with aclosing(client.follow_request(name)) as following:
        issued = [state async for state in following][-1]
    await client.close()
    assert issued.state == "issued"
    await (await stage.welcomed(Credential(issued.certificate, key))).beat(1)


async def test_connection_of_a_closed_client_ends_without_garbage_collection(stage: RpcStage) -> None:
    """In a renewal of all certificates, each agent would hold a second connection for minutes."""

    def sockets() -> int:
        return sum(each.readlink().name.startswith("socket:") for each in Path("/proc/self/fd").iterdir() if each.is_symlink())

    holder = await stage.enrol("edge1")
    gc.disable()
    try:
        before, client = sockets(), dialled(stage, holder, GrpcHubClient)
        async with client.session(SessionHello("uid-1")) as session:
            session.cycle = session  # type: ignore[attr-defined]
            name = await client.submit_request(identity(), csr(), duration=None)
            async with aclosing(client.follow_request(name)) as following:
                assert (await anext(following)).state
        await client.close()
        await until(lambda: sockets() <= before)
    finally:
        gc.enable()


async def loss_of_session(client: GrpcHubClient) -> SessionLoss:
    with pytest.raises(HubLostError) as lost:
        async with client.session(SessionHello("uid-1")):
            pass
    return lost.value.loss


async def test_recovery_certificate_opens_recover_and_nothing_else(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    await recover_and_open_a_session(stage, holder)
    recorded = {record.stage for record in await stage.audit() if record.request_uri.endswith("/Recover")}
    assert recorded == {Stage.RESPONSE_STARTED, Stage.RESPONSE_COMPLETE}

    client, name = dialled(stage, holder, GrpcHubClient), await recover(stage, holder)
    for call in (
        client.info(),
        client.ensure_cluster(identity(), endpoints=(), annotations={}),
        client.submit_request(identity(), csr(), duration=None),
    ):
        await check_refusal_of(ForbiddenError, call)
    await check_refusal_of(NotFoundError, anext(client.follow_request(name)))
    assert await loss_of_session(client) is SessionLoss.REFUSED
    await client.close()

    again = dialled(stage, holder, RecoveringHubClient)
    with pytest.raises(NotFoundError):
        await anext(again.follow_request(name))  # of another run: it is submitted again first
    await again.close()
    for credential in (await stage.enrol("edge1"), await stage.bootstrap("edge1")):
        await check_refusal_of(ForbiddenError, recover(stage, credential), match="cannot recover")


async def test_refused_recovery_states_the_reason(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    await stage.enrol("edge2", uid="uid-2")

    async def refused(**asked: str) -> MusterError:
        return present(await awaited_refusal(MusterError, recover(stage, holder, **asked)))

    assert (await refused(uid="uid-9")).message.startswith('the cluster name "edge1" belongs to a cluster with another uid')
    assert 'of cluster "edge1" only' in (await refused(cluster="edge2", uid="uid-2")).message
    await stage.accept("edge1", accepted=False)
    assert "hubctl accept edge1" in (await refused()).message
    await stage.store.run(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), ADMIN))
    error = await refused()
    assert isinstance(error, NotFoundError) or "was deleted here: register again" in error.message, error.message


async def restored(stage: RpcStage) -> None:
    """The hub comes from a backup of before edge1's join."""

    def forget(tx: Transaction) -> None:
        connection = tx.certificates._connection  # type: ignore[attr-defined]
        connection.execute(delete(schema.certificates).where(schema.certificates.c.cluster == EDGE))

    made = await stage.store.read(lambda tx: tx.now)
    await stage.store.run(authorities.adopt, NewAuthority(stage.issuer.trust_bundle, None))
    await stage.store.run(forget)
    await stage.store.run(recovery.restored, RestoreOrder(made))


async def test_agent_that_a_restored_hub_has_forgotten_recovers(stage: RpcStage) -> None:
    holder, known = await stage.enrol("edge1", recovery=True), await stage.enrol("edge2", uid="uid-2")
    forgotten = await stage.enrol("edge1")
    await restored(stage)
    client = dialled(stage, forgotten, GrpcHubClient)
    assert await loss_of_session(client) is SessionLoss.UNRECORDED
    assert present(await awaited_refusal(UnauthorizedError, client.info())).denial_cause is DenialCause.CERTIFICATE_LOST
    await client.close()
    assert await stage.records("edge1", Purpose.RECOVERY) == []

    await recover_and_open_a_session(stage, holder)
    (record,) = await stage.records("edge1")
    assert record.agent == AGENT
    await stage.welcomed(known, uid="uid-2")


ACCOUNT = "default/default"
SUBJECT = "system:serviceaccount:default:default"


@pytest.fixture
async def edge() -> AsyncIterator[HollowCluster]:
    async with HollowCluster(ClusterShape("edge")) as cluster:
        yield cluster


@pytest.fixture
async def other() -> AsyncIterator[HollowCluster]:
    async with HollowCluster(ClusterShape("other")) as cluster:
        yield cluster


@pytest.fixture
async def attesting(tmp_path: Path, edge: HollowCluster, other: HollowCluster) -> AsyncIterator[RpcStage]:
    """One that may fetch keys from both clusters."""
    async with rpc_stage(tmp_path, attestation_allowed_issuers=(edge.url, other.url)) as running:
        yield running


async def token(cluster: HollowCluster, audience: str, account: str = ACCOUNT) -> str:
    async with await KubeClient.from_document(cluster.kubeconfig()) as client:
        return await ServiceAccountAttest(client, account, None).token(audience)


def demand(cluster: HollowCluster) -> AttestationRequirement:
    """By the cluster's own discovery, behind its own CA."""
    return AttestationRequirement(cluster.url, authority=authority(cluster))


def authority(cluster: HollowCluster) -> str:
    return base64.b64decode(cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]).decode()


async def joined(stage: RpcStage, credential: Credential, proof: str, name: str = "edge") -> Any:
    """EnsureCluster and SubmitRequest, with the client that agents have."""
    client, who = dialled(stage, credential, GrpcHubClient), identity(ClusterName(name))
    try:
        info = await client.info()
        client.bring(proof)
        await client.ensure_cluster(who, endpoints=(), annotations={})
        await client.submit_request(who, csr(name), duration=timedelta(hours=1))
    finally:
        await client.close()
    return info


async def test_cluster_proves_itself_by_a_token_of_its_own_api_server(attesting: RpcStage, edge: HollowCluster) -> None:
    credential = await attesting.bootstrap("edge", bounds=CredentialBounds(attestation=demand(edge)))
    assert (await joined(attesting, credential, await token(edge, f"urn:uuid:{HUB}"))).attestation_audience == f"urn:uuid:{HUB}"
    bound = present(await attesting.store.read(lambda tx: tx.bindings.of(ClusterName("edge"))))
    assert (bound.issuer, bound.subject) == (edge.url, SUBJECT)
    with pytest.raises(InvalidError, match="none of service account default/nobody can be had"):
        await token(edge, "x", "default/nobody")
    with pytest.raises(InvalidError, match="name a service account of the managed cluster with --attestation-service-account"):
        await token(edge, "x", "")


async def test_name_bound_to_a_cluster_is_refused_to_others(
    attesting: RpcStage, edge: HollowCluster, other: HollowCluster
) -> None:
    """The answer says that attestation failed and no more; the audit says why."""
    credential = await attesting.bootstrap("edge", bounds=CredentialBounds(attestation=demand(edge)))
    unbound = await attesting.bootstrap(None, bounds=CredentialBounds(attestation=demand(other)))
    foreign = await token(other, f"urn:uuid:{HUB}")
    wrong_audience, good = await token(edge, "urn:uuid:another-hub"), await token(edge, f"urn:uuid:{HUB}")
    tried = [(credential, foreign), (credential, ""), (credential, wrong_audience), (credential, good[:-4] + "AAAA")]
    text = {await refused(attesting, *attempt) for attempt in tried}
    await joined(attesting, credential, good)
    text.add(await refused(attesting, unbound, foreign))
    text.add(await refused(attesting, await attesting.bootstrap("edge"), ""))
    assert text == {(grpc.StatusCode.PERMISSION_DENIED, FAILED)}
    reasons = [record.annotations.get("authorization.k8s.io/reason", "") for record in await attesting.audit()]
    whys = [reason for reason in reasons if reason.startswith("attestation failed: ")]
    for word in ("the request has none", "is for ['urn:uuid:another-hub']", "is bound to", "and there is no attestation"):
        assert any(word in why for why in whys), (word, whys)
    assert len(set(whys)) == len(tried) + 2
    assert all(secret not in str(reasons) for secret in (good, foreign, wrong_audience))


async def refused(stage: RpcStage, credential: Credential, proof: str) -> tuple[grpc.StatusCode, str]:
    failed = await refusal(stage.stub(credential).EnsureCluster(joining("edge", attestation=proof)))
    return failed.code, failed.message


async def test_keys_given_by_hand_need_no_connection_to_the_cluster(attesting: RpcStage, edge: HollowCluster) -> None:
    async with await KubeClient.from_document(edge.kubeconfig()) as client:
        keys = await client.get("/openid/v1/jwks")
    proof = await token(edge, "the-hub")
    bounds = CredentialBounds(
        attestation=AttestationRequirement(edge.url, keys=json.dumps(keys), audience="the-hub", subject=SUBJECT)
    )
    await edge.stop()
    assert (await joined(attesting, await attesting.bootstrap("edge", bounds=bounds), proof)).attestation_audience == "the-hub"
    await edge.start()


async def test_hub_may_require_attestation_of_every_cluster_and_know_the_issuers(tmp_path: Path, edge: HollowCluster) -> None:
    (tmp_path / "edge.pem").write_text(authority(edge))
    file = tmp_path / "issuers.yaml"
    entry = {"issuer": edge.url, "clusterNames": ["ed*"], "certificateAuthorityFile": "edge.pem"}
    file.write_text(yaml.safe_dump({"issuers": [entry]}))
    async with rpc_stage(tmp_path, attestation="required", attestation_issuers=file) as stage:
        credential, proof = await stage.bootstrap(None), await token(edge, f"urn:uuid:{HUB}")
        await joined(stage, credential, proof)
        for name, brought in (("bank", proof), ("edge", "")):
            await check_refusal_of(Exception, joined(stage, credential, brought, name), match="attestation failed")


def test_invalid_list_of_issuers_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "issuers.yaml"
    wrong = []
    for text, words in TABLES["refused"]:
        file.write_text(text)
        with pytest.raises(InvalidError) as caught:
            read_issuers(file)
        if words not in caught.value.message:
            wrong.append((text, caught.value.message))
    assert not wrong
