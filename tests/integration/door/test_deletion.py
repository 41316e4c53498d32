"""Deleting clusters through kubectl and hubctl, with the hub's controller at work: in order, waited for, given up by force."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from hub.controllers.removal import Removal, wanted
from hub.domain.change import MANAGED_CLUSTERS
from hub.domain.event import Told
from machinery.controller import Controller
from machinery.tasks import GuardedTasks
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_kubectl import ADD_ON, CLUSTER, create

pytestmark = pytest.mark.kubectl
HELD = ADD_ON.replace("namespace: edge1}", "namespace: edge1, finalizers: [example.com/pre-delete]}")


@asynccontextmanager
async def removing(hub: HubUnderTest) -> AsyncIterator[list[Told]]:
    """The controller, fed from the change log."""
    told: list[Told] = []
    controller = Controller("removal", Removal(hub.store, timedelta(hours=1), told.append))

    async def feed() -> None:
        async for changes in hub.store.follow(0, (MANAGED_CLUSTERS,)):
            for change in changes:
                if wanted(change.document):
                    controller.enqueue(change.key.name)

    async with GuardedTasks("removal") as tasks:
        tasks.start("removal", controller.run())
        tasks.start("feed", feed())
        yield told
        await tasks.stop()


async def accepted(hub: HubUnderTest, addon: str) -> None:
    await create(hub, "edge1.yaml", CLUSTER.replace("hubAcceptsClient: false", "hubAcceptsClient: true"))
    await create(hub, "addon.yaml", addon)


async def test_kubectl_waits_until_a_clusters_addons_are_gone(hub: HubUnderTest) -> None:
    await accepted(hub, HELD)
    async with removing(hub):
        deleting = asyncio.create_task(hub.kubectl("delete", "mcl", "edge1", "--timeout=25s"))
        async with asyncio.timeout(20):
            while "ResourceRemaining" not in (document := (await hub.kubectl("get", "mcl", "edge1", "-o", "json")).out):
                pass
        assert "example.com/pre-delete (1)" in document
        assert not deleting.done()
        patch = '{"metadata":{"finalizers":null}}'
        let_go = await hub.kubectl("patch", "mca", "metrics", "-n", "edge1", "--type=merge", "-p", patch)
        assert let_go.code == 0, let_go.err
        assert (await deleting).code == 0
    assert "not found" in (await hub.kubectl("get", "mcl", "edge1")).err
    assert (await hub.kubectl("get", "ns", "edge1")).code == 0


async def test_hubctl_gives_a_cluster_up_and_says_what_stays_behind(hub: HubUnderTest) -> None:
    await accepted(hub, HELD)
    async with removing(hub) as told:
        first = await hub.hubctl("delete", "cluster", "edge1")
        assert "it goes when cluster.open-cluster-management.io/resource-cleanup let go" in first.out
        ended = await hub.hubctl("delete", "cluster", "edge1", "--force")
        assert ended.code == 0, ended.err
        assert 'warning: cluster "edge1" is given up: nothing on it is cleaned up' in ended.err
        assert "what these add-ons have installed there stays: metrics" in ended.err
        async with asyncio.timeout(20):
            while (await hub.kubectl("get", "mcl", "edge1")).code == 0:
                pass
    assert json.loads((await hub.kubectl("get", "mca", "-A", "-o", "json")).out)["items"] == []
    assert [each.reason for each in told] == ["DeletionForced"]
    assert "--force is for clusters alone" in (await hub.hubctl("delete", "csr", "x", "--force")).err
