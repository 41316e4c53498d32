"""The cert agent's calls on a real API server: what is removed is what was read, and nothing that came since."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from hollow.cluster import HollowCluster
from hub.kubecert import deployment as rules
from hub.kubecert.clusterinfo import cluster_info
from hub.kubecert.deployment import Shape
from hub.kubecert.printed import parse_printed
from hub.kubecert.surroundings import DEPLOYMENTS, PODS, HostCluster
from machinery import pki
from machinery.errors import ConflictError
from machinery.kube.client import KubeClient

SHAPE = Shape("default", "agent", "muster/hub:test", "default", {"extra": "yes"})
PATH = DEPLOYMENTS.path("agent", namespace="default")


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


async def made(host: HostCluster) -> Any:
    [manager] = await host.managers()
    await host.create(rules.deployment(SHAPE, manager))
    return await host.deployment()


async def test_a_deployment_that_was_changed_since_is_not_removed(client: KubeClient) -> None:
    host = HostCluster(client, SHAPE)
    read = await made(host)
    await client.patch(PATH, {"metadata": {"annotations": {"somebody": "was here"}}})
    with pytest.raises(ConflictError):
        await host.remove(read)
    await client.delete(PATH)
    await made(host)
    with pytest.raises(ConflictError):
        await host.remove(read)  # another of that name
    now = await host.deployment()
    assert now is not None
    await host.remove(now)
    assert await host.deployment() is None


async def test_a_pod_that_is_another_by_now_is_not_removed(client: KubeClient) -> None:
    host = HostCluster(client, SHAPE)
    await made(host)
    [read] = await host.agents()
    await client.delete(PODS.path(read["metadata"]["name"], namespace="default"))
    with pytest.raises(ConflictError):
        await host.remove_pod(read)
    [pod] = await host.agents()
    assert await host.pod(pod["metadata"]["name"]) == pod
    assert await host.pod("gone") is None


async def test_what_a_server_keeps_of_it_is_as_wanted_and_what_it_prints_is_the_clusters_ca(
    client: KubeClient, hollow_cluster: HollowCluster
) -> None:
    host = HostCluster(client, SHAPE)
    kept = await made(host)
    [manager] = await host.managers()
    assert rules.is_as_wanted(kept, rules.deployment(SHAPE, manager))
    [pod] = await host.agents()
    printed = parse_printed(await host.printed(pod["metadata"]["name"]), "agent")
    assert pki.key_matches(printed.certificate, printed.key)
    info = cluster_info(await host.cluster_info())
    assert info.server == hollow_cluster.url
    assert info.authority == hollow_cluster.kubeconfig()["clusters"][0]["cluster"]["certificate-authority-data"]
