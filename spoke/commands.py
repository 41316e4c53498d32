"""What the commands about an agent are made of: they look at what it works with, beside it, and take nothing from it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from machinery.clock import SystemClock
from spoke.app import bootstraps_of, client_of, dialer, lease_of, reach_of
from spoke.candidacy import LEASE, OwnLock, candidate_of
from spoke.cluster import KubeCluster
from spoke.credentials import AtomicDirectory, KubeRemains, KubeSecrets
from spoke.doctor import Doctor, Patient, Step
from spoke.leave import Ground, Leave
from spoke.network import SystemNetwork
from spoke.settings import Settings
from spoke.slot import OWNER_SECRET

Steps = Callable[[], AsyncGenerator[Step, None]]


@asynccontextmanager
async def examine(settings: Settings) -> AsyncIterator[Steps]:
    """`spoke doctor`, with the settings of the agent. Raises InvalidError."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        secrets = KubeSecrets(management, settings.component_namespace)
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
                probes=settings.health_listen,
            )
        ).steps


@asynccontextmanager
async def depart(settings: Settings, *, force: bool, within: timedelta) -> AsyncIterator[Steps]:
    """`spoke leave`, with the settings of the agent. Raises InvalidError."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        spoke = await client_of(settings.spoke_kubeconfig, stack) if settings.spoke_kubeconfig else management
        secrets = KubeSecrets(management, settings.component_namespace)
        lease = settings.leader_elect_resource_name or LEASE
        yield Leave(
            Ground(
                secrets=secrets,
                remains=KubeRemains(management, spoke, settings.component_namespace, owner=OWNER_SECRET, lease=lease),
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
                within=within,
            )
        ).steps
