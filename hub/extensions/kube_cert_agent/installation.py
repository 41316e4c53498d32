"""Installs the cert agent in a hub: an issuer and an authenticator for logins, and controllers that fetch the CA."""

import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from hub.composition.core import HubCore
from hub.extensions.kube_cert_agent.authenticator import KubernetesAuthority
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.kube_cert_agent.issuer import AuthorityProvider, KubernetesIssuer
from hub.extensions.settings import KubeCertAgentSettings
from hub.settings.fields import IN_CLUSTER
from machinery.errors import InvalidError

POD_NAME, POD_NAMESPACE = "POD_NAME", "POD_NAMESPACE"

log = structlog.get_logger(__name__)


async def install(core: HubCore, environment: Mapping[str, str] = os.environ) -> None:
    """Fetch the CA on every replica, if `kube_cert_agent` is set. Raises InvalidError if the settings lack the namespace."""
    settings, context = core.context.settings, core.context
    if not isinstance(settings, KubeCertAgentSettings) or not settings.kube_cert_agent:
        return
    provider, access, groups = AuthorityProvider(), core.access, settings.kubernetes_ca_groups
    core.certificates.signing.add_login_issuer(KubernetesIssuer(provider))
    if groups:
        serving, peers = core.certificates.doors.serving, access.peers
        authority = KubernetesAuthority(groups, serving, peers.identify, peers.former, context.clock)
        provider.listen(lambda: authority.take(provider.certificate))
        core.authenticators.append(authority)
    else:
        log.warning("logins that the Kubernetes CA signs do not open this hub: kubernetes_ca_groups names no group")
    namespace = settings.kube_cert_agent_namespace or environment.get(POD_NAMESPACE)
    if not namespace:
        raise InvalidError(f"kube_cert_agent needs kube_cert_agent_namespace, or {POD_NAMESPACE} in the environment")
    shape = AgentDeploymentShape(
        namespace=namespace,
        name=settings.kube_cert_agent_name,
        image=settings.kube_cert_agent_image or "",
        service_account=settings.kube_cert_agent_service_account,
        labels=dict(label.split("=", 1) for label in settings.kube_cert_agent_labels),
        pull_secrets=settings.kube_cert_agent_pull_secrets,
        priority_class=settings.kube_cert_agent_priority_class or "",
    )
    from hub.extensions.kube_cert_agent.cert_agent import CertAgent  # noqa: PLC0415 - 60 MB that only such a hub needs
    from hub.extensions.kube_cert_agent.controller import IssuerBook  # noqa: PLC0415 - the same
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

    place = settings.management_cluster or IN_CLUSTER
    client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
    await context.stack.enter_async_context(client)
    book = IssuerBook(core.resources.store, f"hub.{settings.api_group_suffix}/v1alpha1")
    # this hub's pod, if it is in that namespace of that cluster: created objects get its owner
    pod = environment.get(POD_NAME) if place == IN_CLUSTER and environment.get(POD_NAMESPACE) == namespace else None
    server = settings.kube_cert_agent_server or ""
    agent = CertAgent(client, shape, provider, book, clock=context.clock, server=server, pod=pod)
    core.on_lead.append(agent.lead)
    context.inspection.add("kube-cert-agent", agent.snapshot)
    for name, run in agent.tasks().items():
        context.add_task(name, run)
