"""Agents of a restored hub at the real door: what it has forgotten comes back by Recover, and by nothing else."""

from contextlib import aclosing

import pytest
from sqlalchemy import delete

from hub.domain.certificate import Purpose
from hub.ports import Transaction
from hub.services import authorities, requests, restoring
from hub.services.authorities import Made
from hub.services.restoring import Order
from hub.store import schema
from machinery import pki
from machinery.errors import UnauthorizedError, Verdict
from machinery.identity import agent_subject
from machinery.kubeconfig import Credential
from spoke.hubclient.client import GrpcHubClient
from spoke.hubclient.recovering import RecoveringHubClient
from spoke.ports import Greeting, HubLostError, Loss
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream
from tests.integration.rpc.test_rpc_recovery import AGENT, EDGE, dialled


def forget(tx: Transaction) -> None:
    """What a restore from a backup of before the join leaves of certificates."""
    connection = tx.certificates._connection  # type: ignore[attr-defined]
    connection.execute(delete(schema.certificates).where(schema.certificates.c.cluster == EDGE))


async def restored(stage: RpcStage) -> None:
    made = await stage.store.read(lambda tx: tx.now)
    await stage.store.run(authorities.adopt, Made(stage.issuer.trust_bundle, None))
    await stage.store.run(forget)
    await stage.store.run(restoring.restored, Order(made))


async def test_a_forgotten_agent_is_told_so_comes_back_and_opens_a_session(stage: RpcStage) -> None:
    holder = await stage.enrol("edge1", recovery=True)
    agent = await stage.enrol("edge2", uid="uid-2")
    await restored(stage)
    client = dialled(stage, holder, RecoveringHubClient)
    key = pki.generate_key()
    name = await client.submit_request(EDGE, AGENT, "uid-1", pki.build_request(agent_subject(EDGE, AGENT), key), duration=None)
    await stage.store.run(requests.issue, name, stage.issuer, stage.lifetimes, ADMIN)
    async with aclosing(client.follow_request(name)) as following:
        issued = [state async for state in following][-1]
    await client.close()
    stream = await Stream.open(stage, Credential(issued.certificate, key))
    assert (await stream.expect("welcome")).hub_id
    await stream.close()
    (record,) = await stage.records("edge1")
    assert record.agent == AGENT
    known = await Stream.open(stage, agent, uid="uid-2")
    assert (await known.expect("welcome")).hub_id
    await known.close()


async def test_the_agents_own_certificate_hears_that_it_was_lost(stage: RpcStage) -> None:
    agent = await stage.enrol("edge1")
    await restored(stage)
    client = dialled(stage, agent, GrpcHubClient)
    with pytest.raises(HubLostError) as lost:
        async with client.session(Greeting("uid-1")):
            pass
    assert lost.value.loss is Loss.UNRECORDED
    with pytest.raises(UnauthorizedError) as refused:
        await client.info()
    assert refused.value.verdict is Verdict.CERTIFICATE_LOST
    await client.close()
    assert await stage.records("edge1", Purpose.RECOVERY) == []
