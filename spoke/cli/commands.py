"""Wiring of the commands about an agent (doctor, status, leave, rejoin), and the permissions that an agent needs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from machinery.client.rest import KubeClient, RestResource
from machinery.runtime.clock import SystemClock
from spoke.agent.leader_election import OwnLock, candidate_of
from spoke.app import bootstraps_of, client_of, dialer, lease_of, reach_of
from spoke.cli.doctor import Doctor
from spoke.cli.findings import DoctorStep
from spoke.cli.leave import Leave
from spoke.cli.network import SystemNetwork, probes_of
from spoke.cli.status import StatusSource
from spoke.cluster import CLAIMS, PROPERTIES, KubeCluster
from spoke.credentials.directory import AtomicDirectory
from spoke.credentials.kubernetes_secrets import KubeRemains, KubeSecrets
from spoke.settings import SpokeSettings
from spoke.settings.fields import gates_of

Steps = Callable[[], AsyncGenerator[DoctorStep, None]]


@asynccontextmanager
async def examine(settings: SpokeSettings) -> AsyncIterator[Steps]:
    """Yield a function that runs `spoke doctor` and yields its steps. Raises InvalidError for an unusable kubeconfig."""
    clock = SystemClock()
    own, managed = needed_permissions(settings)
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        secrets = KubeSecrets(management, settings.component_namespace)

        async def missing() -> Sequence[Permission]:
            """Return the permissions that the agent lacks in the management cluster and in the managed cluster."""
            async with AsyncExitStack() as aside:
                spoke = await client_of(settings.spoke_kubeconfig, aside) if settings.spoke_kubeconfig else management
                return [*await missing_permissions(management, own), *await missing_permissions(spoke, managed)]

        yield Doctor(
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
        ).steps


@asynccontextmanager
async def status_source(settings: SpokeSettings) -> AsyncIterator[StatusSource]:
    """Yield the sources of `spoke status`. Raises InvalidError for an unusable kubeconfig."""
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
    home, lease, namespaces = settings.component_namespace, settings.lease_name, settings.addon_namespaces
    return KubeRemains(management, spoke, home, lease=lease, addon_namespaces=namespaces)


@asynccontextmanager
async def depart(settings: SpokeSettings, *, force: bool, rejoin: bool, within: timedelta) -> AsyncIterator[Steps]:
    """Yield a function that runs `spoke leave` or (`rejoin` True) `spoke rejoin`, and yields the steps. Raises InvalidError."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        management = await client_of(settings.kubeconfig, stack)
        spoke = await client_of(settings.spoke_kubeconfig, stack) if settings.spoke_kubeconfig else management
        secrets = KubeSecrets(management, settings.component_namespace)
        yield Leave(
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
        ).steps


READ = ("get", "list", "watch")
COORDINATION = "coordination.k8s.io"
REVIEWS = RestResource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on a resource of an API group, as in a rule of a Role."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    namespace: str = ""
    """Namespace of the objects; empty: the resource is cluster-scoped."""
    name: str = ""
    """Name of the object; empty: all objects."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        named = f' "{self.name}"' if self.name else ""
        return f"{', '.join(self.verbs)} {kind}{named}" + (f' in namespace "{self.namespace}"' if self.namespace else "")


def needed_permissions(settings: SpokeSettings) -> tuple[Sequence[Permission], Sequence[Permission]]:
    """Return the permissions that an agent needs in the management and in the managed cluster. The chart grants the same."""
    home, gates = settings.component_namespace, gates_of(settings.feature_gates)
    own = [Permission("", "secrets", (*READ, "create", "update", "delete"), home), Permission("", "events", ("create",), home)]
    if settings.leader_elect:
        own.append(Permission(COORDINATION, "leases", ("create",), home))
        own.append(Permission(COORDINATION, "leases", (*READ, "update", "delete"), home, settings.lease_name))
    managed = [
        Permission("", "nodes", ("list", "watch")),
        Permission("", "namespaces", ("get",), "", "kube-system"),
        Permission("", "namespaces", ("list", "create", "patch")),
    ]
    if gates.cluster_claim:
        managed.append(Permission(CLAIMS.group, CLAIMS.plural, ("list", "watch")))
    if gates.cluster_property:
        managed.append(Permission(PROPERTIES.group, PROPERTIES.plural, ("list", "watch")))
    if settings.attestation_service_account:
        namespace, _, account = settings.attestation_service_account.partition("/")
        managed.append(Permission("", "serviceaccounts/token", ("create",), namespace, account))
    if gates.addon_management:
        for namespace in settings.addon_namespaces:
            managed.append(Permission("", "secrets", ("get", "list", "create", "update", "delete"), namespace))
            managed.append(Permission(COORDINATION, "leases", ("get",), namespace))
    return own, managed


async def missing_permissions(client: KubeClient, needed: Iterable[Permission]) -> Sequence[Permission]:
    """Return the permissions of `needed` that the user of `client` lacks, with the missing verbs. Raises MusterError."""
    lacking = []
    for each in needed:
        allowed = await asyncio.gather(*(_is_allowed(client, each, verb) for verb in each.verbs))
        verbs = tuple(verb for verb, given in zip(each.verbs, allowed, strict=True) if not given)
        if verbs:
            lacking.append(Permission(each.group, each.resource, verbs, each.namespace, each.name))
    return lacking


async def _is_allowed(client: KubeClient, asked: Permission, verb: str) -> bool:
    resource, _, subresource = asked.resource.partition("/")
    attributes = {"verb": verb, "group": asked.group, "resource": resource, "namespace": asked.namespace, "name": asked.name}
    if subresource:
        attributes["subresource"] = subresource
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    answer = await client.create(REVIEWS.path(), review)
    return bool((answer.get("status") or {}).get("allowed"))
