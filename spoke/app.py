"""The composition root: wires the parts of an agent."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random

from machinery.client.leaselock import LeaseLock
from machinery.client.ownership import Namespace
from machinery.client.rest import KubeClient
from machinery.runtime.clock import Clock, SystemClock
from machinery.runtime.scheduler import Scheduler, SystemScheduler
from machinery.runtime.tasks import GuardedTasks
from spoke.agent.leader_election import ElectedAgent, OwnLock, TermFence, candidate_of
from spoke.agent.loop import SpokeAgent
from spoke.agent.unregistration import ResidentAgent, Working
from spoke.bootstraps.listing import BootstrapFile, Bootstraps, BootstrapSecret
from spoke.cluster import TOKEN, FollowedKubeconfig, KubeCluster, ServiceAccountAttest
from spoke.credentials.directory import AtomicDirectory
from spoke.credentials.kubernetes_secrets import KubeSecrets, OwnedSecrets
from spoke.domain.addon import AddOn
from spoke.domain.hubs import HubSelectionPolicy, Unaccepted
from spoke.domain.report import ClusterClaimRules, ExternalEndpoint
from spoke.domain.route import Driver, Reach
from spoke.domain.schedule import Detection
from spoke.observability.event_recorder import KubeEvents
from spoke.observability.progress import AgentProgress
from spoke.options import AddOnOptions, AgentOptions, AgentPorts, Hubs
from spoke.ports.cluster import Attest, RefusedSecretError, Secrets
from spoke.ports.hub import ClientIdentity, Dial, HubAddress, HubClient
from spoke.settings import SpokeSettings
from spoke.settings.fields import gates_of
from spoke.transports.grpc.channel import HubBackoff


@asynccontextmanager
async def build(
    settings: SpokeSettings, *, clock: Clock | None = None, scheduler: Scheduler | None = None, random: Random | None = None
) -> AsyncIterator[ResidentAgent]:
    """Wire an agent without running it; call `await agent.run()` inside the block. One process may build several agents.

    Raises InvalidError for an unusable kubeconfig.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        # The cluster that holds the agent's own secrets.
        management = await client_of(settings.kubeconfig, stack)
        secrets = KubeSecrets(management, settings.component_namespace)
        # The managed cluster; in hosted mode another cluster.
        spoke = await client_of(settings.spoke_kubeconfig, stack) if settings.spoke_kubeconfig else management
        # The kubeconfig files may be replaced while the agent runs.
        following = await stack.enter_async_context(GuardedTasks("kubeconfigs"))
        for client, path in {management: settings.kubeconfig, spoke: settings.spoke_kubeconfig or settings.kubeconfig}.items():
            if path is not None:
                following.start(str(path), FollowedKubeconfig(client, path).run())
        # Wakes controllers on schedule.
        wakes = scheduler if scheduler is not None else await stack.enter_async_context(SystemScheduler())

        def ports_of(fence: TermFence | None) -> AgentPorts:
            """The ports of one term's agent. `fence` guards all writes and dials; None: there is no leader election."""
            fenced = fence.secrets(secrets) if fence else secrets
            dial = dialer(clock, settings.cluster_annotations, detection_of(settings))
            return AgentPorts(
                bootstrap=bootstraps_of(settings, fenced),
                dial=fence.dial(dial) if fence else dial,
                managed_cluster=KubeCluster(spoke, gates=gates_of(settings.feature_gates)),
                management=KubeCluster(management),
                secrets=fenced,
                addon_secrets=addon_secrets_of(settings, spoke, management, fence),
                directory=AtomicDirectory(settings.hub_kubeconfig_dir) if settings.hub_kubeconfig_dir else None,
                clock=clock,
                scheduler=wakes,
                random=random or Random(),  # noqa: S311 - spreads load, guards nothing
                attest=attest_of(settings, spoke),
                announcer=KubeEvents(management, settings.component_namespace, clock),
            )

        progress = AgentProgress(clock)

        def agent(fence: TermFence | None) -> SpokeAgent:
            return SpokeAgent(options_of(settings), ports_of(fence), progress)

        def process() -> Working:
            # If this agent has several processes, only the leader works.
            if settings.leader_elect:
                return _elected(settings, agent, management, clock, progress)
            return agent(None)

        # The agent of a cluster that has left its hubs stays inactive.
        yield ResidentAgent(process, secrets, lambda: bootstraps_of(settings, secrets), progress, rejoin=settings.rejoin)


def _elected(
    settings: SpokeSettings,
    agent: Callable[[TermFence], SpokeAgent],
    management: KubeClient,
    clock: Clock,
    progress: AgentProgress,
) -> ElectedAgent:
    lease = lease_of(settings, management, clock, status=lambda: progress.ready().text)
    return ElectedAgent(
        agent,
        OwnLock(lease, home=Namespace(management, settings.component_namespace)),
        candidate_of(os.environ),
        timings=settings.election_timings,
        clock=clock,
        progress=progress,
        watching=lease.released,
    )


def lease_of(settings: SpokeSettings, management: KubeClient, clock: Clock, status: Callable[[], str] = str) -> LeaseLock:
    """Return the lock on the agent's Lease. `status` returns the state that the holder reports in the Lease."""
    return LeaseLock(management, settings.component_namespace, settings.lease_name, clock=clock, status=status)


def options_of(settings: SpokeSettings) -> AgentOptions:
    ca = settings.spoke_external_ca.read_bytes() if settings.spoke_external_ca else b""
    expiration = settings.client_cert_expiration_seconds
    return AgentOptions(
        cluster_name=settings.cluster_name,
        agent_id=settings.agent_id,
        duration=timedelta(seconds=expiration) if expiration else None,
        endpoints=tuple(ExternalEndpoint(url, ca) for url in settings.spoke_external_server_urls),
        annotations=settings.cluster_annotations,
        labels=settings.cluster_labels,
        addons=AddOnOptions(
            enabled=gates_of(settings.feature_gates).addon_management,
            driver=settings.addon_kubeclient_registration_auth,
            token_lifetime=timedelta(seconds=settings.addon_token_expiration_seconds),
            lease_period=settings.addon_lease_check_period,
            lease_grace=settings.addon_lease_grace,
        ),
        claims=ClusterClaimRules(settings.max_custom_cluster_claims, settings.reserved_cluster_claim_suffixes),
        resync=settings.cluster_healthcheck_period,
        reach=reach_of(settings),
        hubs=Hubs(
            policy=HubSelectionPolicy(
                unaccepted=Unaccepted(settings.unaccepted_hub),
                fail_back_after=settings.fail_back_after or None,
                give_up_after=settings.hub_give_up_after,
            ),
            timeout=settings.hub_timeout,
        ),
        detection=detection_of(settings),
        standby_registration=settings.standby_registration,
    )


def attest_of(settings: SpokeSettings, spoke: KubeClient) -> Attest:
    """Return the attestation by the configured ServiceAccount. Without one, a pod of the managed cluster uses its own."""
    in_it = settings.kubeconfig is None and settings.spoke_kubeconfig is None
    return ServiceAccountAttest(spoke, settings.attestation_service_account, TOKEN if in_it else None)


def detection_of(settings: SpokeSettings) -> Detection:
    return Detection(settings.hub_keepalive, settings.hub_keepalive_timeout, settings.hub_silence)


def dialer(clock: Clock, annotations: Mapping[str, str] | None = None, detection: Detection | None = None) -> Dial:
    """Return a function that creates clients over gRPC or the Kubernetes API, depending on the address.

    The returned function imports a transport when it first uses the transport.
    """
    backoff = HubBackoff()

    def dial(address: HubAddress, identity: ClientIdentity) -> HubClient:
        if address.driver is Driver.CSR:
            from spoke.transports.kubernetes.client import ApiHubClient  # noqa: PLC0415

            return ApiHubClient(address, identity, clock, annotations)
        from spoke.transports.grpc.client import GrpcHubClient, RecoveringHubClient  # noqa: PLC0415 - most of an agent's memory

        client = RecoveringHubClient if identity.recovers else GrpcHubClient
        return client(address, identity, clock, detection, backoff)

    return dial


def bootstraps_of(settings: SpokeSettings, secrets: Secrets) -> Bootstraps:
    """Return the sources of the hub list, the preferred hub first; files precede Secrets."""
    reach = reach_of(settings)
    files = [BootstrapFile(path, reach) for path in settings.bootstrap_kubeconfig]
    return Bootstraps([*files, *(BootstrapSecret(secrets, name, reach) for name in settings.bootstrap_kubeconfig_secret)])


def reach_of(settings: SpokeSettings) -> Reach:
    return Reach(settings.registration_driver, settings.proxy_url, os.environ)


def addon_secrets_of(
    settings: SpokeSettings, spoke: KubeClient, management: KubeClient, fence: TermFence | None = None
) -> Callable[[AddOn], Secrets]:
    """Return a function that gives access to an add-on's secrets.

    The function raises RefusedSecretError for a namespace that --addon-namespaces does not list.
    """

    def secrets_of(addon: AddOn) -> Secrets:
        if addon.namespace not in settings.addon_namespaces:
            listed = ", ".join(settings.addon_namespaces)
            raise RefusedSecretError(
                f'add-on {addon.name} is for namespace "{addon.namespace}": '
                f"the agent writes secrets of add-ons only in {listed or 'no namespace'} (--addon-namespaces)"
            )
        client = management if addon.hosted else spoke
        secrets = OwnedSecrets(client, addon.namespace, adopts=settings.adopt_addon_secrets)
        return fence.secrets(secrets) if fence else secrets

    return secrets_of


async def client_of(kubeconfig: Path | None, stack: AsyncExitStack) -> KubeClient:
    """Return a client for the kubeconfig (None: for this pod's cluster). `stack` closes the client. Raises InvalidError."""
    client = KubeClient.in_cluster() if kubeconfig is None else await KubeClient.from_file(kubeconfig)
    return await stack.enter_async_context(client)
