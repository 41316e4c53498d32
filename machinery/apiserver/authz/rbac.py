"""RBAC: rules as pure functions, and an authorizer over an in-memory index of roles and bindings by subject.

A decision reads only the bindings of one user and its groups. Only the event loop writes the index. Any thread may read it,
because entries are replaced and never changed. Source of behaviour and messages: k8s.io/component-helpers and k8s.io/kubernetes
(`RuleAllows`, `Covers`, `CompactRules`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice, product
from typing import Any, Protocol

from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.storage import Actor, GroupResource
from machinery.identity import OPERATOR_GROUP, service_account_user
from machinery.meta.objects import Key

GROUP = "rbac.authorization.k8s.io"
USER, USER_GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"
ALL = "*"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A rule of a role: verbs on resources of API groups, optionally limited to object names, or verbs on URL paths."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def allows(self, asked: Attributes) -> bool:
        if not (asked.verb in self.verbs or ALL in self.verbs):
            return False
        if not asked.resource:
            return any(_path_covers(path, asked.path) for path in self.paths)
        if not (asked.group in self.groups or ALL in self.groups):
            return False
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        return _covers_resource(self, resource) and (not self.names or named(asked) in self.names)

    @property
    def permission_count(self) -> int:
        objects = len(self.groups) * len(self.resources) * max(len(self.names), 1)
        return len(self.verbs) * (objects + len(self.paths))

    def document(self) -> dict[str, Any]:
        parts = {"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources}
        parts |= {"resourceNames": self.names, "nonResourceURLs": self.paths}
        return {name: list(values) for name, values in parts.items() if values}

    def __str__(self) -> str:
        shown = {"APIGroups": self.groups, "Resources": self.resources, "NonResourceURLs": self.paths}
        shown |= {"ResourceNames": self.names, "Verbs": self.verbs}
        parts = (f"{name}:[{' '.join(json.dumps(value) for value in values)}]" for name, values in shown.items() if values)
        return f"{{{', '.join(parts)}}}"


EVERYTHING = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), paths=(ALL,)))


def named(asked: Attributes) -> str:
    """Return the name of the requested object: the name in the path, or the only name that a list or watch selects."""
    return asked.name or (asked.selected_name if asked.verb in ("list", "watch") else "")


def rules_of(role: Mapping[str, Any]) -> tuple[PolicyRule, ...]:
    return tuple(_rule(each) for each in role.get("rules") or ())


def _rule(document: Mapping[str, Any]) -> PolicyRule:
    parts = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return PolicyRule(*(tuple(document.get(part) or ()) for part in parts))


def _path_covers(pattern: str, path: str) -> bool:
    """Whether the pattern, which may end in `*`, covers a path or another pattern."""
    return pattern in (ALL, path) or (pattern.endswith(ALL) and path.startswith(pattern.rstrip(ALL)))


def missing(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule], most: int | None = None) -> list[PolicyRule]:
    """Return the single permissions of `wanted` that `held` lacks, at most `most` (None: all).

    A permission counts as held if one rule of `held` covers it alone. The function expands `wanted`, so first check the
    `permission_count` of its rules.
    """
    parts = (part for rule in wanted for part in _parts(rule) if not any(_covers(owned, part) for owned in held))
    return list(islice(parts, most))


def _parts(rule: PolicyRule) -> Iterator[PolicyRule]:
    for group, resource, verb in product(rule.groups, rule.resources, rule.verbs):
        if rule.names:
            yield from (PolicyRule((verb,), (group,), (resource,), (name,)) for name in rule.names)
        else:
            yield PolicyRule((verb,), (group,), (resource,))
    yield from (PolicyRule((verb,), paths=(path,)) for path, verb in product(rule.paths, rule.verbs))


def _covers(owned: PolicyRule, part: PolicyRule) -> bool:
    if not (ALL in owned.verbs or part.verbs[0] in owned.verbs):
        return False
    if part.paths:
        return any(_path_covers(path, part.paths[0]) for path in owned.paths)
    if not (ALL in owned.groups or part.groups[0] in owned.groups):
        return False
    return _covers_resource(owned, part.resources[0]) and (
        not owned.names or (bool(part.names) and part.names[0] in owned.names)
    )


def _covers_resource(owned: PolicyRule, resource: str) -> bool:
    if ALL in owned.resources or resource in owned.resources:
        return True
    return "/" in resource and f"*/{resource.partition('/')[2]}" in owned.resources


def compact(parts: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Join permissions on one resource that differ only in the verb, for display."""
    joined: dict[PolicyRule, PolicyRule] = {}
    for part in parts:
        place = part if part.paths else replace(part, verbs=())
        known = joined.get(place)
        joined[place] = part if known is None else replace(known, verbs=(*known.verbs, *part.verbs))
    return list(joined.values())


CLUSTER_ROLE, ROLE = "ClusterRole", "Role"
BINDINGS = {"clusterrolebindings": "ClusterRoleBinding", "rolebindings": "RoleBinding"}
ROLES = {"clusterroles": CLUSTER_ROLE, "roles": ROLE}

Subject = tuple[str, str, str]
"""Namespace of a binding ("" for a ClusterRoleBinding), `User` or `Group`, and its name. A ServiceAccount is a `User` here."""
RoleKey = tuple[str, Key]
"""Identifies a role: `ClusterRole` or `Role`, and its namespace and name."""


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role that a binding grants to a subject. `reason` is Kubernetes' message for an allowed request."""

    binding: tuple[str, Key]
    role: RoleKey
    reason: str

    @property
    def missing(self) -> str:
        """The error text for a binding whose role does not exist."""
        kind, key = self.role
        return f'{kind.lower()}.{GROUP} "{key.name}" not found'


@dataclass(frozen=True, slots=True)
class HeldRules:
    """The rules of a user, and an error for each missing role of a binding."""

    rules: tuple[PolicyRule, ...]
    errors: tuple[str, ...]


class RoleIndex:
    """The roles and bindings of one server."""

    def __init__(self) -> None:
        self._roles: dict[RoleKey, tuple[PolicyRule, ...]] = {}
        self._grants: dict[Subject, tuple[RoleGrant, ...]] = {}
        self._subjects: dict[tuple[str, Key], tuple[Subject, ...]] = {}

    def __len__(self) -> int:
        return len(self._subjects)

    def put(self, resource: str, key: Key, document: Mapping[str, Any] | None) -> None:
        """Store a role or binding; `document` None: remove it. `resource`: its plural name, such as `clusterroles`."""
        if resource in BINDINGS:
            self._put_binding(BINDINGS[resource], key, document)
        elif document is None:
            self._roles.pop((ROLES[resource], key), None)
        else:
            self._roles[ROLES[resource], key] = rules_of(document)

    def _put_binding(self, kind: str, key: Key, document: Mapping[str, Any] | None) -> None:
        binding = (kind, key)
        before = self._subjects.pop(binding, ())
        added = dict(_granted(binding, document)) if document is not None else {}
        for subject in {*before, *added}:
            others = tuple(grant for grant in self._grants.get(subject, ()) if grant.binding != binding)
            grants = (*others, added[subject]) if subject in added else others
            if grants:
                self._grants[subject] = tuple(sorted(grants, key=lambda grant: grant.binding))
            else:
                self._grants.pop(subject, None)
        if document is not None:
            self._subjects[binding] = tuple(added)

    def decide(self, actor: Actor, asked: Attributes) -> Decision:
        """Decide whether a rule of the actor's roles allows the request. The reason is Kubernetes' message."""
        errors: dict[str, None] = {}
        for grant, rules in self._of(actor, asked.namespace):
            if rules is None:
                errors[grant.missing] = None
            elif any(rule.allows(asked) for rule in rules):
                return Decision(allowed=True, reason=grant.reason)
        listed = f"[{', '.join(errors)}]" if len(errors) > 1 else "".join(errors)
        return Decision(allowed=False, reason=f"RBAC: {listed}" if listed else "")

    def held(self, actor: Actor, namespace: str) -> HeldRules:
        """Return all rules of the actor in a namespace ("": at the cluster scope)."""
        rules: list[PolicyRule] = []
        errors: dict[str, None] = {}
        for grant, found in self._of(actor, namespace):
            rules.extend(found or ())
            if found is None:
                errors[grant.missing] = None
        return HeldRules(tuple(rules), tuple(errors))

    def rules(self, kind: str, key: Key) -> tuple[PolicyRule, ...] | None:
        """Return the rules of the role. `kind`: `ClusterRole` or `Role`. None: the role does not exist."""
        return self._roles.get((kind, key))

    def _of(self, actor: Actor, namespace: str) -> Iterator[tuple[RoleGrant, tuple[PolicyRule, ...] | None]]:
        subjects = ((USER, actor.user), *((USER_GROUP, group) for group in actor.groups))
        for place in ("", namespace) if namespace else ("",):
            for kind, name in subjects:
                for grant in self._grants.get((place, kind, name), ()):
                    yield grant, self._roles.get(grant.role)


def _granted(binding: tuple[str, Key], document: Mapping[str, Any]) -> Iterator[tuple[Subject, RoleGrant]]:
    kind, key = binding
    reference = document.get("roleRef") or {}
    role_kind, name = str(reference.get("kind", "")), str(reference.get("name", ""))
    role = (role_kind, Key(key.namespace if role_kind == ROLE else "", name))
    shown = f"{key.name}/{key.namespace}" if key.namespace else key.name
    for subject in document.get("subjects") or ():
        sort, named_as = str(subject.get("kind", "")), str(subject.get("name", ""))
        granted = f'RBAC: allowed by {kind} "{shown}" of {role_kind} "{name}" to {sort}'
        if sort in (USER, USER_GROUP):
            yield (key.namespace, sort, named_as), RoleGrant(binding, role, f'{granted} "{named_as}"')
        elif sort == SERVICE_ACCOUNT and (home := str(subject.get("namespace") or key.namespace)):
            user = service_account_user(home, named_as)
            yield (key.namespace, USER, user), RoleGrant(binding, role, f'{granted} "{named_as}/{home}"')


ALLOWED = Decision(allowed=True)
SEEN_WITHIN = timedelta(seconds=2)
"""The response to a write of a role or binding waits at most this long for the authorizer to use the change."""


class Roles(Protocol):
    """The interface of a role index that follows the changes of roles."""

    @property
    def index(self) -> RoleIndex: ...

    def check(self) -> None:
        """Raises UnavailableError if the index may be too old for decisions."""

    async def seen(self, resource: GroupResource, revision: int) -> None:
        """Wait until the index has all changes of the resource up to `revision`. The caller bounds the wait."""


class RbacAuthorizer(Authorizer):
    """Authorizes by RBAC. Members of `system:masters` may do everything."""

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        return self.decide(actor, attributes)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return self.held(actor, namespace)

    def decide(self, actor: Actor, asked: Attributes) -> Decision:
        """Decide by RBAC. Raises UnavailableError if the role index may be outdated."""
        if OPERATOR_GROUP in actor.groups:
            return ALLOWED
        self._roles.check()
        return self._roles.index.decide(actor, asked)

    def held(self, actor: Actor, namespace: str) -> HeldRules:
        """Return the actor's rules in a namespace ("": the cluster scope). Raises UnavailableError: index may be outdated."""
        self._roles.check()
        held = self._roles.index.held(actor, namespace)
        if OPERATOR_GROUP in actor.groups:
            return HeldRules((*held.rules, *(rule for rule in EVERYTHING if rule not in held.rules)), ())
        return held

    def rules_of_role(self, kind: str, key: Key) -> tuple[PolicyRule, ...] | None:
        """Return the rules of one role; None: no such role. Raises UnavailableError."""
        self._roles.check()
        return self._roles.index.rules(kind, key)
