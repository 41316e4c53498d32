"""Secrets that the hub writes in its own Kubernetes cluster or `--management-cluster`: CA keys, and the admin kubeconfig.

The hub needs these permissions: get, create and update these Secrets, and get its pod and the pod's owners. A Secret in the
hub's own cluster gets the same owner as the pod, so that it is deleted with the hub.
"""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hub.ports.identities import KeySecret
from hub.settings import HubSettings
from hub.settings.fields import IN_CLUSTER
from machinery.client.kubeconfig_documents import decoded, encoded
from machinery.client.ownership import owner_if_known
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import AlreadyExistsError, ConflictError, NotFoundError
from machinery.runtime.tasks import retried

SECRETS = RestResource("", "v1", "secrets")
TRIES = 5


class ClusterKeySecret(KeySecret):
    """One Secret in a Kubernetes cluster. `pod`: this hub's pod, whose owner also owns the Secret. None: there is no owner."""

    def __init__(self, client: KubeClient, namespace: str, name: str, *, pod: str | None = None) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._pod = pod

    @property
    def _path(self) -> str:
        return SECRETS.path(self._name, namespace=self._namespace)

    async def read(self) -> Mapping[str, bytes]:
        secret, what = await self._client.find(self._path) or {}, f"the Secret {self._namespace}/{self._name}"
        return {name: decoded(value, what) for name, value in (secret.get("data") or {}).items()}

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Set these keys (None: remove) or create the Secret. Retries after another writer; raises its error after TRIES."""
        await retried(lambda: self._write(changes), (ConflictError, AlreadyExistsError, NotFoundError), TRIES)

    async def _write(self, changes: Mapping[str, bytes | None]) -> None:
        kept = {name: encoded(content) for name, content in changes.items() if content is not None}
        if (current := await self._client.find(self._path)) is None:
            await self._client.create(SECRETS.path(namespace=self._namespace), await self._made(kept))
            return
        data = {name: value for name, value in (current.get("data") or {}).items() if name not in changes}
        if (current.get("data") or {}) != data | kept:
            await self._client.update(self._path, {**current, "data": data | kept})

    async def _made(self, data: Mapping[str, str]) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        owner = await owner_if_known(self._client, self._namespace, self._pod, of="Secret") if self._pod is not None else None
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": dict(data)}


async def open_secret(place: str, settings: HubSettings, stack: AsyncExitStack) -> KeySecret:
    """Open the Secret NAMESPACE/NAME in the cluster `management_cluster`, or else in this pod's cluster.

    In this pod's cluster, the pod's owner also owns the Secret. `stack` closes opened resources. Raises InvalidError.
    """
    namespace, _, name = place.partition("/")
    elsewhere = settings.management_cluster not in (None, IN_CLUSTER)
    client = await KubeClient.from_file(Path(settings.management_cluster or "")) if elsewhere else KubeClient.in_cluster()
    pod = None if elsewhere else os.environ.get("POD_NAME")
    await stack.enter_async_context(client)
    return ClusterKeySecret(client, namespace, name, pod=pod)
