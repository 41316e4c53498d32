"""Wiring of the commands about an agent (doctor, status, leave, rejoin), which may run beside it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from machinery.client.rest import KubeClient
from machinery.runtime.clock import SystemClock
from spoke.agent.candidate import OwnLock, candidate_of
from spoke.app import bootstraps_of, client_of, dialer, lease_of, reach_of
from spoke.cli.doctor import Doctor, DoctorStep, Patient
from spoke.cli.leave import Ground, Leave
from spoke.cli.network import SystemNetwork, probes_of
from spoke.cli.permissions import Permission, missing_permissions, needed_permissions
from spoke.cli.status import StatusSource
from spoke.cluster.kubernetes_cluster import KubeCluster
from spoke.credentials.directory import AtomicDirectory
from spoke.credentials.kubernetes_secrets import KubeRemains, KubeSecrets
from spoke.credentials.slot import OWNER_SECRET
from spoke.settings import SpokeSettings

Steps = Callable[[], AsyncGenerator[DoctorStep, None]]


@asynccontextmanager
async def examine(settings: SpokeSettings) -> AsyncIterator[Steps]:
    """`spoke doctor` with the settings of the agent. Raises InvalidError."""
    clock = SystemClock()
    own, managed = needed_permissions(settings)
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        secrets = KubeSecrets(management, settings.component_namespace)

        async def missing() -> Sequence[Permission]:
            """Check the managed cluster, too, if it is another one."""
            async with AsyncExitStack() as aside:
                spoke = await client_of(settings.spoke_kubeconfig, aside) if settings.spoke_kubeconfig else management
                return [*await missing_permissions(management, own), *await missing_permissions(spoke, managed)]

        yield Doctor(
            Patient(
                bootstrap=bootstraps_of(settings, secrets),
                management=KubeCluster(management),
                secrets=secrets,
                dial=dialer(clock),
                clock=clock,
                network=SystemNetwork(),
                names=(settings.cluster_name, settings.agent_id),
                reach=reach_of(settings),
                probes=probes_of(settings),
                lock=OwnLock(lease_of(settings, management, clock)) if settings.leader_elect else None,
                namespace=settings.component_namespace,
                missing=missing,
            )
        ).steps


@asynccontextmanager
async def tell(settings: SpokeSettings) -> AsyncIterator[StatusSource]:
    """The sources of `spoke status`. Raises InvalidError."""
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        secrets = KubeSecrets(management, settings.component_namespace)
        yield StatusSource(
            secrets=secrets,
            remains=remains_of(settings, management, management),
            bootstraps=bootstraps_of(settings, secrets),
            network=SystemNetwork(),
            clock=SystemClock(),
            probes=probes_of(settings),
            reach=reach_of(settings),
        )


def remains_of(settings: SpokeSettings, management: KubeClient, spoke: KubeClient) -> KubeRemains:
    lease = settings.lease_name
    return KubeRemains(
        management,
        spoke,
        settings.component_namespace,
        owner=OWNER_SECRET,
        lease=lease,
        addon_namespaces=settings.addon_namespaces,
    )


@asynccontextmanager
async def depart(settings: SpokeSettings, *, force: bool, rejoin: bool, within: timedelta) -> AsyncIterator[Steps]:
    """`spoke leave` and `spoke rejoin` with the settings of the agent. Raises InvalidError."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        spoke = await client_of(settings.spoke_kubeconfig, stack) if settings.spoke_kubeconfig else management
        secrets = KubeSecrets(management, settings.component_namespace)
        yield Leave(
            Ground(
                secrets=secrets,
                remains=remains_of(settings, management, spoke),
                cluster=KubeCluster(spoke),
                bootstraps=bootstraps_of(settings, secrets),
                dial=dialer(clock),
                clock=clock,
                lock=OwnLock(lease_of(settings, management, clock)) if settings.leader_elect else None,
                candidate=candidate_of({}),
                directory=AtomicDirectory(settings.hub_kubeconfig_dir) if settings.hub_kubeconfig_dir else None,
                reach=reach_of(settings),
                cluster_name=settings.cluster_name,
                force=force,
                rejoin=rejoin,
                within=within,
            )
        ).steps
