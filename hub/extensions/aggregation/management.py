"""The management cluster: client, authentication of its users through its front proxy, and authorization by it.

The front proxy's CA and names are read from the cluster every few seconds. After a failed read the previous ones stay; before
the first successful read the front proxy is not trusted.

Permissions of the hub there: read the ConfigMap `extension-apiserver-authentication`, create TokenReviews and
SubjectAccessReviews, list and update APIServices.
"""

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import structlog

from hub.https_door.callers.authentication import ExternalAuthenticator
from hub.settings.fields import IN_CLUSTER
from machinery.apiserver.authn.aggregation import DelegatedAuthorizer, DelegatedTokens, FrontProxy, Review, Trust
from machinery.apiserver.authn.authorities import mark_of_authority
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.authz.rbac import HeldRules
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.storage import Actor
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import ConflictError, MusterError
from machinery.observability.log_once import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.tls import Serving

CONFIG_MAP = RestResource("", "v1", "configmaps").path("extension-apiserver-authentication", namespace="kube-system")
API_SERVICES = RestResource("apiregistration.k8s.io", "v1", "apiservices")
REVIEWS = {
    "TokenReview": RestResource("authentication.k8s.io", "v1", "tokenreviews"),
    "SubjectAccessReview": RestResource("authorization.k8s.io", "v1", "subjectaccessreviews"),
}
TRIES = 3


class ManagementCluster:
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


LOOK_EVERY = timedelta(seconds=5)
SOURCE = "front-proxy"

log = structlog.get_logger(__name__)


class Aggregation(ExternalAuthenticator):
    """Authentication and authorization by one management cluster."""

    def __init__(self, management: ManagementCluster, serving: Serving, clock: Clock) -> None:
        self._management = management
        self._serving = serving
        self._presence: Presence | None = None
        self._failure = LogOnce(log)
        self.authenticator = FrontProxy(clock)
        self.tokens = DelegatedTokens(management.review, clock)
        self._clock = clock

    def authorizer(self, own: Reviewer) -> Reviewer:
        return DelegatingReviewer(own, self._management.review, self._clock)

    def bind(self, presence: Presence) -> None:
        self._presence = presence

    async def run(self) -> None:
        """Reads the cluster's configuration periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def look(self) -> None:
        """Applies the cluster's current configuration, and writes the hub's CA bundle into the cluster."""
        try:
            self._believe(Trust.of_config_map(await self._management.config_map()))
            await self._management.keep_bundle(self._serving.material.trust)
        except MusterError as error:
            self._failure.warning("the management cluster cannot be followed: what was known stays", error)
        else:
            self._failure.reset()

    def _believe(self, trust: Trust) -> None:
        if trust == self.authenticator.trust:
            return
        self._serving.trust_clients(SOURCE, trust.authorities)
        gone = self.authenticator.set_trust(trust)
        presence = self._presence
        log.info("front proxy believed", names=sorted(trust.names))
        if presence is None:
            return
        for fingerprint in gone:
            presence.end_under(mark_of_authority(fingerprint))


class DelegatingReviewer(DelegatedAuthorizer):
    """Asks the management cluster about its own users, and `own` about all others; lists only the hub's own rules."""

    def __init__(self, own: Reviewer, review: Review, clock: Clock) -> None:
        super().__init__(own, review, clock)
        self._reviewer = own

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return await self._reviewer.rules(actor, namespace)
