"""A recovery certificate at the real door: it opens one call, for one agent."""

from contextlib import aclosing
from datetime import timedelta

import pytest

from hub.services import clusters, requests
from machinery import pki
from machinery.clock import SystemClock
from machinery.errors import ForbiddenError, MusterError, NotFoundError
from machinery.identity import AgentId, ClusterName, agent_id, agent_subject, cluster_name
from machinery.kubeconfig import Credential
from spoke.hubclient.client import GrpcHubClient
from spoke.hubclient.recovering import RecoveringHubClient
from spoke.ports import ClientIdentity, Greeting, HubAddress, HubLostError, Loss, RequestState
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream

EDGE, AGENT = ClusterName("edge1"), AgentId("agent")


def dialled(stage: RpcStage, credential: Credential, kind: type[GrpcHubClient]) -> GrpcHubClient:
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    return kind(address, ClientIdentity(credential.chain, credential.key), SystemClock())


async def recovered(stage: RpcStage, holder: Credential, *, cluster: str = "edge1", uid: str = "uid-1") -> tuple[str, bytes]:
    """The name of the request, and a fresh key for what is issued: the request waits."""
    key = pki.generate_key()
    client = dialled(stage, holder, RecoveringHubClient)
    name = cluster_name(cluster)
    try:
        request = pki.build_request(agent_subject(name, agent_id("agent")), key)
        return await client.submit_request(name, AGENT, uid, request, duration=timedelta(hours=1)), key
    finally:
        await client.close()


async def test_an_agent_comes_back_and_what_it_gets_opens_a_session(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    key = pki.generate_key()
    request = pki.build_request(agent_subject(EDGE, AGENT), key)
    client = dialled(stage, holder, RecoveringHubClient)
    name = await client.submit_request(EDGE, AGENT, "uid-1", request, duration=None)
    assert await client.submit_request(EDGE, AGENT, "uid-1", request, duration=None) == name
    await stage.store.run(requests.issue, name, stage.issuer, stage.lifetimes, ADMIN)
    states: list[RequestState] = []
    async with aclosing(client.follow_request(name)) as following:
        states.extend([state async for state in following])
    await client.close()
    assert states[-1].state == "issued"
    stream = await Stream.open(stage, Credential(states[-1].certificate, key))
    assert (await stream.expect("welcome")).hub_id
    await stream.close()


async def test_a_recovery_certificate_opens_nothing_else(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    client = dialled(stage, holder, GrpcHubClient)
    request = pki.build_request(agent_subject(EDGE, AGENT), pki.generate_key())
    name, _ = await recovered(stage, holder)
    refused = [
        client.info(),
        client.ensure_cluster(EDGE, AGENT, "uid-1", endpoints=(), annotations={}),
        client.submit_request(EDGE, AGENT, "uid-1", request, duration=None),
        anext(client.follow_request(name)),
    ]
    for call in refused:
        with pytest.raises(ForbiddenError):
            await call
    with pytest.raises(HubLostError) as lost:
        async with client.session(Greeting("uid-1")):
            pass
    assert lost.value.loss is Loss.REFUSED
    await client.close()


async def test_no_other_certificate_opens_recover(stage: RpcStage) -> None:
    for credential in (await stage.enrol("edge1"), await stage.bootstrap("edge1")):
        with pytest.raises(ForbiddenError, match="cannot recover"):
            await recovered(stage, credential)


async def test_why_an_agent_may_not_come_back_is_told(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    await stage.enrol("edge2", uid="uid-2")

    async def told(**asked: str) -> tuple[type[MusterError], str]:
        with pytest.raises(MusterError) as error:
            await recovered(stage, holder, **asked)
        return type(error.value), error.value.message

    assert (await told(uid="uid-9"))[1].startswith('the cluster name "edge1" belongs to a cluster with another uid')
    assert "recovers nothing else" in (await told(cluster="edge2", uid="uid-2"))[1]
    await stage.accept("edge1", accepted=False)
    assert "hubctl accept edge1" in (await told())[1]
    await stage.store.run(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), ADMIN))
    kind, message = await told()
    assert kind is NotFoundError or "was deleted here: register again" in message, message


async def test_a_request_of_another_run_is_submitted_again_first(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    name, _ = await recovered(stage, holder)
    client = dialled(stage, holder, RecoveringHubClient)
    with pytest.raises(NotFoundError):
        await anext(client.follow_request(name))
    await client.close()
