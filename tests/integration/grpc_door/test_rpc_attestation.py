"""First registrations that prove which cluster they are from: a hollow cluster's own tokens, its discovery, and this door."""

import json
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from hub.api.bootstrapcredentials import FAILED, CredentialBounds, Demand
from hub.extensions.attestation import read_issuers
from machinery.client.kubeconfig import Credential
from machinery.client.rest import KubeClient
from machinery.errors import InvalidError
from machinery.identity import AgentId, ClusterName
from machinery.runtime.clock import SystemClock
from spoke.cluster import ServiceAccountAttest
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.ports.hub import ClientIdentity, HubAddress
from spoke.transports.grpc.client import GrpcHubClient
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import RpcStage, csr, joining, refusal, rpc_stage

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
async def stage(tmp_path: Path, edge: HollowCluster, other: HollowCluster) -> AsyncIterator[RpcStage]:
    """One that may fetch keys from both clusters."""
    async with rpc_stage(tmp_path, attestation_allowed_issuers=(edge.url, other.url)) as running:
        yield running


async def token(cluster: HollowCluster, audience: str, account: str = ACCOUNT) -> str:
    async with await KubeClient.from_document(cluster.kubeconfig()) as client:
        return await ServiceAccountAttest(client, account, None).token(audience)


def demand(cluster: HollowCluster, **changed: str) -> Demand:
    """By the cluster's own discovery, behind its own CA."""
    return Demand(**{"issuer": cluster.url, "authority": authority(cluster), **changed})


def authority(cluster: HollowCluster) -> str:
    return b64decode(cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]).decode()


async def joined(stage: RpcStage, credential: Credential, proof: str, name: str = "edge") -> Any:
    """EnsureCluster and SubmitRequest, with the client that agents have."""
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock())
    cluster, agent = ClusterName(name), AgentId("agent")
    try:
        info = await client.info()
        client.bring(proof)
        await client.ensure_cluster(AgentIdentity(AgentNames(cluster, agent), "uid-1"), endpoints=(), annotations={})
        await client.submit_request(AgentIdentity(AgentNames(cluster, agent), "uid-1"), csr(name), duration=timedelta(hours=1))
    finally:
        await client.close()
    return info


async def test_cluster_proves_itself_by_a_token_of_its_own_api_server(stage: RpcStage, edge: HollowCluster) -> None:
    credential = await stage.bootstrap("edge", bounds=CredentialBounds(attestation=demand(edge)))
    info = await joined(stage, credential, await token(edge, f"urn:uuid:{HUB}"))
    assert info.attestation_audience == f"urn:uuid:{HUB}"
    bound = await stage.store.read(lambda tx: tx.bindings.of(ClusterName("edge")))
    assert bound is not None
    assert (bound.issuer, bound.subject) == (edge.url, SUBJECT)

    with pytest.raises(InvalidError, match="none of service account default/nobody can be had"):
        await token(edge, "x", "default/nobody")
    with pytest.raises(InvalidError, match="name a service account of the managed cluster with --attestation-service-account"):
        await token(edge, "x", "")


async def test_name_bound_to_a_cluster_is_refused_to_others(stage: RpcStage, edge: HollowCluster, other: HollowCluster) -> None:
    """The answer says that attestation failed and no more; the audit says why."""
    credential = await stage.bootstrap("edge", bounds=CredentialBounds(attestation=demand(edge)))
    unbound = await stage.bootstrap(None, bounds=CredentialBounds(attestation=demand(other)))
    foreign = await token(other, f"urn:uuid:{HUB}")
    wrong_audience = await token(edge, "urn:uuid:another-hub")
    good = await token(edge, f"urn:uuid:{HUB}")
    tried = [(credential, foreign), (credential, ""), (credential, wrong_audience), (credential, good[:-4] + "AAAA")]
    said = {await refused(stage, *attempt) for attempt in tried}
    await joined(stage, credential, good)
    said.add(await refused(stage, unbound, foreign))
    said.add(await refused(stage, await stage.bootstrap("edge"), ""))
    assert said == {(grpc.StatusCode.PERMISSION_DENIED, FAILED)}
    reasons = [record.annotations.get("authorization.k8s.io/reason", "") for record in await stage.audit()]
    whys = [reason for reason in reasons if reason.startswith("attestation failed: ")]
    for word in ("none was brought", "is for ['urn:uuid:another-hub']", "is bound to", "and there is no attestation"):
        assert any(word in why for why in whys), (word, whys)
    assert len(set(whys)) == len(tried) + 2
    assert all(secret not in str(reasons) for secret in (good, foreign, wrong_audience))


async def refused(stage: RpcStage, credential: Credential, proof: str) -> tuple[grpc.StatusCode, str]:
    failed = await refusal(stage.stub(credential).EnsureCluster(joining("edge", attestation=proof)))
    return failed.code, failed.message


async def test_keys_given_by_hand_need_no_connection_to_the_cluster(stage: RpcStage, edge: HollowCluster) -> None:
    async with await KubeClient.from_document(edge.kubeconfig()) as client:
        keys = await client.get("/openid/v1/jwks")
    proof = await token(edge, "the-hub")
    bounds = CredentialBounds(attestation=Demand(edge.url, keys=json.dumps(keys), audience="the-hub", subject=SUBJECT))
    await edge.stop()
    assert (await joined(stage, await stage.bootstrap("edge", bounds=bounds), proof)).attestation_audience == "the-hub"
    await edge.start()


async def test_hub_may_require_attestation_of_every_cluster_and_know_the_issuers(tmp_path: Path, edge: HollowCluster) -> None:
    (tmp_path / "edge.pem").write_text(authority(edge))
    file = tmp_path / "issuers.yaml"
    entry = {"issuer": edge.url, "clusterNames": ["ed*"], "certificateAuthorityFile": "edge.pem"}
    file.write_text(yaml.safe_dump({"issuers": [entry]}))
    async with rpc_stage(tmp_path, attestation="required", attestation_issuers=file) as stage:
        credential = await stage.bootstrap(None)
        proof = await token(edge, f"urn:uuid:{HUB}")
        await joined(stage, credential, proof)
        for name, brought in (("bank", proof), ("edge", "")):
            with pytest.raises(Exception, match="attestation failed"):
                await joined(stage, credential, brought, name)


def test_invalid_list_of_issuers_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "issuers.yaml"

    def read(text: str) -> object:
        file.write_text(text)
        return read_issuers(file)

    rows = (
        ("[", "cannot be read: it is no YAML"),
        ("{}", "has no list `issuers`"),
        ("issuers: [{}]", "an entry has an issuer"),
        ("issuers: [{issuer: https://a, keyFile: x}]", "besides it only"),
        ("issuers: [{issuer: https://a, keysFile: nowhere}]", "nowhere cannot be read: No such file"),
        ("issuers: [{issuer: http://a}]", "issuer http://a: issuer: it is an https:// address"),
        ("issuers: [{issuer: https://a, clusterNames: a}]", "clusterNames is a list"),
    )
    wrong = []
    for text, words in rows:
        with pytest.raises(InvalidError) as caught:
            read(text)
        if words not in caught.value.message:
            wrong.append((text, caught.value.message))
    assert not wrong
