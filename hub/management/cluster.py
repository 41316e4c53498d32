"""Client of the management cluster: front proxy configuration, TokenReviews, SubjectAccessReviews and caBundles.

Permissions of the hub there: read the ConfigMap `extension-apiserver-authentication`, create TokenReviews and
SubjectAccessReviews, list and update APIServices.
"""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import structlog

from hub.ports import Management
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import ConflictError

IN_CLUSTER = "in-cluster"
CONFIG_MAP = RestResource("", "v1", "configmaps").path("extension-apiserver-authentication", namespace="kube-system")
API_SERVICES = RestResource("apiregistration.k8s.io", "v1", "apiservices")
REVIEWS = {
    "TokenReview": RestResource("authentication.k8s.io", "v1", "tokenreviews"),
    "SubjectAccessReview": RestResource("authorization.k8s.io", "v1", "subjectaccessreviews"),
}
TRIES = 3

log = structlog.get_logger(__name__)


class ManagementCluster(Management):
    """Async context manager. `service`: namespace and name of the hub's Service in the cluster; None: no caBundle is kept."""

    def __init__(self, client: KubeClient, service: tuple[str, str] | None) -> None:
        self._client = client
        self._service = service

    @classmethod
    async def connected(cls, place: str, service: tuple[str, str] | None) -> Self:
        """Connect by a kubeconfig's path, or as the pod's service account. Raises InvalidError."""
        client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
        return cls(client, service)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def config_map(self) -> Mapping[str, Any]:
        return await self._client.get(CONFIG_MAP)

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        resource = REVIEWS[kind]
        body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, "metadata": {}, "spec": dict(spec)}
        answer = await self._client.create(resource.path(), body)
        status: Mapping[str, Any] = answer.get("status") or {}
        return status

    async def keep_bundle(self, bundle: bytes) -> None:
        encoded = b64encode(bundle).decode("ascii")
        for found in await self._client.list(API_SERVICES.path()) if self._service is not None else ():
            if self._is_ours(found) and found["spec"].get("caBundle") != encoded:
                await self._write(found["metadata"]["name"], encoded)

    def _is_ours(self, api_service: Mapping[str, Any]) -> bool:
        service = (api_service.get("spec") or {}).get("service") or {}
        return (service.get("namespace"), service.get("name")) == self._service

    async def _write(self, name: str, encoded: str) -> None:
        path = API_SERVICES.path(name)
        for attempt in range(TRIES):
            current = await self._client.get(path)
            if not self._is_ours(current):
                return
            try:
                await self._client.update(path, {**current, "spec": {**current["spec"], "caBundle": encoded}})
            except ConflictError:
                if attempt == TRIES - 1:
                    raise
            else:
                log.info("caBundle of an APIService written", apiservice=name)
                return
