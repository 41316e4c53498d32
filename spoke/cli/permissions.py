"""The permissions that an agent needs, and which of them it lacks."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machinery.client.rest import KubeClient, RestResource
from spoke.cluster.kubernetes_cluster import CLAIMS, PROPERTIES
from spoke.settings import SpokeSettings, gates_of

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
    """Empty: cluster scope."""
    name: str = ""
    """Empty: objects of any name."""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        named = f' "{self.name}"' if self.name else ""
        return f"{', '.join(self.verbs)} {kind}{named}" + (f' in namespace "{self.namespace}"' if self.namespace else "")


def needed_permissions(settings: SpokeSettings) -> tuple[Sequence[Permission], Sequence[Permission]]:
    """The permissions that an agent needs in its own cluster and in the managed one, as the chart grants them."""
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
    """The permissions of `needed` that the user of `client` lacks, with the missing verbs. Raises MusterError."""
    lacking = []
    for each in needed:
        allowed = await asyncio.gather(*(_is_allowed(client, each, verb) for verb in each.verbs))
        verbs = tuple(verb for verb, given in zip(each.verbs, allowed, strict=True) if not given)
        if verbs:
            lacking.append(Permission(each.group, each.resource, verbs, each.namespace, each.name))
    return lacking


async def _is_allowed(client: KubeClient, asked: Permission, verb: str) -> bool:
    resource, _, subresource = asked.resource.partition("/")
    attributes = {
        "verb": verb,
        "group": asked.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": asked.namespace,
        "name": asked.name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
    answer = await client.create(REVIEWS.path(), review)
    return bool((answer.get("status") or {}).get("allowed"))
