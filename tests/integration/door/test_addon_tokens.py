"""What the hub makes for an add-on by token lets the agent of its cluster ask for that add-on's tokens, and for no others."""

import asyncio

from hub.domain.change import ADDONS, MANAGED_CLUSTERS, SERVICE_ACCOUNTS, Key
from hub.ports import Transaction
from hub.services import addon_tokens
from tests.fakes.fleetwork import addon, cluster, put, remove
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import Visitor, holder

BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
EDGE1, EDGE2 = Key("edge1", "metrics"), Key("edge2", "metrics")


async def asks(visitor: Visitor, namespace: str, account: str) -> int:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, _ = await visitor.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
    return status


async def settled(visitor: Visitor, status: int) -> None:
    """Returns when a request for the add-on's own token is answered so."""
    async with asyncio.timeout(10):
        while await asks(visitor, "edge1", "metrics-agent") != status:  # noqa: ASYNC110 - the door tells nobody
            await asyncio.sleep(0.02)


def fill(tx: Transaction) -> None:
    for key in (EDGE1, EDGE2):
        put(tx, MANAGED_CLUSTERS, cluster(key.namespace))
        put(tx, ADDONS, addon(key.name, key.namespace, registrations=BY_TOKEN))
        addon_tokens.settle(tx, key, "test")
    put(tx, SERVICE_ACCOUNTS, {"metadata": {"name": "other", "namespace": "edge1"}})


async def test_an_agent_asks_for_the_tokens_of_its_own_add_ons_alone(hub: HubUnderTest) -> None:
    await hub.store.run(fill)
    agent = holder(hub, await hub.agent("edge1"))
    await settled(agent, 201)
    assert await asks(agent, "edge1", "other") == 403
    assert await asks(agent, "edge2", "metrics-agent") == 403
    await hub.store.run(remove, ADDONS, "metrics", "edge1")
    await hub.store.run(addon_tokens.settle, EDGE1, "test")
    await settled(agent, 403)
