"""What the agent announces is an Event that kubectl shows."""

from hollow.cluster import HollowCluster
from machinery.clock import SystemClock
from machinery.kube.client import KubeClient
from spoke.cluster import KubeEvents

NAMESPACE = "open-cluster-management-agent"


async def test_an_announcement_is_an_event_about_the_owners_secret(hollow_cluster: HollowCluster) -> None:
    async with await KubeClient.from_document(hollow_cluster.kubeconfig()) as client:
        events = KubeEvents(client, NAMESPACE, SystemClock())
        await events.announce("HubFailedOver", "from a to b", warning=False)
        await events.announce("HubEpochRaised", "x" * 5000, warning=True)
        found = await client.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    told = {event["reason"]: event for event in found}
    assert told["HubFailedOver"]["message"] == "from a to b"
    assert told["HubFailedOver"]["involvedObject"]["name"] == "hub-kubeconfig-secret"
    assert (told["HubEpochRaised"]["type"], len(told["HubEpochRaised"]["message"])) == ("Warning", 1024)
