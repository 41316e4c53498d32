"""Escalation checks of RBAC: a user cannot grant permissions that the user does not hold.

The writer of a role must hold all its rules, or the verb `escalate` on the role. The writer of a binding must hold all rules of
the role, or the verb `bind` on the role. Source of behaviour and messages: Kubernetes' pkg/registry/rbac/*/policybased.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from machinery.apiserver.access import Attributes
from machinery.apiserver.authz import rbac
from machinery.apiserver.resource import Written
from machinery.apiserver.storage import Admission, GroupResource
from machinery.errors import ErrorSubject, NotFoundError
from machinery.identity import OPERATOR_GROUP
from machinery.meta.objects import Document, Key

RESOURCES = {kind: resource for resource, kind in rbac.ROLES.items()}
MOST_PARTS = 10_000
"""Most permissions (one verb on one resource) that a writer without escalate or bind may grant. Few rules can mean billions."""
MOST_LISTED = 100
RELEASED_FIELDS = ("finalizers", "ownerReferences", "resourceVersion", "managedFields")
"""Metadata fields that every writer, such as a garbage collector, may change without holding the rules of the role."""


def wait_until_seen(roles: rbac.Roles) -> Written:
    """Return a hook that delays the response to a write of a role or binding until `roles` has it, at most for SEEN_WITHIN."""

    async def wait(resource: GroupResource, revision: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(rbac.SEEN_WITHIN.total_seconds()):
                await roles.seen(resource, revision)

    return wait


class EscalationCheck:
    """Admission that refuses roles and bindings with more permissions than their writer has."""

    def __init__(self, authorizer: rbac.RbacAuthorizer) -> None:
        self._authorizer = authorizer

    def __call__(self, write: Admission) -> Document:
        """Return the object to store. Raises ForbiddenError; NotFoundError for a binding to a missing role."""
        releases = write.old is not None and _kept(write.new) == _kept(write.old)
        if releases or OPERATOR_GROUP in write.actor.groups:
            return write.new
        if write.resource.resource in rbac.ROLES:
            self._check_role(write)
        else:
            self._check_binding(write)
        return write.new

    def _check_role(self, write: Admission) -> None:
        name = write.key.name if write.old is not None else ""
        if self._may(write, "escalate", write.resource.resource, Key(write.key.namespace, name)):
            return
        self._check_held(write, rbac.rules_of(write.new))
        aggregates = any((document or {}).get("aggregationRule") for document in (write.new, write.old))
        if aggregates and rbac.missing(self._authorizer.held(write.actor, "").rules, rbac.EVERYTHING):
            raise write.refusal("must have cluster-admin privileges to use the aggregationRule")

    def _check_binding(self, write: Admission) -> None:
        reference: Mapping[str, Any] = write.new.get("roleRef") or {}
        kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
        resource = RESOURCES.get(kind, "")
        if self._may(write, "bind", resource, Key(write.key.namespace, name)):
            return
        rules = self._authorizer.rules_of_role(kind, Key(write.key.namespace if kind == rbac.ROLE else "", name))
        if rules is None:
            subject = ErrorSubject(name=name, group=rbac.GROUP, kind=resource)
            raise NotFoundError(f'{resource}.{rbac.GROUP} "{name}" not found', subject=subject)
        self._check_held(write, rules)

    def _may(self, write: Admission, verb: str, resource: str, key: Key) -> bool:
        asked = Attributes(verb, "", rbac.GROUP, "v1", resource, namespace=key.namespace, name=key.name)
        return self._authorizer.decide(write.actor, asked).allowed

    def _check_held(self, write: Admission, wanted: Sequence[rbac.PolicyRule]) -> None:
        held = self._authorizer.held(write.actor, write.key.namespace)
        parts = sum(rule.permission_count for rule in wanted)
        if parts > MOST_PARTS:
            raise write.refusal(f"its rules contain {parts} permissions; without the verb escalate, {MOST_PARTS} are allowed")
        lacking = rbac.missing(held.rules, wanted, MOST_LISTED)
        if not lacking:
            return
        listed = "\n".join(sorted({str(rule) for rule in rbac.compact(lacking)}))
        groups = " ".join(json.dumps(group) for group in write.actor.groups)
        why = f'user "{write.actor.user}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
        errors = f"; resolution errors: [{', '.join(held.errors)}]" if held.errors else ""
        raise write.refusal(f"{why}{listed}{errors}")


def _kept(document: Document) -> dict[str, Any]:
    metadata = {name: value for name, value in document.get("metadata", {}).items() if name not in RELEASED_FIELDS}
    return {**document, "metadata": metadata}
