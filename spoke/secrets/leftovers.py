"""Finds and deletes the objects that an agent has created in its clusters, by its label and the cluster name in them."""

import base64
from collections.abc import Sequence
from contextlib import suppress

from machinery import product
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ForbiddenError, NotFoundError
from machinery.identity import ClusterName
from spoke.domain.credential import AGENT_NAME, CLUSTER_NAME
from spoke.ports import Remains, SecretPlace
from spoke.secrets.kubernetes_secrets import AGENT, MANAGED_BY, SECRETS

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
        return sorted(self._place(each, hosted=hosted) for each in found if self._is_addons(each, cluster))

    def _place(self, secret: Object, *, hosted: bool) -> SecretPlace:
        return SecretPlace(str(secret["metadata"]["namespace"]), str(secret["metadata"]["name"]), hosted)

    def _is_addons(self, secret: Object, cluster: ClusterName) -> bool:
        """Whether it is an add-on's secret of this cluster. Pending requests lie beside the agent's own and name the agent."""
        metadata, held = secret["metadata"], secret.get("data") or {}
        own = metadata["namespace"] == self._namespace
        if _text(held, CLUSTER_NAME) != cluster or (AGENT_NAME in held and not own):
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


def _text(held: Object, key: str) -> str:
    try:
        return base64.b64decode(held.get(key) or "", validate=True).decode()
    except ValueError:
        return ""
