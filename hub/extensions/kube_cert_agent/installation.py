"""Installs the cert agent in a hub: an issuer and an authenticator for logins, and controllers that fetch the CA."""

import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from hub.composition.core import HubCore
from hub.election.fence import FencedStore
from hub.extensions.kube_cert_agent.authority import KubernetesAuthority, KubernetesIssuer
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.settings import KubeCertAgentSettings
from hub.settings.fields import IN_CLUSTER
from machinery.errors import InvalidError
from machinery.runtime.controller import Controller

POD_NAME, POD_NAMESPACE = "POD_NAME", "POD_NAMESPACE"

log = structlog.get_logger(__name__)


async def install(core: HubCore, environment: Mapping[str, str] = os.environ) -> None:
    """If `kube_cert_agent` is set, fetch the CA on every replica. Raises InvalidError if the settings lack the namespace."""
    settings, context = core.context.settings, core.context
    if not isinstance(settings, KubeCertAgentSettings) or not settings.kube_cert_agent:
        return
    issuer, access, groups = KubernetesIssuer(), core.access, settings.kubernetes_ca_groups
    core.resources.issuer.add_login_issuer(issuer)
    if groups:
        serving, peers = core.certificates.doors.serving, access.peers
        authority = KubernetesAuthority(groups, serving, peers.identify, peers.former, context.clock)
        issuer.listen(authority.take)
        core.authenticators.append(authority)
    else:
        log.warning("certificates of the Kubernetes CA are not accepted here: kubernetes_ca_groups is empty")
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
    from hub.extensions.kube_cert_agent import cluster_client, controller  # noqa: PLC0415 - 60 MB that only such a hub needs
    from machinery.client.rest import KubeClient  # noqa: PLC0415 - the same

    place = settings.management_cluster or IN_CLUSTER
    client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
    await context.stack.enter_async_context(client)
    # this hub's pod, if it is in the cert agent's namespace and cluster: created objects get the pod's owner
    pod = environment.get(POD_NAME) if place == IN_CLUSTER and environment.get(POD_NAMESPACE) == namespace else None
    cluster = cluster_client.ClusterClient(client, shape, pod)
    status = controller.StatusWriter(core.resources.store, f"hub.{settings.api_group_suffix}/v1alpha1")
    server = settings.kube_cert_agent_server or ""
    fetching = controller.KubeCertAgent(cluster, shape, issuer, status, clock=context.clock, server=server)
    agent = Controller("kube-cert-agent", fetching)
    cleaner = Controller("kube-cert-agent-cleaner", controller.OutdatedPods(cluster, shape, status.leads))

    def look() -> None:
        agent.enqueue(controller.KEY)

    mirrors = cluster_client.mirrors(client, shape, look, cleaner.enqueue)

    def lead(fenced: FencedStore) -> None:
        """Allow the controllers to write, because this replica now leads."""
        status.lead(fenced)
        look()
        for key in mirrors[cluster_client.OUTDATED].items:
            cleaner.enqueue(key.name)

    core.on_lead.append(lead)
    context.inspection.add("kube-cert-agent", fetching.snapshot)
    look()  # the first pass records the status even if nothing ever changes
    tasks = {each.name: each.run for each in (agent, cleaner)} | {
        f"mirror of {name}": each.run for name, each in mirrors.items()
    }
    for name, run in tasks.items():
        context.add_task(name, run)
