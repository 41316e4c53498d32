"""Secrets of one namespace over the Kubernetes API, and the secrets that an agent leaves in its clusters."""

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from machinery import product
from machinery.client.kubeconfig_documents import decoded
from machinery.client.ownership import Namespace
from machinery.client.reflector import ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from machinery.identity import ClusterName
from spoke.credentials.slot import OWNER_SECRET
from spoke.domain.credential import AGENT_NAME, CLUSTER_NAME
from spoke.ports.cluster import RefusedSecretError, Remains, SecretPlace, Secrets, SecretSnapshot

SECRETS = RestResource("", "v1", "secrets")
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY, AGENT = "app.kubernetes.io/managed-by", f"{product.PART_OF}-agent"
"""Key and value of the label of each secret that an agent has created. Secrets of a Helm chart have another value."""
_OCM = frozenset({"cluster-name", "tls.crt", "tls.key"})
MISSING = SecretSnapshot(contents={}, version=None)


class KubeSecrets(Secrets):
    """The secrets of `namespace`. The first write creates the namespace. A write keeps labels, annotations and type."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._home = Namespace(client, namespace)

    async def read(self, name: str) -> SecretSnapshot:
        """Read a secret. If it does not exist, the snapshot has no version. Raises InvalidError if its data is not base64."""
        if (secret := await self._client.find(self._path(name))) is None:
            return MISSING
        self._home.seen()
        return _snapshot(self._owned(secret))

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        encoded = {key: base64.b64encode(value).decode() for key, value in contents.items()}
        if version is None:
            labels = {PART_OF: product.PART_OF, MANAGED_BY: AGENT}
            metadata = {"name": name, "namespace": self._namespace, "labels": labels}
            new = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded}
            collection = SECRETS.path(namespace=self._namespace)
            return _snapshot(await self._home.holding(lambda: self._client.create(collection, new)))
        try:
            present = self._owned(await self._client.get(self._path(name)))
            present["metadata"]["resourceVersion"] = version
            return _snapshot(await self._client.update(self._path(name), {**present, "data": encoded}))
        except NotFoundError as error:
            raise ConflictError(f'secret "{name}" was deleted since it was read') from error

    async def delete(self, name: str) -> None:
        with suppress(NotFoundError):
            await self._client.delete(self._path(name))

    async def named(self, prefix: str) -> Sequence[str]:
        query = {"labelSelector": f"{PART_OF}={product.PART_OF}"}
        path = SECRETS.path(namespace=self._namespace)
        found = [str(item["metadata"]["name"]) async for page in self._client.pages(path, query) for item in page.items]
        return [name for name in found if name.startswith(prefix)]

    async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        """Yield the secret now and after every change. A slow reader gets only the newest version."""
        latest = MISSING
        news = asyncio.Event()

        def take(_key: ObjectKey, value: SecretSnapshot | None) -> None:
            nonlocal latest
            latest = value or MISSING
            news.set()

        reflector = Reflector(
            self._client,
            SECRETS.path(namespace=self._namespace),
            _snapshot_or_empty,
            query={"fieldSelector": f"metadata.name={name}"},
            on_change=take,
        )
        async with mirrored(reflector) as wait:
            await wait(reflector.synced)
            while True:
                news.clear()
                yield latest
                await wait(news)

    def _owned(self, secret: Object) -> Object:
        """Return the secret to update. A subclass raises RefusedSecretError if the agent may not change this secret."""
        return secret

    def _path(self, name: str) -> str:
        return SECRETS.path(name, namespace=self._namespace)


class OwnedSecrets(KubeSecrets):
    """Secrets with the agent's label, which the agent has created for add-ons. Other secrets are neither read nor changed.

    With `adopts`, a secret with OCM's data keys `cluster-name`, `tls.crt`, `tls.key` may be read, and a write adds the label.
    """

    def __init__(self, client: KubeClient, namespace: str, *, adopts: bool = False) -> None:
        super().__init__(client, namespace)
        self._adopts = adopts

    async def delete(self, name: str) -> None:
        """Delete a secret. Raises RefusedSecretError for a secret that this class must not read."""
        await self.read(name)
        await super().delete(name)

    def _owned(self, secret: Object) -> Object:
        labels, name = secret["metadata"].get("labels") or {}, secret["metadata"]["name"]
        if labels.get(MANAGED_BY) == AGENT:
            return secret
        if not self._adopts or not _OCM.issubset(secret.get("data") or {}):
            raise RefusedSecretError(
                f'secret "{name}" in namespace "{self._namespace}" was not created by this agent '
                f"(no label {MANAGED_BY}={AGENT}): delete or rename it; one that OCM's agent has created "
                "is adopted with --adopt-addon-secrets"
            )
        return {**secret, "metadata": {**secret["metadata"], "labels": {**labels, MANAGED_BY: AGENT}}}


def _snapshot(secret: Object) -> SecretSnapshot:
    what = f'secret "{secret["metadata"]["name"]}" holds something that'
    contents = {key: decoded(value or "", what) for key, value in (secret.get("data") or {}).items()}
    return SecretSnapshot(contents=contents, version=str(secret["metadata"]["resourceVersion"]))


def _snapshot_or_empty(secret: Object) -> SecretSnapshot:
    """Return a snapshot of the secret. An unreadable secret has no contents here, and readers treat it as incomplete."""
    try:
        return _snapshot(secret)
    except InvalidError:
        return SecretSnapshot(contents={}, version=str(secret["metadata"]["resourceVersion"]))


LEASES = RestResource("coordination.k8s.io", "v1", "leases")
_CREATED = {"labelSelector": f"{MANAGED_BY}={AGENT}"}


class KubeRemains(Remains):
    """Finds and deletes the secrets and the Lease that an agent leaves behind. `addon_namespaces`: where add-ons' secrets are.

    `management`: the cluster with the agent's secrets (in `namespace`). `spoke`: the managed cluster.
    """

    def __init__(
        self, management: KubeClient, spoke: KubeClient, namespace: str, *, lease: str, addon_namespaces: Sequence[str]
    ) -> None:
        self._management = management
        self._spoke = spoke
        self._namespace = namespace
        self._addon_namespaces = addon_namespaces
        self._lease = LEASES.path(lease, namespace=namespace)

    async def slots(self) -> Sequence[str]:
        return sorted(await KubeSecrets(self._management, self._namespace).named(f"{OWNER_SECRET}-"))

    async def addons(self, cluster: ClusterName) -> Sequence[SecretPlace]:
        places: list[SecretPlace] = []
        for client in dict.fromkeys((self._management, self._spoke)):
            hosted = client is self._management
            found = list(await client.list(SECRETS.path(namespace=self._namespace), _CREATED)) if hosted else []
            for namespace in self._addon_namespaces:
                with suppress(ForbiddenError):  # without add-ons the agent has no rights in other namespaces
                    found += await client.list(SECRETS.path(namespace=namespace), _CREATED)
            named = [each["metadata"] for each in found if self._is_addons(each, cluster)]
            places += sorted(SecretPlace(str(each["namespace"]), str(each["name"]), hosted) for each in named)
        return places

    def _is_addons(self, secret: Object, cluster: ClusterName) -> bool:
        """Whether `secret` is an add-on's secret of this cluster, or, in the agent's namespace, an add-on's pending request."""
        metadata, data = secret["metadata"], secret.get("data") or {}
        own = metadata["namespace"] == self._namespace
        if data.get(CLUSTER_NAME) != base64.b64encode(cluster.encode()).decode() or (AGENT_NAME in data and not own):
            return False
        return not (own and str(metadata["name"]).startswith(OWNER_SECRET))

    async def remove(self, place: SecretPlace) -> None:
        client = self._management if place.hosted else self._spoke
        await KubeSecrets(client, place.namespace).delete(place.name)

    async def forget_lease(self) -> None:
        with suppress(NotFoundError):
            await self._management.delete(self._lease)
