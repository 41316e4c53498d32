"""The API groups and resources of the HTTPS door. Groups are in the order of their first resource in this file."""

from dataclasses import replace
from datetime import timedelta

from hub.api.liveness import DEFAULT_LEASE_DURATION
from hub.https_door.storage.sessions import SessionStorage
from hub.https_door.storage.storage import cluster_counts
from hub.ports import Store
from hub.registry.kinds import DEFINITIONS
from hub.registry.managedclusters.resource import leased
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import CONFIG_MAP, LEASE, NAMESPACE, SECRET, SERVICE_ACCOUNT
from machinery.apiserver.kinds.declaration import builtin
from machinery.apiserver.kinds.events import CONVERSION, EVENT, EVENTS_V1
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.storage import Admit, Storage
from machinery.apiserver.storages.conversion import ConvertedStorage
from machinery.apiserver.storages.memory import MemoryStorage


def groups_of(
    store: Store,
    group_suffix: str,
    credentials: Storage,
    leases: Storage,
    events: Storage,
    *others: Resource,
    admit: Admit | None = None,
    lease_duration: timedelta = DEFAULT_LEASE_DURATION,
) -> list[ApiGroup]:
    """Returns all API groups. A resource without its own storage uses the server's storage; `admit` checks writes to it.

    `others`: more resources, which replace resources with the same key. `lease_duration`: default of new clusters.
    """
    own = {each.resource.kind: each.served(store, group_suffix) for each in DEFINITIONS}
    own["ManagedCluster"] = replace(leased(own["ManagedCluster"], lease_duration), counts=cluster_counts(store))
    own["ClusterSession"] = replace(own["ClusterSession"], storage=SessionStorage(store, own["ClusterSession"]))
    own["BootstrapCredential"] = replace(own["BootstrapCredential"], storage=credentials, admit=admit)
    resources = (
        CONFIG_MAP,
        replace(EVENT, storage=events),
        NAMESPACE,
        SECRET,
        builtin("services", storage=MemoryStorage()),
        builtin("customresourcedefinitions.apiextensions.k8s.io", storage=MemoryStorage()),
        SERVICE_ACCOUNT,
        replace(EVENTS_V1, storage=ConvertedStorage(events, CONVERSION)),
        CERTIFICATE_SIGNING_REQUEST,
        replace(LEASE, storage=leases),
        *own.values(),
    )
    found: dict[str, list[Resource]] = {}
    for each in {resource.key: resource for resource in (*resources, *others)}.values():
        found.setdefault(each.group, []).append(replace(each, admit=admit) if each.admit is None else each)
    return [ApiGroup(name, tuple(members)) for name, members in found.items()]
