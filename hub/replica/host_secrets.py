"""Secrets of the cluster that the hub runs in, which the hub itself writes."""

import os
from contextlib import AsyncExitStack
from pathlib import Path

from hub.ports import KeySecret
from hub.settings import HubSettings

IN_CLUSTER = "in-cluster"


async def secret_at(place: str, settings: HubSettings, stack: AsyncExitStack) -> KeySecret:
    """The Secret NAMESPACE/NAME, of the cluster that `management_cluster` names, else of the one that this pod is in.

    In the latter it goes with what runs the hub. What is opened for it closes with `stack`. Raises InvalidError.
    """
    from hub.management import ClusterKeySecret  # noqa: PLC0415 - memory that only such a hub needs
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

    namespace, _, name = place.partition("/")
    elsewhere = settings.management_cluster not in (None, IN_CLUSTER)
    client = await KubeClient.from_file(Path(settings.management_cluster or "")) if elsewhere else KubeClient.in_cluster()
    pod = None if elsewhere else os.environ.get("POD_NAME")
    return await stack.enter_async_context(ClusterKeySecret(client, namespace, name, pod=pod))
