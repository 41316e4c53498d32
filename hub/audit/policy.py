"""Kubernetes' audit policy: selects which requests are recorded, and at which level. The first rule that matches decides.

Rules match as in kube-apiserver. Bodies of `NEVER_BODIES` are never recorded.
"""

from dataclasses import dataclass

from hub.api.auditrecords import AuditLevel, Stage
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor

NEVER_BODIES = frozenset(
    ("secrets", "serviceaccounts/token", "tokenreviews", "bootstrapcredentials", "tokencredentialrequests")
)
"""Resources (with their subresource) that hold secrets or tokens, in any group."""


@dataclass(frozen=True, slots=True)
class GroupResources:
    """Resources of one group: `leases`, `managedclusters/status`, `*/status`, `managedclusters/*`, `*`; none: all of it."""

    group: str = ""
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def match(self, asked: Attributes) -> bool:
        if asked.group != self.group:
            return False
        if not self.resources:
            return True
        return (not self.names or asked.name in self.names) and any(_is(resource, asked) for resource in self.resources)


def _is(pattern: str, asked: Attributes) -> bool:
    if pattern in ("*", _combined(asked)):
        return True
    resource, slash, part = pattern.partition("/")
    if not slash:
        return False
    return (resource == "*" and part == asked.subresource) or (part == "*" and resource == asked.resource)


def _combined(asked: Attributes) -> str:
    return f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRule:
    """Matches if all fields that are set match; an empty field matches everything."""

    level: AuditLevel
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resources: tuple[GroupResources, ...] = ()
    namespaces: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    omit_stages: frozenset[Stage] = frozenset()

    def match(self, actor: Actor, asked: Attributes) -> bool:
        if self.users and actor.user not in self.users:
            return False
        if self.groups and not any(group in self.groups for group in actor.groups):
            return False
        if self.verbs and asked.verb not in self.verbs:
            return False
        if self.resources or self.namespaces:
            return self._matches_resource(asked)
        return not self.paths or self._matches_path(asked)

    def _matches_resource(self, asked: Attributes) -> bool:
        if not asked.resource or (self.namespaces and asked.namespace not in self.namespaces):
            return False
        return not self.resources or any(resources.match(asked) for resources in self.resources)

    def _matches_path(self, asked: Attributes) -> bool:
        return not asked.resource and any(
            path in ("*", asked.path) or (path.endswith("*") and asked.path.startswith(path[:-1])) for path in self.paths
        )


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The level and stages at which a request is recorded."""

    level: AuditLevel
    omit_stages: frozenset[Stage] = frozenset()

    def remembers(self, stage: Stage) -> bool:
        return self.level is not AuditLevel.NONE and stage not in self.omit_stages

    @property
    def request_body(self) -> bool:
        return self.level in (AuditLevel.REQUEST, AuditLevel.REQUEST_RESPONSE)

    @property
    def response_body(self) -> bool:
        return self.level is AuditLevel.REQUEST_RESPONSE


NOTHING = AuditVerdict(AuditLevel.NONE)


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """Rules in order."""

    rules: tuple[AuditRule, ...]
    omit_stages: frozenset[Stage] = frozenset()

    def verdict(self, actor: Actor, asked: Attributes) -> AuditVerdict:
        """Returns the verdict by the authenticated actor, not an impersonated one. Without a matching rule: NOTHING."""
        for rule in self.rules:
            if rule.match(actor, asked):
                level = rule.level
                if level in (AuditLevel.REQUEST, AuditLevel.REQUEST_RESPONSE) and _combined(asked) in NEVER_BODIES:
                    level = AuditLevel.METADATA
                return AuditVerdict(level, self.omit_stages | rule.omit_stages)
        return NOTHING
