"""Bootstrap kubeconfigs in secrets of a real API: added, replaced, garbled and deleted while the agent looks on."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable

import pytest

from hollow.cluster import HollowCluster
from machinery.clock import ManualClock
from machinery.identity import HubId
from machinery.kube.client import KubeClient
from spoke.bootstraps import Bootstraps, BootstrapSecret, BootstrapWatch
from spoke.credentials import KubeSecrets
from spoke.credentials.secrets import SECRETS
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import until

NAMESPACE = "open-cluster-management-agent"
A, B = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "ab")


@pytest.fixture
async def client(hollow_cluster: HollowCluster) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        yield client


async def put(client: KubeClient, name: str, kubeconfig: bytes) -> None:
    """As an operator does: with kubectl, and none of our labels."""
    data = {"kubeconfig": b64encode(kubeconfig).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data}
    present = await KubeSecrets(client, NAMESPACE).read(name)
    if present.version is None:
        await client.create(SECRETS.path(namespace=NAMESPACE), secret)
    else:
        await client.patch(SECRETS.path(name, namespace=NAMESPACE), {"data": data})


def kubeconfig(hub: HubId) -> bytes:
    return MemoryHub(ManualClock(), hub_id=hub).bootstrap_kubeconfig()


async def test_secrets_of_a_cluster_are_followed(client: KubeClient) -> None:
    secrets = KubeSecrets(client, NAMESPACE)
    await put(client, "east", kubeconfig(A))
    watch = BootstrapWatch(Bootstraps([BootstrapSecret(secrets, "east"), BootstrapSecret(secrets, "west")]))

    def lists(*hubs: HubId) -> Callable[[], bool]:
        return lambda: [hub.hub_id for hub in watch.settle().hubs] == list(hubs)

    async with watch.watching():
        assert lists(A)(), "known before anything else is done"
        await put(client, "west", kubeconfig(B))
        await until(lists(A, B))
        await put(client, "west", b"nonsense: [")
        await until(lambda: watch.settle().troubles)
        assert lists(A, B)(), "who was named last stays while a source cannot be read"
        await secrets.delete("east")
        await until(lists(B))
        assert "there is no secret" in str(watch.listing.trouble)
