"""The management cluster: its front proxy authenticates its users, and the cluster authorizes them.

The hub reads the front proxy's CA and names from the cluster every few seconds. After a failed read it uses the previous
values; before the first successful read it does not trust the front proxy.

The hub needs these permissions in the cluster: read the ConfigMap `extension-apiserver-authentication`, create TokenReviews and
SubjectAccessReviews, and list, get and update APIServices.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import structlog

from hub.https_door.callers.authentication import ExternalAuthenticator
from machinery.apiserver.authn.aggregation import DelegatedAuthorizer, DelegatedTokens, FrontProxy, Review, Trust
from machinery.apiserver.authz.rbac import HeldRules
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.storage import Actor
from machinery.client.rest import KubeClient, RestResource
from machinery.errors import ConflictError, MusterError
from machinery.observability.logs import LogOnce
from machinery.runtime.clock import Clock
from machinery.runtime.tasks import retried
from machinery.runtime.tls import Serving

CONFIG_MAP = RestResource("", "v1", "configmaps").path("extension-apiserver-authentication", namespace="kube-system")
API_SERVICES = RestResource("apiregistration.k8s.io", "v1", "apiservices")
REVIEWS = {
    "TokenReview": RestResource("authentication.k8s.io", "v1", "tokenreviews"),
    "SubjectAccessReview": RestResource("authorization.k8s.io", "v1", "subjectaccessreviews"),
}
TRIES = 3


LOOK_EVERY = timedelta(seconds=5)
SOURCE = "front-proxy"

log = structlog.get_logger(__name__)


class Aggregation(ExternalAuthenticator):
    """Authentication and authorization by one management cluster.

    `service`: namespace and name of the hub's Service in the cluster; None: the hub writes no caBundle.
    `bundle` returns the CAs (PEM) that verify the serving certificate.
    """

    authenticator: FrontProxy

    def __init__(
        self, client: KubeClient, service: tuple[str, str] | None, serving: Serving, bundle: Callable[[], bytes], clock: Clock
    ) -> None:
        self._client = client
        self._service = service
        self._serving = serving
        self._bundle = bundle
        self._clock = clock
        self._failure = LogOnce(log)
        self.authenticator = FrontProxy(clock)
        self.tokens = DelegatedTokens(self._review, clock)

    def authorizer(self, own: Reviewer) -> Reviewer:
        return DelegatingReviewer(own, self._review, self._clock)

    async def run(self) -> None:
        """Reads the cluster's configuration periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def look(self) -> None:
        """Applies the cluster's current configuration. Writes the hub's CA bundle into the cluster."""
        try:
            trust = Trust.of_config_map(await self._client.get(CONFIG_MAP))
            if trust != self.authenticator.trust:
                self._serving.trust_clients(SOURCE, trust.authorities)
                gone = self.authenticator.set_trust(trust)
                log.info("front proxy trusted", names=sorted(trust.names))
                self.end_requests_under(gone)
            if self._service is not None:
                await keep_bundle(self._client, self._service, self._bundle())
        except MusterError as error:
            self._failure.warning("the management cluster cannot be read: its last known configuration applies", error)
        else:
            self._failure.reset()

    async def _review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        resource = REVIEWS[kind]
        body = {"apiVersion": f"{resource.group}/{resource.version}", "kind": kind, "metadata": {}, "spec": dict(spec)}
        answer = await self._client.create(resource.path(), body)
        status: Mapping[str, Any] = answer.get("status") or {}
        return status


async def keep_bundle(client: KubeClient, service: tuple[str, str], bundle: bytes) -> None:
    """Write a CA bundle (PEM) into the APIServices of this Service that have another bundle. Raises MusterError."""
    encoded = b64encode(bundle).decode("ascii")

    def is_outdated(found: Mapping[str, Any]) -> bool:
        spec = found.get("spec") or {}
        named = spec.get("service") or {}
        return (named.get("namespace"), named.get("name")) == service and spec.get("caBundle") != encoded

    async def write(name: str) -> None:
        current = await client.get(API_SERVICES.path(name))
        if is_outdated(current):
            await client.update(API_SERVICES.path(name), {**current, "spec": {**current["spec"], "caBundle": encoded}})
            log.info("caBundle of an APIService written", apiservice=name)

    for found in filter(is_outdated, await client.list(API_SERVICES.path())):
        await retried(partial(write, found["metadata"]["name"]), (ConflictError,), TRIES)


class DelegatingReviewer(DelegatedAuthorizer):
    """Asks the management cluster about its own users, and `own` about other users. Lists only the hub's own rules."""

    def __init__(self, own: Reviewer, review: Review, clock: Clock) -> None:
        super().__init__(own, review, clock)
        self._reviewer = own

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return await self._reviewer.rules(actor, namespace)
