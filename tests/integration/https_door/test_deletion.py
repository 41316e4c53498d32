"""Deleted clusters: in order, waited for, or given up by force."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from hub.api.certificates import Purpose
from hub.api.events import EventRecord
from hub.api.managedclusters.removal import FINALIZER, FORCED, needs_steps
from hub.api.meta.change import CLUSTER_ROLES, MANAGED_CLUSTERS
from hub.controllers.clusters.deletion import Removal
from hub.ports import Transaction
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from hubctl.errors import DONE, FAILED, MISUSED
from machinery.identity import CertificateSubject
from machinery.meta.objects import Key
from machinery.runtime.controller import Controller
from machinery.runtime.tasks import GuardedTasks
from tests.integration.https_door.conftest import HubUnderTest, admin_of
from tests.integration.https_door.test_kubectl import ADD_ON, CLUSTER, create

HELD = ADD_ON.replace("namespace: edge1}", "namespace: edge1, finalizers: [example.com/pre-delete]}")


@asynccontextmanager
async def removing(hub: HubUnderTest) -> AsyncIterator[list[EventRecord]]:
    """The controller, fed from the change log."""
    told: list[EventRecord] = []
    controller = Controller("removal", Removal(hub.store, timedelta(hours=1), told.append))

    async def feed() -> None:
        async for changes in hub.store.follow(0, (MANAGED_CLUSTERS,)):
            for change in changes:
                if needs_steps(change.document):
                    controller.enqueue(change.key.name)

    async with GuardedTasks("removal") as tasks:
        tasks.start("removal", controller.run())
        tasks.start("feed", feed())
        yield told
        await tasks.stop()


async def accepted(hub: HubUnderTest, addon: str) -> None:
    await create(hub, "edge1.yaml", CLUSTER.replace("hubAcceptsClient: false", "hubAcceptsClient: true"))
    await create(hub, "addon.yaml", addon)


@pytest.mark.kubectl
async def test_kubectl_waits_until_a_clusters_addons_are_gone(hub: HubUnderTest) -> None:
    await accepted(hub, HELD)
    async with removing(hub):
        deleting = asyncio.create_task(hub.kubectl("delete mcl edge1 --timeout=25s"))
        async with asyncio.timeout(20):
            while "ResourceRemaining" not in (document := await hub.output("hubctl get cluster edge1 -o json")):
                pass
        assert "example.com/pre-delete (1)" in document
        assert not deleting.done()
        await hub.output("kubectl patch mca metrics -n edge1 --type=merge -p", '{"metadata":{"finalizers":null}}')
        assert (await deleting).code == DONE
    await hub.runs(("kubectl get mcl edge1", FAILED, "not found"), ("kubectl get ns edge1", DONE, ""))


@pytest.mark.kubectl
async def test_hubctl_gives_a_cluster_up_and_says_what_stays_behind(hub: HubUnderTest) -> None:
    await accepted(hub, HELD)
    async with removing(hub) as told:
        lets_go = "it goes when cluster.open-cluster-management.io/resource-cleanup let go"
        await hub.runs(("hubctl delete cluster edge1", DONE, lets_go))
        ended = await hub.hubctl("delete cluster edge1 --force")
        assert ended.code == DONE, ended.err
        assert 'warning: cluster "edge1" is given up: nothing on it is cleaned up' in ended.err
        assert "what these add-ons have installed there stays: metrics" in ended.err
        async with asyncio.timeout(20):
            while (await hub.hubctl("get cluster edge1")).code == DONE:
                pass
    assert json.loads(await hub.output("hubctl get addons -o json"))["items"] == []
    assert [each.reason for each in told] == ["DeletionForced"]
    await hub.runs(("hubctl delete csr x --force", MISUSED, "--force is for clusters alone"))


async def enter(hub: HubUnderTest, *finalizers: str, **annotations: str) -> None:
    metadata = {"name": "edge1", "finalizers": list(finalizers), "annotations": annotations}
    await hub.store.run(clusters.put, {"metadata": metadata, "spec": {"hubAcceptsClient": True}}, None, "test")


async def clerk(hub: HubUnderTest) -> Path:
    """Somebody who may change clusters and may not delete any."""
    verbs = ["get", "list", "patch", "update"]
    rules = [{"verbs": verbs, "apiGroups": ["*"], "resources": ["managedclusters", "managedclusteraddons"]}]
    role = {"metadata": {"name": "clerk"}, "rules": rules}
    await hub.store.run(objects.put, CLUSTER_ROLES, role, None, "test")
    await (await admin_of(hub)).bind("clerk", "User", "clerk")
    return await hub.certificate(Purpose.LOGIN, CertificateSubject("clerk"))


async def annotations(hub: HubUnderTest) -> dict[str, str] | None:
    def read(tx: Transaction) -> dict[str, str] | None:
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))
        return None if stored is None else dict(stored.document["metadata"].get("annotations") or {})

    return await hub.store.read(read)


async def test_a_forced_deletion_marks_only_a_cluster_that_is_being_deleted(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER)
    await hub.runs(("hubctl delete cluster edge1 --force", FAILED, "cannot delete"), path=await clerk(hub))
    await hub.output("hubctl delete cluster edge1 --force --dry-run")
    assert await annotations(hub) == {}
    assert await hub.output("hubctl delete cluster edge1 --force") == 'cluster "edge1" is being deleted by force\n'
    assert await annotations(hub) == {FORCED: "true"}


async def test_a_plain_deletion_says_that_a_cluster_is_given_up_because_somebody_marked_it(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER, **{FORCED: "true"})
    warning = f"warning: nothing is waited for: it bears the annotation {FORCED}"
    await hub.runs(("hubctl delete cluster edge1", DONE, warning))
