"""RBAC rules and their evaluation as pure functions.

Source: k8s.io/component-helpers and k8s.io/kubernetes (`RuleAllows`, `Covers`, `CompactRules`), for behaviour and messages.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from machinery.apiserver.access import Attributes

GROUP = "rbac.authorization.k8s.io"
USER, USER_GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"
"""Kinds of a binding's subjects."""
ALL = "*"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A PolicyRule: verbs on resources of groups, optionally limited to names, or verbs on paths."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()

    def allows(self, asked: Attributes) -> bool:
        """Whether this rule allows the request."""
        if not (asked.verb in self.verbs or ALL in self.verbs):
            return False
        if not asked.resource:
            return any(_path_covers(path, asked.path) for path in self.paths)
        if not (asked.group in self.groups or ALL in self.groups):
            return False
        return self._has_resource(asked) and (not self.names or named(asked) in self.names)

    def _has_resource(self, asked: Attributes) -> bool:
        if ALL in self.resources:
            return True
        if not asked.subresource:
            return asked.resource in self.resources
        return f"{asked.resource}/{asked.subresource}" in self.resources or f"*/{asked.subresource}" in self.resources

    @property
    def breadth(self) -> int:
        """Number of single permissions in the rule."""
        objects = len(self.groups) * len(self.resources) * max(len(self.names), 1)
        return len(self.verbs) * (objects + len(self.paths))

    def document(self) -> dict[str, Any]:
        """The PolicyRule document."""
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
    """Name of the requested object: from the path, or the only name that a list or watch selects."""
    return asked.name or (asked.selected_name if asked.verb in ("list", "watch") else "")


def rules_of(role: Mapping[str, Any]) -> tuple[PolicyRule, ...]:
    """The rules of a Role or ClusterRole document."""
    return tuple(_rule(each) for each in role.get("rules") or ())


def _rule(document: Mapping[str, Any]) -> PolicyRule:
    parts = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return PolicyRule(*(tuple(document.get(part) or ()) for part in parts))


def _path_covers(pattern: str, path: str) -> bool:
    """Whether the pattern, which may end in `*`, covers a path or another pattern."""
    return pattern in (ALL, path) or (pattern.endswith(ALL) and path.startswith(pattern.rstrip(ALL)))


def missing(held: Sequence[PolicyRule], wanted: Iterable[PolicyRule], most: int | None = None) -> list[PolicyRule]:
    """The single permissions of `wanted` that `held` lacks, the first `most` of them.

    One rule must cover each permission. `wanted` is expanded, so check its `breadth` first.
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
