"""The election in the cluster that the hub runs in: its API, the Lease's place and name, and what the Lease belongs to."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from hub.election.leaselock import LeaseAndTerm
from hub.election.rowlock import RowLock
from hub.settings import Settings
from machinery.clock import Clock
from machinery.election.lock import Lock
from machinery.errors import InvalidError, MusterError
from machinery.kube.client import KubeClient, Object, Resource
from machinery.kube.leaselock import LeaseLock

IN_CLUSTER = "in-cluster"
POD_NAMESPACE = "POD_NAMESPACE"
"""The downward API's."""
LONGEST_CHAIN = 3
"""Pod, ReplicaSet, Deployment."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def lease_lock(
    settings: Settings, pod: str, row: RowLock, clock: Clock, environment: Mapping[str, str] = os.environ
) -> AsyncGenerator[Lock]:
    """For the length of the block. Raises InvalidError when it is not told where the Lease is to be."""
    namespace = settings.leader_elect_resource_namespace or environment.get(POD_NAMESPACE)
    if not namespace:
        raise InvalidError(f"leader_elect_resource_lock kubernetes needs leader_elect_resource_namespace, or {POD_NAMESPACE}")
    place = settings.management_cluster or IN_CLUSTER
    client = KubeClient.in_cluster() if place == IN_CLUSTER else await KubeClient.from_file(Path(place))
    async with client:
        owner = await owner_of(client, namespace, pod)
        name = settings.leader_elect_resource_name or (owner["name"] if owner else "hub")
        lease = LeaseLock(client, namespace, name, clock=clock, owner=owner)
        log.info("leadership is a Lease", namespace=namespace, lease=name, owner=owner["kind"] if owner else "")
        yield LeaseAndTerm(lease, row, clock=clock, every=settings.leader_elect_retry_period)


async def owner_of(client: KubeClient, namespace: str, pod: str) -> Object | None:
    """An owner reference to what the pod belongs to in the end, its Deployment; None: there is none, or we may not look."""
    resource, name, owner = Resource("", "v1", "pods"), pod, None
    try:
        for _ in range(LONGEST_CHAIN):
            document = await client.get(resource.path(name, namespace=namespace))
            above = next((each for each in document["metadata"].get("ownerReferences") or () if each.get("controller")), None)
            if above is None:
                break
            owner = {key: above[key] for key in ("apiVersion", "kind", "name", "uid")}
            group, _, version = str(above["apiVersion"]).rpartition("/")
            resource, name = Resource(group, version, str(above["kind"]).lower() + "s"), str(above["name"])
    except MusterError as error:
        log.warning("what this pod belongs to is not known: the Lease gets no owner", pod=pod, error=error.message)
    return owner
