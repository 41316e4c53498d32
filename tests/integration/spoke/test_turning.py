"""A hosted agent: the managed cluster's kubeconfig is replaced while it runs; and what lies in which of two clusters."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import UnauthorizedError
from machinery.identity import AddOnName
from machinery.meta.timestamps import format_micro_time
from machinery.runtime.clock import ManualClock, SystemClock
from spoke.agent.loop import SpokeAgent
from spoke.cluster import LEASES, NAMESPACES, FollowedKubeconfig, KubeCluster
from spoke.credentials.kubernetes_secrets import KubeSecrets
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.report import ManagedNamespace
from spoke.ports.cluster import Secrets
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import Stage, running, until

SECRETS = RestResource("", "v1", "secrets")


def put(file: Path, text: str) -> None:
    file.write_text(text)


async def test_running_agent_takes_over_a_replaced_kubeconfig_of_the_same_cluster_only(
    tmp_path: Path, client: KubeClient, hollow_cluster: HollowCluster
) -> None:
    file, uid, document = tmp_path / "spoke.kubeconfig", hollow_cluster.shape.cluster_uid, hollow_cluster.kubeconfig()
    wrong_token = {**document, "users": [{**document["users"][0], "user": {"token": "wrong"}}]}
    for content in ("", "not: [yaml", "apiVersion: v1", yaml.safe_dump(wrong_token)):
        put(file, content)
        assert not await FollowedKubeconfig(client, file).reload(), content
        assert await KubeCluster(client).uid() == uid
    async with await KubeClient.from_file(file) as wrong:
        with pytest.raises(UnauthorizedError):
            await KubeCluster(wrong).uid()

    followed, server = FollowedKubeconfig(client, file), client.server
    following = asyncio.create_task(followed.run(timedelta(milliseconds=10)))
    put(file, yaml.safe_dump(document).replace("127.0.0.1", "localhost"))  # the same server by another name
    await until(lambda: client.server != server)
    following.cancel()
    assert await KubeCluster(client).uid() == uid

    followed = FollowedKubeconfig(client, file)
    async with HollowCluster(ClusterShape("other")) as other:
        put(file, yaml.safe_dump(other.kubeconfig()))
        assert await followed.reload()
    assert await KubeCluster(client).uid() == uid


NEAR, FAR = AddOnName("near"), AddOnName("far")
COMPONENT = "open-cluster-management-agent"


async def test_hosted_agent_keeps_its_secrets_at_the_management_cluster(hollow_cluster: HollowCluster, tmp_path: Path) -> None:
    registration = (AddOnRegistration(KUBE_SIGNER, "user", driver="csr"),)
    async with (
        HollowCluster(ClusterShape("management", nodes=1)) as hosting,
        await KubeClient.from_document(hosting.kubeconfig()) as management,
        await KubeClient.from_document(hollow_cluster.kubeconfig()) as managed,
    ):
        for client in (management, managed):
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "addons"}}
            await client.create(NAMESPACES.path(), namespace)
        await lease(managed, NEAR)
        await lease(management, FAR)
        clock = ManualClock(SystemClock().now())
        hub, file = MemoryHub(clock), tmp_path / "bootstrap.kubeconfig"
        put(file, hub.bootstrap_kubeconfig().decode())
        stage = Stage(hub, clock, file)
        stage.hub.namespaces = (ManagedNamespace("blue", "team"),)
        stage.hub.addons = (
            AddOn(NEAR, "addons", registrations=registration),
            AddOn(FAR, "addons", hosting_cluster_name="management", registrations=registration),
        )

        def of_addon(addon: AddOn) -> Secrets:
            return KubeSecrets(management if addon.hosted else managed, addon.namespace)

        world = replace(stage.world(), spoke=KubeCluster(managed), management=KubeCluster(management), directory=None)
        world = replace(world, secrets=KubeSecrets(management, COMPONENT), addon_secrets=of_addon)
        async with running(SpokeAgent(stage.options, world)):
            await until(lambda: told(stage) >= {(NEAR, "Updated"), (FAR, "Updated"), (NEAR, "Rotated"), (FAR, "Rotated")}, 30)
            await until(lambda: stage.hub.session.reports and stage.hub.session.reports[-1].namespaces, 30)
        assert "hub-kubeconfig-secret" in await secret_names(management, COMPONENT)
        assert await secret_names(managed, COMPONENT) == set()
        assert await secret_names(managed, "addons") == {"near-hub-kubeconfig"}
        assert await secret_names(management, "addons") == {"far-hub-kubeconfig"}
        assert stage.hub.session.reports[-1].node_count == hollow_cluster.shape.nodes
        assert next(iter(stage.hub.clusters.values())).cluster_uid == hollow_cluster.shape.cluster_uid
        assert await managed.get(NAMESPACES.path("blue"))
        assert "blue" not in {item["metadata"]["name"] for item in await management.list(NAMESPACES.path())}


async def lease(client: KubeClient, name: str) -> None:
    renewed = format_micro_time(SystemClock().now())
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"renewTime": renewed}}
    await client.create(LEASES.path(namespace="addons"), body)


def told(stage: Stage) -> set[tuple[str, str]]:
    """Add-on and what was told of it, in a word."""
    words = {"ManagedClusterAddOnLeaseUpdated": "Updated", "ClientCertificateUpdated": "Rotated"}
    reports = [report for session in stage.hub.sessions for report in session.addon_reports]
    return {(name, words.get(entry.reason, entry.reason)) for name, entries in reports for entry in entries}


async def secret_names(client: KubeClient, namespace: str) -> set[str]:
    return {item["metadata"]["name"] for item in await client.list(SECRETS.path(namespace=namespace))}
