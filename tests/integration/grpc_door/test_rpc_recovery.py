"""A recovery certificate opens one call, for one agent; also at a restored hub that has forgotten the agent."""

from contextlib import aclosing
from datetime import timedelta

import pytest
from sqlalchemy import delete

from hub.api.certificates import Purpose
from hub.ports import Transaction
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import Made
from hub.registry.certificatesigningrequests import issuance
from hub.registry.managedclusters import service as clusters
from hub.registry.recovery import restore as restoring
from hub.registry.recovery.restore import RestoreOrder
from hub.store import schema
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.errors import DenialCause, ForbiddenError, MusterError, NotFoundError, UnauthorizedError
from machinery.identity import AgentId, ClusterName, cluster_name
from machinery.runtime.clock import SystemClock
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionEnd
from spoke.ports.hub import ClientIdentity, Greeting, HubAddress, HubLostError
from spoke.transports.grpc.client import GrpcHubClient
from spoke.transports.grpc.recovery import RecoveringHubClient
from tests.fakes.rpc_stage import ADMIN, RpcStage, csr

EDGE, AGENT = ClusterName("edge1"), AgentId("agent")


def dialled(stage: RpcStage, credential: Credential, kind: type[GrpcHubClient]) -> GrpcHubClient:
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    return kind(address, ClientIdentity(credential.chain, credential.key), SystemClock())


async def recover(stage: RpcStage, holder: Credential, *, cluster: str = "edge1", uid: str = "uid-1") -> str:
    """The name of the request, which waits."""
    client = dialled(stage, holder, RecoveringHubClient)
    try:
        return await client.submit_request(
            AgentIdentity(AgentNames(cluster_name(cluster), AGENT), uid), csr(cluster), duration=timedelta(hours=1)
        )
    finally:
        await client.close()


async def recover_and_open_a_session(stage: RpcStage, holder: Credential) -> None:
    key, client = pki.generate_key(), dialled(stage, holder, RecoveringHubClient)
    request = csr(key=key)
    names = {
        await client.submit_request(AgentIdentity(AgentNames(EDGE, AGENT), "uid-1"), request, duration=None) for _ in range(2)
    }
    (name,) = names
    await stage.store.run(issuance.issue, name, stage.issuer, stage.lifetimes, ADMIN)
    async with aclosing(client.follow_request(name)) as following:
        issued = [state async for state in following][-1]
    await client.close()
    assert issued.state == "issued"
    stream = await stage.welcomed(Credential(issued.certificate, key))
    await stream.beat(1)


async def loss_of_session(client: GrpcHubClient) -> SessionEnd:
    with pytest.raises(HubLostError) as lost:
        async with client.session(Greeting("uid-1")):
            pass
    return lost.value.loss


async def test_recovery_certificate_opens_recover_and_nothing_else(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    await recover_and_open_a_session(stage, holder)

    client, name = dialled(stage, holder, GrpcHubClient), await recover(stage, holder)
    for call in (
        client.info(),
        client.ensure_cluster(AgentIdentity(AgentNames(EDGE, AGENT), "uid-1"), endpoints=(), annotations={}),
        client.submit_request(AgentIdentity(AgentNames(EDGE, AGENT), "uid-1"), csr(), duration=None),
    ):
        with pytest.raises(ForbiddenError):
            await call
    with pytest.raises(NotFoundError):
        await anext(client.follow_request(name))
    assert await loss_of_session(client) is SessionEnd.REFUSED
    await client.close()

    again = dialled(stage, holder, RecoveringHubClient)
    with pytest.raises(NotFoundError):
        await anext(again.follow_request(name))  # of another run: it is submitted again first
    await again.close()
    for credential in (await stage.enrol("edge1"), await stage.bootstrap("edge1")):
        with pytest.raises(ForbiddenError, match="cannot recover"):
            await recover(stage, credential)


async def test_refused_recovery_states_the_reason(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    await stage.enrol("edge2", uid="uid-2")

    async def refused(**asked: str) -> MusterError:
        with pytest.raises(MusterError) as error:
            await recover(stage, holder, **asked)
        return error.value

    other_uid = 'the cluster name "edge1" belongs to a cluster with another uid'
    assert (await refused(uid="uid-9")).message.startswith(other_uid)
    assert "recovers nothing else" in (await refused(cluster="edge2", uid="uid-2")).message
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
    await stage.store.run(authorities.adopt, Made(stage.issuer.trust_bundle, None))
    await stage.store.run(forget)
    await stage.store.run(restoring.restored, RestoreOrder(made))


async def test_agent_that_a_restored_hub_has_forgotten_recovers(stage: RpcStage) -> None:
    holder, known = await stage.enrol("edge1", recovery=True), await stage.enrol("edge2", uid="uid-2")
    forgotten = await stage.enrol("edge1")
    await restored(stage)
    client = dialled(stage, forgotten, GrpcHubClient)
    assert await loss_of_session(client) is SessionEnd.UNRECORDED
    with pytest.raises(UnauthorizedError) as refused:
        await client.info()
    assert refused.value.verdict is DenialCause.CERTIFICATE_LOST
    await client.close()
    assert await stage.records("edge1", Purpose.RECOVERY) == []

    await recover_and_open_a_session(stage, holder)
    (record,) = await stage.records("edge1")
    assert record.agent == AGENT
    await stage.welcomed(known, uid="uid-2")
