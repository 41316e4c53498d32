"""Leader election by a Lease of the hub's own Kubernetes cluster: namespace, name and owner of the Lease."""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog

from hub.election.locks import LeaseAndTerm, RowLock
from hub.settings import HubSettings
from hub.settings.fields import IN_CLUSTER
from machinery.client.leaselock import LeaseLock, Owner
from machinery.client.ownership import owner_if_known, owner_of
from machinery.client.rest import KubeClient, Object
from machinery.durations import format_duration
from machinery.election.lock import Lock
from machinery.errors import InvalidError, MusterError
from machinery.runtime.clock import Clock

POD_NAMESPACE = "POD_NAMESPACE"
"""Environment variable with the pod's namespace, which the chart sets from the downward API."""
FOUND_WITHIN, TRY_AGAIN = timedelta(seconds=30), timedelta(seconds=1)
NAME_IT = "name the Lease with --leader-elect-resource-name, the same on all replicas"

log = structlog.get_logger(__name__)


@asynccontextmanager
async def lease_lock(
    settings: HubSettings, pod: str, row: RowLock, clock: Clock, environment: Mapping[str, str] = os.environ
) -> AsyncGenerator[Lock]:
    """Yields the lock (a Lease together with `row`). Raises InvalidError if the Lease's namespace or name cannot be determined.

    The default name is that of the pod's owner, which all replicas share. With different names, several replicas would lead.
    """
    namespace = settings.leader_elect_resource_namespace or environment.get(POD_NAMESPACE)
    if not namespace:
        raise InvalidError(f"leader_elect_resource_lock kubernetes needs leader_elect_resource_namespace, or {POD_NAMESPACE}")
    place = settings.management_cluster or IN_CLUSTER
    client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
    async with client:
        lease = await lease_on(client, settings, namespace, pod, clock)
        yield LeaseAndTerm(lease, row, clock=clock, every=settings.leader_elect_retry_period)


async def lease_on(client: KubeClient, settings: HubSettings, namespace: str, pod: str, clock: Clock) -> LeaseLock:
    """Return the lock of the Lease with the configured name, else with the pod owner's name. Raises InvalidError (no owner)."""
    name = settings.leader_elect_resource_name
    owner: Owner = partial(owner_if_known, client, namespace, pod, of="Lease")
    if name is None:
        found = await _owner(client, namespace, pod)
        name, owner = str(found["name"]), partial(_itself, found)
    log.info("leadership is a Lease", namespace=namespace, lease=name)
    return LeaseLock(client, namespace, name, clock=clock, owner=owner)


async def _owner(client: KubeClient, namespace: str, pod: str) -> Object:
    """The pod's owner, such as a Deployment. The Lease gets its name. Raises InvalidError if none is found in time."""
    trouble = "the cluster does not answer"
    try:
        async with asyncio.timeout(FOUND_WITHIN.total_seconds()):
            while True:
                try:
                    owner = await owner_of(client, namespace, pod)
                    break
                except MusterError as error:
                    trouble = error.message
                    log.info("the owner of this pod is not known yet", pod=pod, error=trouble)
                await asyncio.sleep(TRY_AGAIN.total_seconds())
    except TimeoutError:
        said = f"the owner of the pod {namespace}/{pod} was not found within {format_duration(FOUND_WITHIN)} ({trouble})"
        raise InvalidError(f"{said}: {NAME_IT}") from None
    if owner is None:
        raise InvalidError(f"the pod {namespace}/{pod} belongs to no Deployment or StatefulSet: {NAME_IT}")
    return owner


async def _itself(owner: Object) -> Object:
    return owner
