"""Secrets of one namespace over its Kubernetes API, and those that an agent leaves in its clusters."""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from machinery import product
from machinery.client.ownership import Namespace
from machinery.client.reflector import ObjectKey, Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotFoundError
from machinery.identity import ClusterName
from spoke.domain.credential import AGENT_NAME, CLUSTER_NAME
from spoke.ports.cluster import RefusedSecretError, Remains, SecretPlace, Secrets, SecretSnapshot

SECRETS = RestResource("", "v1", "secrets")
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY, AGENT = "app.kubernetes.io/managed-by", f"{product.PART_OF}-agent"
"""Label of every secret that an agent has created. Charts also set PART_OF on theirs."""
_OCM = frozenset({"cluster-name", "tls.crt", "tls.key"})
MISSING = SecretSnapshot(contents={}, version=None)


class KubeSecrets(Secrets):
    """The secrets of `namespace`, which the first write creates. A write keeps the labels, annotations and type of a secret."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._home = Namespace(client, namespace)

    async def read(self, name: str) -> SecretSnapshot:
        """Read a secret; a missing one is a snapshot without version. Raises InvalidError for contents that are not base64."""
        try:
            secret = await self._client.get(self._path(name))
        except NotFoundError:
            return MISSING
        self._home.seen()
        return _snapshot(self._owned(secret))

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        encoded = {key: base64.b64encode(value).decode() for key, value in contents.items()}
        if version is None:
            collection, new = SECRETS.path(namespace=self._namespace), self._new(name, encoded)
            return _snapshot(await self._home.holding(lambda: self._client.create(collection, new)))
        try:
            present = self._owned(await self._client.get(self._path(name)))
            present["metadata"]["resourceVersion"] = version
            return _snapshot(await self._client.update(self._path(name), {**present, "data": encoded}))
        except NotFoundError as error:
            raise ConflictError(f'secret "{name}" was deleted since it was read') from error

    async def delete(self, name: str) -> None:
        try:
            await self._client.delete(self._path(name))
        except NotFoundError:
            return

    async def named(self, prefix: str) -> Sequence[str]:
        query = {"labelSelector": f"{PART_OF}={product.PART_OF}"}
        path = SECRETS.path(namespace=self._namespace)
        found = [str(item["metadata"]["name"]) async for page in self._client.pages(path, query) for item in page.items]
        return [name for name in found if name.startswith(prefix)]

    async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        """Yield the secret now and after every change; a slow reader gets only the newest."""
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
        """The secret as it may be updated. A subclass raises RefusedSecretError for one that the agent may not change."""
        return secret

    def _path(self, name: str) -> str:
        return SECRETS.path(name, namespace=self._namespace)

    def _new(self, name: str, encoded: Mapping[str, str]) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {PART_OF: product.PART_OF, MANAGED_BY: AGENT},
            },
            "type": "Opaque",
            "data": dict(encoded),
        }


class OwnedSecrets(KubeSecrets):
    """Secrets of add-ons that the agent has created, recognised by their label; others are neither read nor changed.

    With `adopts`, an unlabelled secret that has the keys of OCM's agent gets the label and is then owned.
    """

    def __init__(self, client: KubeClient, namespace: str, *, adopts: bool = False) -> None:
        super().__init__(client, namespace)
        self._adopts = adopts

    async def delete(self, name: str) -> None:
        """Raises RefusedSecretError for a secret that is not owned."""
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
    version = str(secret["metadata"]["resourceVersion"])
    try:
        contents = {key: base64.b64decode(value or "", validate=True) for key, value in (secret.get("data") or {}).items()}
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f'secret "{secret["metadata"]["name"]}" holds something that is not base64') from error
    return SecretSnapshot(contents=contents, version=version)


def _snapshot_or_empty(secret: Object) -> SecretSnapshot:
    """An unreadable secret as a snapshot without contents, which readers treat as half-written."""
    try:
        return _snapshot(secret)
    except InvalidError:
        return SecretSnapshot(contents={}, version=str(secret["metadata"]["resourceVersion"]))


LEASES = RestResource("coordination.k8s.io", "v1", "leases")
_OURS = {"labelSelector": f"app.kubernetes.io/part-of={product.PART_OF}"}
_CREATED = {"labelSelector": f"{MANAGED_BY}={AGENT}"}


class KubeRemains(Remains):
    """`management` holds the agent's own secrets, in `namespace`; `spoke` is the managed cluster, often the same one.

    `addon_namespaces`: the namespaces of add-ons' secrets.
    """

    def __init__(
        self,
        management: KubeClient,
        spoke: KubeClient,
        namespace: str,
        *,
        owner: str,
        lease: str,
        addon_namespaces: Sequence[str],
    ) -> None:
        self._management = management
        self._spoke = spoke
        self._namespace = namespace
        self._owner = owner
        self._addon_namespaces = addon_namespaces
        self._lease = LEASES.path(lease, namespace=namespace)

    async def slots(self) -> Sequence[str]:
        found = await self._management.list(SECRETS.path(namespace=self._namespace), _OURS)
        names = (str(each["metadata"]["name"]) for each in found)
        return sorted(name for name in names if name.startswith(f"{self._owner}-"))

    async def addons(self, cluster: ClusterName) -> Sequence[SecretPlace]:
        hosted = await self._addons(self._management, cluster, hosted=True)
        if self._spoke is self._management:
            return hosted
        return [*hosted, *await self._addons(self._spoke, cluster, hosted=False)]

    async def _addons(self, client: KubeClient, cluster: ClusterName, *, hosted: bool) -> list[SecretPlace]:
        found = list(await client.list(SECRETS.path(namespace=self._namespace), _CREATED)) if hosted else []
        for namespace in self._addon_namespaces:
            with suppress(ForbiddenError):  # without add-ons the agent has no rights in other namespaces, and no secrets there
                found += await client.list(SECRETS.path(namespace=namespace), _CREATED)
        return sorted(self._location(each, hosted=hosted) for each in found if self._is_addons(each, cluster))

    def _location(self, secret: Object, *, hosted: bool) -> SecretPlace:
        return SecretPlace(str(secret["metadata"]["namespace"]), str(secret["metadata"]["name"]), hosted)

    def _is_addons(self, secret: Object, cluster: ClusterName) -> bool:
        """Whether it is an add-on's secret of this cluster. Pending requests lie beside the agent's own and name the agent."""
        metadata, held = secret["metadata"], secret.get("data") or {}
        own = metadata["namespace"] == self._namespace
        if _decoded(held, CLUSTER_NAME) != cluster or (AGENT_NAME in held and not own):
            return False
        return not (own and str(metadata["name"]).startswith(self._owner))

    async def remove(self, place: SecretPlace) -> None:
        client = self._management if place.hosted else self._spoke
        await _gone(client, SECRETS.path(place.name, namespace=place.namespace))

    async def forget_lease(self) -> None:
        await _gone(self._management, self._lease)


async def _gone(client: KubeClient, path: str) -> None:
    try:
        await client.delete(path)
    except NotFoundError:
        return


def _decoded(held: Object, key: str) -> str:
    try:
        return base64.b64decode(held.get(key) or "", validate=True).decode()
    except ValueError:
        return ""
