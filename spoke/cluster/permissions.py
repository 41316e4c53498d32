"""Checks the permissions that an agent needs."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from machinery.client.rest import KubeClient, RestResource

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
