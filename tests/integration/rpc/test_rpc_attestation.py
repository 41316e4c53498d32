"""First registrations that prove which cluster they are from: a hollow cluster's own tokens, its discovery, and this door."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc import aio

from hollow.cluster import HollowCluster
from hollow.objects import Shape
from hub.access.attestations import Policy
from hub.attesting import read_issuers
from hub.audit import default_policy
from hub.domain.attestation import FAILED, Demand
from hub.domain.audit import Record, read_record
from hub.domain.credential import Bounds
from hub.ports import Transaction
from machinery import pki
from machinery.clock import SystemClock
from machinery.errors import InvalidError
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.kube.client import KubeClient
from machinery.kubeconfig import Credential
from machinery.product import GROUP_SUFFIX
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from spoke.cluster import ServiceAccountAttest
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import ClientIdentity, HubAddress
from tests.fakes.rpc_stage import HUB, REPLICA, RpcStage, rpc_stage

ACCOUNT = "default/default"
SUBJECT = "system:serviceaccount:default:default"


@pytest.fixture
async def edge() -> AsyncIterator[HollowCluster]:
    async with HollowCluster(Shape("edge")) as cluster:
        yield cluster


@pytest.fixture
async def other() -> AsyncIterator[HollowCluster]:
    async with HollowCluster(Shape("other")) as cluster:
        yield cluster


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[RpcStage]:
    async with rpc_stage(tmp_path, policy=default_policy(GROUP_SUFFIX)) as running:
        yield running


async def token(cluster: HollowCluster, audience: str, account: str = ACCOUNT) -> str:
    async with await KubeClient.from_document(cluster.kubeconfig()) as client:
        return await ServiceAccountAttest(client, account, None).token(audience)


def demand(cluster: HollowCluster, **changed: str) -> Demand:
    """By the cluster's own discovery, behind its own CA."""
    return Demand(**{"issuer": cluster.url, "authority": authority(cluster), **changed})


def authority(cluster: HollowCluster) -> str:
    from base64 import b64decode  # noqa: PLC0415 - only here

    return b64decode(cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]).decode()


async def joined(stage: RpcStage, credential: Credential, proof: str, name: str = "edge") -> Any:
    """EnsureCluster and SubmitRequest, with the client that agents have."""
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock())
    cluster, agent = ClusterName(name), AgentId("agent")
    try:
        info = await client.info()
        client.bring(proof)
        await client.ensure_cluster(cluster, agent, "uid-1", endpoints=(), annotations={})
        request = pki.build_request(agent_subject(cluster, agent), pki.generate_key())
        await client.submit_request(cluster, agent, "uid-1", request, duration=timedelta(hours=1))
    finally:
        await client.close()
    return info


async def records(stage: RpcStage) -> list[Record]:
    await stage.parts.auditor.finish()

    def stored(tx: Transaction) -> list[bytes]:
        return [link.document for link in tx.audit.links(REPLICA, after=0, limit=1_000)]

    return [record for document in await stage.store.read(stored) if (record := read_record(document))]


async def test_a_cluster_proves_itself_by_a_token_of_its_own_api_server(stage: RpcStage, edge: HollowCluster) -> None:
    credential = await stage.bootstrap("edge", bounds=Bounds(attestation=demand(edge)))
    proof = await token(edge, f"urn:uuid:{HUB}")
    info = await joined(stage, credential, proof)
    assert info.attestation_audience == f"urn:uuid:{HUB}"
    bound = await stage.store.read(lambda tx: tx.bindings.of(ClusterName("edge")))
    assert bound is not None
    assert (bound.issuer, bound.subject) == (edge.url, SUBJECT)
    edge.tokens.rotate()
    assert stage.parts.attestor is not None


async def test_who_came_first_is_nothing_where_a_name_is_bound_to_a_cluster(
    stage: RpcStage, edge: HollowCluster, other: HollowCluster
) -> None:
    """The same credential, the right name, the other cluster: outside nothing but that it failed, inside why."""
    credential = await stage.bootstrap("edge", bounds=Bounds(attestation=demand(edge)))
    unbound = await stage.bootstrap(None, bounds=Bounds(attestation=demand(other)))
    foreign = await token(other, f"urn:uuid:{HUB}")
    wrong_audience = await token(edge, "urn:uuid:another-hub")
    good = await token(edge, f"urn:uuid:{HUB}")
    tried = [(credential, foreign), (credential, ""), (credential, wrong_audience), (credential, good[:-4] + "AAAA")]
    said = {await refusal(stage, *attempt) for attempt in tried}
    await joined(stage, credential, good)
    said.add(await refusal(stage, unbound, foreign))
    said.add(await refusal(stage, await stage.bootstrap("edge"), ""))
    assert said == {(grpc.StatusCode.PERMISSION_DENIED, FAILED)}
    reasons = [record.annotations.get("authorization.k8s.io/reason", "") for record in await records(stage)]
    whys = [reason for reason in reasons if reason.startswith("attestation failed: ")]
    for word in ("none was brought", "is for ['urn:uuid:another-hub']", "is bound to", "and there is no attestation"):
        assert any(word in why for why in whys), (word, whys)
    assert len(set(whys)) == len(tried) + 2
    assert all(secret not in str(reasons) for secret in (good, foreign, wrong_audience))


async def refusal(stage: RpcStage, credential: Credential, proof: str) -> tuple[grpc.StatusCode, str]:
    async with stage.channel(credential) as channel:
        asked = wire.EnsureClusterRequest(cluster_name="edge", cluster_uid="uid-1", agent_id="agent", attestation=proof)
        with pytest.raises(aio.AioRpcError) as caught:
            await RegistrationStub(channel).EnsureCluster(asked)
        return caught.value.code(), str(caught.value.details())


async def test_keys_given_by_hand_need_no_way_to_the_cluster(stage: RpcStage, edge: HollowCluster) -> None:
    async with await KubeClient.from_document(edge.kubeconfig()) as client:
        keys = await client.get("/openid/v1/jwks")
    proof = await token(edge, "the-hub")
    bounds = Bounds(attestation=Demand(edge.url, keys=json.dumps(keys), audience="the-hub", subject=SUBJECT))
    await edge.stop()
    info = await joined(stage, await stage.bootstrap("edge", bounds=bounds), proof)
    assert info.attestation_audience == "the-hub"
    await edge.start()


async def test_a_hub_may_demand_it_of_everybody_and_know_the_issuers(tmp_path: Path, edge: HollowCluster) -> None:
    (tmp_path / "edge.pem").write_text(authority(edge))
    file = tmp_path / "issuers.yaml"
    entry = {"issuer": edge.url, "clusterNames": ["ed*"], "certificateAuthorityFile": "edge.pem"}
    file.write_text(yaml.safe_dump({"issuers": [entry]}))
    async with rpc_stage(tmp_path, attestation=Policy(required=True, issuers=lambda: read_issuers(file))) as stage:
        credential = await stage.bootstrap(None)
        proof = await token(edge, f"urn:uuid:{HUB}")
        await joined(stage, credential, proof)
        for name, brought in (("bank", proof), ("edge", "")):
            with pytest.raises(Exception, match="attestation failed"):
                await joined(stage, credential, brought, name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "cannot be read: it is no YAML"),
        ("{}", "has no list `issuers`"),
        ("issuers: [{}]", "an entry has an issuer"),
        ("issuers: [{issuer: https://a, keyFile: x}]", "besides it only"),
        ("issuers: [{issuer: https://a, keysFile: nowhere}]", "nowhere cannot be read: No such file"),
        ("issuers: [{issuer: http://a}]", "issuer http://a: issuer: it is an https:// address"),
        ("issuers: [{issuer: https://a, clusterNames: a}]", "clusterNames is a list"),
    ],
)
def test_a_list_of_issuers_that_cannot_be_used_says_why(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "issuers.yaml"
    file.write_text(text)
    with pytest.raises(InvalidError) as caught:
        read_issuers(file)
    assert words in caught.value.message


async def test_an_agent_that_can_have_no_token_says_what_to_do(edge: HollowCluster) -> None:
    with pytest.raises(InvalidError, match="none of service account default/nobody can be had"):
        await token(edge, "x", "default/nobody")
    with pytest.raises(InvalidError, match="name a service account of the managed cluster with --attestation-service-account"):
        await token(edge, "x", "")
