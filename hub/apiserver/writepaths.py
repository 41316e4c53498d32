"""From the API's resources to the hub's kinds, and to the one write path that each kind has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hub.domain.change import ADDONS, LEASES, MANAGED_CLUSTERS, REQUESTS, Kind, StoredObject
from hub.domain.request import Requester
from hub.ports import Transaction, Written
from hub.services import addons, clusters, leases, requests
from machinery.apiserver.storage import Actor, GroupResource

Put = Callable[[Transaction, dict[str, Any], StoredObject | None, Actor], Written]
Remove = Callable[[Transaction, StoredObject, Actor], Written]


@dataclass(frozen=True, slots=True)
class WritePath:
    """One resource: what the hub calls its kind, and the service's own `put` and `remove`."""

    resource: GroupResource
    kind: Kind
    put: Put
    remove: Remove


def write_paths(group_suffix: str) -> dict[GroupResource, WritePath]:
    """Every resource whose objects are documents in the store."""
    paths = (
        WritePath(
            GroupResource(f"cluster.{group_suffix}", "managedclusters"),
            MANAGED_CLUSTERS,
            lambda tx, new, old, actor: clusters.put(tx, new, old, actor.user),
            lambda tx, old, actor: clusters.remove(tx, old, actor.user),
        ),
        WritePath(
            GroupResource(f"addon.{group_suffix}", "managedclusteraddons"),
            ADDONS,
            lambda tx, new, old, actor: addons.put(tx, new, old, actor.user),
            lambda tx, old, actor: addons.remove(tx, old, actor.user),
        ),
        WritePath(
            GroupResource("certificates.k8s.io", "certificatesigningrequests"),
            REQUESTS,
            lambda tx, new, old, actor: requests.put(tx, new, old, Requester(actor.user, actor.groups, actor.uid)),
            lambda tx, old, actor: requests.remove(tx, old, actor.user),
        ),
        WritePath(
            GroupResource("coordination.k8s.io", "leases"),
            LEASES,
            lambda tx, new, old, actor: leases.put(tx, new, old, actor.user),
            lambda tx, old, actor: leases.remove(tx, old, actor.user),
        ),
    )
    return {path.resource: path for path in paths}
