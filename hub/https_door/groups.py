"""The API groups and resources that the door serves; groups are in the order of their first resource here."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hub.https_door.storage.storage import cluster_counts
from hub.ports import Store
from hub.registry.kinds import DEFINITIONS
from hub.registry.managedclusters.resource import leased
from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.core import CONFIG_MAP, LEASE, NAMESPACE, SECRET, SERVICE_ACCOUNT
from machinery.apiserver.kinds.events import CONVERSION, EVENT, EVENTS_V1
from machinery.apiserver.kinds.rbac import ROLES_AND_BINDINGS
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.storage import Storage
from machinery.apiserver.storages.layers import ConvertedStorage
from machinery.apiserver.storages.memory import MemoryStorage


def groups_of(store: Store, group_suffix: str, credentials: Storage, leases: Storage, events: Storage) -> list[ApiGroup]:
    """Returns all resources of the hub. Those without a storage of their own use the server's."""
    own = (each.served(store, group_suffix) for each in DEFINITIONS)
    bound: dict[str, dict[str, Any]] = {
        "ManagedCluster": {"counts": cluster_counts(store)},
        "BootstrapCredential": {"storage": credentials},
    }
    return grouped(
        (
            CONFIG_MAP,
            replace(EVENT, storage=events),
            NAMESPACE,
            SECRET,
            service(),
            custom_resource_definition(),
            SERVICE_ACCOUNT,
            replace(EVENTS_V1, storage=ConvertedStorage(events, CONVERSION)),
            CERTIFICATE_SIGNING_REQUEST,
            replace(LEASE, storage=leases),
            *(replace(resource, **bound.get(resource.kind, {})) for resource in own),
        )
    )


def with_lease(groups: Iterable[ApiGroup], duration: timedelta) -> list[ApiGroup]:
    """Returns the groups with this default lease duration for new clusters."""
    return grouped(
        leased(resource, duration) if resource.kind == "ManagedCluster" else resource
        for group in groups
        for resource in group.resources
    )


def with_others(groups: Iterable[ApiGroup], *added: Resource) -> list[ApiGroup]:
    """Adds resources; one replaces the resource with the same key."""
    resources = {resource.key: resource for group in groups for resource in group.resources}
    return grouped({**resources, **{resource.key: resource for resource in added}}.values())


def roles_in(storage: Storage) -> tuple[Resource, ...]:
    """Returns the RBAC resources with their own storage, which checks for escalation."""
    return tuple(replace(resource, storage=storage) for resource in ROLES_AND_BINDINGS)


def grouped(resources: Iterable[Resource]) -> list[ApiGroup]:
    """Groups resources by API group, in the order of their first resource."""
    found: dict[str, list[Resource]] = {}
    for resource in resources:
        found.setdefault(resource.group, []).append(resource)
    return [ApiGroup(name, tuple(members)) for name, members in found.items()]


def service() -> Resource:
    """Returns a readable resource that is always empty."""
    said = "Service is a named abstraction of software service. This server runs none and lists none."
    return _empty("services", "Service", said, short_names=("svc",), categories=("all",), namespaced=True)


def custom_resource_definition() -> Resource:
    """Returns a readable resource that is always empty."""
    said = "CustomResourceDefinition is a kind that users add. This server takes none and lists none."
    names = ("crd", "crds")
    return _empty(
        "customresourcedefinitions", "CustomResourceDefinition", said, group="apiextensions.k8s.io", short_names=names
    )


def _empty(name: str, kind: str, description: str, *, group: str = "", **others: Any) -> Resource:
    schema = {
        "description": description,
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    verbs, storage = ("get", "list", "watch"), MemoryStorage()
    return Resource(
        group=group, version="v1", name=name, kind=kind, custom=False, verbs=verbs, schema=schema, storage=storage, **others
    )
