"""Logins signed by the CA of the hub's own Kubernetes cluster: off, or the cert agent with its issuer and authenticator."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from hub.https_door.callers.authentication import Identify
from hub.https_door.callers.authenticator_chain import ExternalAuthenticator
from hub.https_door.callers.kubernetes_ca import Former, KubernetesAuthority
from hub.issuer import AuthorityProvider, KubernetesIssuer
from hub.kubecert.deployment import AgentDeploymentShape
from hub.ports import LoginIssuer, Store
from hub.settings import HubSettings
from machinery.errors import InvalidError
from machinery.runtime.clock import Clock
from machinery.runtime.tasks import GuardedTasks, TaskEndedError
from machinery.runtime.tls import Serving

POD_NAME, POD_NAMESPACE = "POD_NAME", "POD_NAMESPACE"
IN_CLUSTER = "in-cluster"

log = structlog.get_logger(__name__)


class HostClusterSection:
    """If off, it has no issuers and no authenticators and starts nothing."""

    def __init__(self, settings: HubSettings, clock: Clock, environment: Mapping[str, str] = os.environ) -> None:
        self._settings = settings
        self._clock = clock
        self._environment = environment
        self._is_on = settings.kube_cert_agent
        self._lead: Callable[[Store], None] = lambda _store: None
        self._told: Callable[[], Mapping[str, object]] = dict
        self.provider = AuthorityProvider()

    @property
    def issuers(self) -> Sequence[LoginIssuer]:
        return (KubernetesIssuer(self.provider),) if self._is_on else ()

    def snapshot(self) -> Mapping[str, object]:
        """State for the debug report."""
        return {"on": self._is_on, **self._told()}

    def external_authenticators(self, serving: Serving, identify: Identify, former: Former) -> Sequence[ExternalAuthenticator]:
        """Authenticators for certificates of that CA at the HTTPS door; none unless groups are configured."""
        groups = self._settings.kubernetes_ca_groups
        if not self._is_on:
            return ()
        if not groups:
            log.warning("logins that the Kubernetes CA signs do not open this hub: kubernetes_ca_groups names no group")
            return ()
        way = KubernetesAuthority(groups, serving, identify, former, self._clock)
        self.provider.listen(lambda: way.take(self.provider.certificate))
        return (way,)

    def lead(self, fenced: Store) -> None:
        """Use this store for writes, because this replica leads now."""
        self._lead(fenced)

    async def start(
        self,
        store: Store,
        leads: Callable[[], bool],
        stack: AsyncExitStack,
        on_end: Callable[[TaskEndedError], object],
    ) -> None:
        """Fetch the CA continuously, on every replica. Raises InvalidError if the settings lack the namespace."""
        if not self._is_on:
            return
        from hub.kubecert.controllers import CertAgent  # noqa: PLC0415 - the same
        from hub.kubecert.status_writer import IssuerBook  # noqa: PLC0415 - 60 MB that only such a hub needs
        from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

        settings, shape = self._settings, self._shape()
        place = settings.management_cluster or IN_CLUSTER
        client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
        await stack.enter_async_context(client)
        book = IssuerBook(store, f"hub.{settings.api_group_suffix}/v1alpha1", leads)
        server, pod = settings.kube_cert_agent_server or "", self._pod(shape.namespace)
        agent = CertAgent(client, shape, self.provider, book, clock=self._clock, server=server, pod=pod)
        self._lead, self._told = agent.lead, agent.snapshot
        agent.start(await stack.enter_async_context(GuardedTasks("kube-cert-agent", on_end=on_end)))

    def _shape(self) -> AgentDeploymentShape:
        settings = self._settings
        return AgentDeploymentShape(
            namespace=self._namespace(),
            name=settings.kube_cert_agent_name,
            image=settings.kube_cert_agent_image or "",
            service_account=settings.kube_cert_agent_service_account,
            labels=dict(label.split("=", 1) for label in settings.kube_cert_agent_labels),
            pull_secrets=settings.kube_cert_agent_pull_secrets,
            priority_class=settings.kube_cert_agent_priority_class or "",
        )

    def _pod(self, namespace: str) -> str | None:
        """This hub's pod if it is in that namespace of that cluster, so that created objects get its owner."""
        is_ours = self._environment.get(POD_NAMESPACE) == namespace
        is_here = (self._settings.management_cluster or IN_CLUSTER) == IN_CLUSTER
        return self._environment.get(POD_NAME) if is_ours and is_here else None

    def _namespace(self) -> str:
        """The cert agent's namespace. Raises InvalidError if it is unknown."""
        namespace = self._settings.kube_cert_agent_namespace or self._environment.get(POD_NAMESPACE)
        if not namespace:
            raise InvalidError(f"kube_cert_agent needs kube_cert_agent_namespace, or {POD_NAMESPACE} in the environment")
        return namespace
