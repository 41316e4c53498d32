"""All stored kinds, each with its only write path. Kinds that are not in this table cannot be written.

A kind without rules of its own is one line, `plain(...)`. Its selectable fields are in `hub.api.query.selection`; schema,
columns and subresources are in its `Resource` in `hub.https_door.groups`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hub.api.certificatesigningrequests.request import Requester
from hub.api.meta.change import (
    ADDON_DEFINITIONS,
    ADDONS,
    APPROVAL_RULES,
    CLUSTER_PROFILES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_SET_BINDINGS,
    CLUSTER_SETS,
    CONFIG_MAPS,
    CREDENTIAL_ISSUERS,
    EVENTS,
    JWT_AUTHENTICATORS,
    LEASES,
    MANAGED_CLUSTERS,
    NAMESPACES,
    REQUESTS,
    REVOCATIONS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    WEBHOOK_AUTHENTICATORS,
    Kind,
)
from hub.ports import Transaction, Written
from hub.registry import clusterroles, namespaces
from hub.registry import revocations as revocation
from hub.registry.approvalrules import service as approval_rules
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.core import leases
from hub.registry.core import serviceaccounts as accounts
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.meta.objects import StoredObject

Put = Callable[[Transaction, dict[str, Any], StoredObject | None, Requester], Written]
"""Create (old object None) or update for a requester. Raises InvalidError, AlreadyExistsError, ConflictError and others."""
Remove = Callable[[Transaction, StoredObject, Requester], Written]


@dataclass(frozen=True, slots=True)
class WritePath:
    """How objects of one kind are written."""

    kind: Kind
    put: Put
    remove: Remove
    namespaced: bool


def plain(kind: Kind, *, namespaced: bool, generations: bool = False) -> WritePath:
    """A kind without rules of its own. `generations`: metadata.generation counts changes outside metadata and status."""
    return WritePath(
        kind,
        lambda tx, new, old, who: objects.put(tx, kind, new, old, who.user, generations=generations),
        lambda tx, old, who: objects.remove(tx, kind, old, who.user, generations=generations),
        namespaced,
    )


_ALL = (
    WritePath(
        MANAGED_CLUSTERS,
        lambda tx, new, old, who: revocation.put_cluster(tx, new, old, who.user),
        lambda tx, old, who: clusters.remove(tx, old, who.user),
        namespaced=False,
    ),
    WritePath(
        ADDONS,
        lambda tx, new, old, who: addons.put(tx, new, old, who.user),
        lambda tx, old, who: addons.remove(tx, old, who.user),
        namespaced=True,
    ),
    WritePath(REQUESTS, requests.put, lambda tx, old, who: requests.remove(tx, old, who.user), namespaced=False),
    WritePath(
        LEASES,
        lambda tx, new, old, who: leases.put(tx, new, old, who.user),
        lambda tx, old, who: leases.remove(tx, old, who.user),
        namespaced=True,
    ),
    WritePath(
        NAMESPACES,
        lambda tx, new, old, who: namespaces.put(tx, new, old, who.user),
        lambda tx, old, who: namespaces.remove(tx, old, who.user),
        namespaced=False,
    ),
    WritePath(
        APPROVAL_RULES,
        lambda tx, new, old, who: approval_rules.put(tx, new, old, who.user),
        lambda tx, old, who: approval_rules.remove(tx, old, who.user),
        namespaced=False,
    ),
    WritePath(
        REVOCATIONS,
        lambda tx, new, old, who: revocation.put(tx, new, old, who.user),
        lambda tx, old, who: revocation.remove(tx, old, who.user),
        namespaced=False,
    ),
    plain(ADDON_DEFINITIONS, namespaced=False, generations=True),
    plain(CLUSTER_SETS, namespaced=False, generations=True),
    plain(CLUSTER_SET_BINDINGS, namespaced=True, generations=True),
    plain(CLUSTER_PROFILES, namespaced=True, generations=True),
    plain(CONFIG_MAPS, namespaced=True),
    plain(CREDENTIAL_ISSUERS, namespaced=False),
    plain(EVENTS, namespaced=True),
    plain(SECRETS, namespaced=True),
    plain(JWT_AUTHENTICATORS, namespaced=False, generations=True),
    plain(WEBHOOK_AUTHENTICATORS, namespaced=False, generations=True),
    WritePath(
        SERVICE_ACCOUNTS,
        lambda tx, new, old, who: accounts.put(tx, new, old, who.user),
        lambda tx, old, who: accounts.remove(tx, old, who.user),
        namespaced=True,
    ),
    WritePath(
        CLUSTER_ROLES,
        lambda tx, new, old, who: clusterroles.put_cluster_role(tx, new, old, who.user),
        lambda tx, old, who: clusterroles.remove_cluster_role(tx, old, who.user),
        namespaced=False,
    ),
    plain(CLUSTER_ROLE_BINDINGS, namespaced=False),
    plain(ROLES, namespaced=True),
    plain(ROLE_BINDINGS, namespaced=True),
)

WRITE_PATHS: Mapping[Kind, WritePath] = {path.kind: path for path in _ALL}
