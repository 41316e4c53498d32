"""The resources of a hollow cluster, with the rules and table columns of a real API server."""

from dataclasses import replace

from hollow.kinds.claim import CLUSTER_CLAIM
from hollow.kinds.deployment import DEPLOYMENT
from hollow.kinds.installed import INSTALLED
from hollow.kinds.node import NODE
from hollow.kinds.pod import POD
from hollow.kinds.property import CLUSTER_PROPERTY
from machinery.apiserver.kinds import core
from machinery.apiserver.kinds.core import CONFIG_MAP, LEASE, SECRET, SERVICE_ACCOUNT
from machinery.apiserver.kinds.events import EVENT
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.resource import ApiGroup, Resource

NAMESPACE = replace(core.NAMESPACE, held=lambda _document: False, prepare_delete=None)
"""Removed at once on delete; the storage then deletes its content."""

_ALL: tuple[Resource, ...] = (
    *(CONFIG_MAP, EVENT, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT),
    *(CLUSTER_PROPERTY, CLUSTER_CLAIM, DEPLOYMENT, LEASE),
    *INSTALLED,
    *ROLES_AND_BINDINGS,
)
GROUPS = tuple(
    ApiGroup(name, tuple(resource for resource in _ALL if resource.group == name))
    for name in dict.fromkeys(resource.group for resource in _ALL)
)

__all__ = [
    "CLUSTER_CLAIM",
    "CLUSTER_PROPERTY",
    "CONFIG_MAP",
    "DEPLOYMENT",
    "EVENT",
    "GROUPS",
    "LEASE",
    "NAMESPACE",
    "NODE",
    "POD",
    "SECRET",
    "SERVICE_ACCOUNT",
]
