"""What an agent left in its cluster is found again, and nobody else's secrets are."""

from base64 import b64encode
from collections.abc import AsyncIterator

import pytest

from hollow.cluster import HollowCluster
from machinery.identity import ClusterName
from machinery.kube.client import KubeClient, Resource
from spoke.credentials import KubeRemains
from spoke.ports import SecretPlace

AGENT = "open-cluster-management-agent"
OWNER = "hub-kubeconfig-secret"
OURS = {"app.kubernetes.io/part-of": "muster"}


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as connected:
        yield connected


async def put(client: KubeClient, namespace: str, name: str, labels: dict[str, str], **held: str) -> None:
    data = {key.replace("_", "-"): b64encode(value.encode()).decode() for key, value in held.items()}
    body = {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": data}
    await client.create(Resource("", "v1", "secrets").path(namespace=namespace), body)


async def test_only_what_this_clusters_agent_made_is_found(client: KubeClient) -> None:
    remains = KubeRemains(client, client, AGENT, owner=OWNER, lease="spoke-agent")
    await put(client, AGENT, OWNER, OURS, cluster_name="c1", agent_name="a")
    await put(client, AGENT, f"{OWNER}-0f1e2d3c", OURS, cluster_name="c1", agent_name="a")
    await put(client, AGENT, "work-hub-kubeconfig-0f1e2d3c", OURS, cluster_name="c1", agent_name="a")
    await put(client, AGENT, f"{OWNER}-of-somebody", {}, cluster_name="c1")
    await put(client, "default", "work-hub-kubeconfig", OURS, cluster_name="c1")
    await put(client, "default", "of-another-cluster", OURS, cluster_name="c2")
    await put(client, "default", "of-another-agent", OURS, cluster_name="c1", agent_name="b")
    await put(client, "default", "of-the-hub", OURS, key="k")
    await put(client, "default", "of-nobody", {}, cluster_name="c1")
    assert await remains.slots() == [f"{OWNER}-0f1e2d3c"]
    found = await remains.addons(ClusterName("c1"))
    assert found == [SecretPlace("default", "work-hub-kubeconfig"), SecretPlace(AGENT, "work-hub-kubeconfig-0f1e2d3c")]
    for place in found:
        await remains.remove(place)
        await remains.remove(place)
    assert not await remains.addons(ClusterName("c1"))
    await remains.forget_lease()
