"""Opens Secrets of the hub's own Kubernetes cluster that the hub writes."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

from hub.ports import KeySecret
from hub.settings import HubSettings

IN_CLUSTER = "in-cluster"


async def secret_at(place: str, settings: HubSettings, stack: AsyncExitStack) -> KeySecret:
    """The Secret NAMESPACE/NAME in the cluster `management_cluster`, or else in the one of this pod.

    In this pod's cluster it gets the owner of the pod. `stack` closes what is opened. Raises InvalidError.
    """
    from hub.management import ClusterKeySecret  # noqa: PLC0415 - memory that only such a hub needs
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

    namespace, _, name = place.partition("/")
    elsewhere = settings.management_cluster not in (None, IN_CLUSTER)
    client = await KubeClient.from_file(Path(settings.management_cluster or "")) if elsewhere else KubeClient.in_cluster()
    pod = None if elsewhere else os.environ.get("POD_NAME")
    return await stack.enter_async_context(ClusterKeySecret(client, namespace, name, pod=pod))
