"""The audit policy: its rules, its file format, and the default that applies without a file.

Rules match as in kube-apiserver. Bodies of `NEVER_BODIES` are never recorded.

It leaves out signs of life: beats, status reports, events and access reviews. To record them, write a policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hub.api.auditrecords import AuditLevel, Stage
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError
from machinery.identity import ALL_CLUSTERS_GROUP
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError

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


API_VERSION, KIND = "audit.k8s.io/v1", "Policy"
TOP = frozenset(("apiVersion", "kind", "metadata", "omitStages", "omitManagedFields", "rules"))
OF_RULE = frozenset(
    ("level", "users", "userGroups", "verbs", "resources", "namespaces", "nonResourceURLs", "omitStages", "omitManagedFields")
)
OF_RESOURCES = frozenset(("group", "resources", "resourceNames"))
STAGES = ("RequestReceived", *(stage.value for stage in Stage if stage is not Stage.DROPPED))
T = TypeVar("T")


def read_policy(path: Path) -> AuditPolicy:
    """Reads the policy file. Raises InvalidError with every problem and its place."""
    try:
        content = boundedyaml.load(path.read_bytes())
    except OSError as error:
        raise InvalidError(f"the audit policy {path} cannot be read: {error.strerror or error}") from None
    except YamlError as error:
        raise InvalidError(f"the audit policy {path} is not YAML: {error}") from None
    return parse_policy(content, f"the audit policy {path}")


def parse_policy(content: Any, source: str) -> AuditPolicy:
    """Parses a YAML value. Raises InvalidError with every problem and its place."""
    reading = _Reading()
    policy = reading.policy(content)
    if reading.problems:
        count = "one problem" if len(reading.problems) == 1 else f"{len(reading.problems)} problems"
        raise InvalidError("\n".join([f"{source} has {count}:", *(f"  - {problem}" for problem in reading.problems)]))
    return policy


@dataclass(slots=True)
class _Reading:
    """Parses a policy and collects problems."""

    problems: list[str] = field(default_factory=list)

    def policy(self, content: Any) -> AuditPolicy:
        top = self._mapping(content, "the file", TOP)
        for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
            if top.get(name) != expected:
                self.problems.append(f'{name}: must be "{expected}"')
        rules = self._list(top.get("rules"), "rules")
        if not rules:
            self.problems.append("rules: at least one rule is needed, such as `- level: Metadata`")
        read = tuple(self._rule(rule, f"rules[{number}]") for number, rule in enumerate(rules))
        return AuditPolicy(read, self._stages(top.get("omitStages"), "omitStages"))

    def _rule(self, content: Any, place: str) -> AuditRule:
        rule = self._mapping(content, place, OF_RULE)
        resources = self._list(rule.get("resources"), f"{place}.resources")
        namespaces, paths = (self._words(rule, name, place) for name in ("namespaces", "nonResourceURLs"))
        if paths and (resources or namespaces):
            self.problems.append(f"{place}: nonResourceURLs cannot stand beside resources or namespaces")
        for number, path in enumerate(paths):
            if path != "*" and (not path.startswith("/") or "*" in path[:-1]):
                where = f"{place}.nonResourceURLs[{number}]"
                self.problems.append(f'{where}: "{path}" must begin with "/", and "*" may only be its end')
        return AuditRule(
            level=self._level(rule.get("level"), f"{place}.level"),
            users=self._words(rule, "users", place),
            groups=self._words(rule, "userGroups", place),
            verbs=self._words(rule, "verbs", place),
            resources=tuple(self._resources(each, f"{place}.resources[{n}]") for n, each in enumerate(resources)),
            namespaces=namespaces,
            paths=paths,
            omit_stages=self._stages(rule.get("omitStages"), f"{place}.omitStages"),
        )

    def _resources(self, content: Any, place: str) -> GroupResources:
        entry = self._mapping(content, place, OF_RESOURCES)
        group = entry.get("group", "")
        if not isinstance(group, str) or "/" in group:
            self.problems.append(f'{place}.group: must be a group without its version, such as "cluster.example.io"')
            group = ""
        read = GroupResources(group, self._words(entry, "resources", place), self._words(entry, "resourceNames", place))
        if read.names and not read.resources:
            self.problems.append(f"{place}.resourceNames: need resources to be names of")
        return read

    def _level(self, value: Any, place: str) -> AuditLevel:
        try:
            return AuditLevel(value)
        except ValueError:
            self.problems.append(f"{place}: must be one of {', '.join(AuditLevel)}")
            return AuditLevel.NONE

    def _stages(self, value: Any, place: str) -> frozenset[Stage]:
        names = self._list(value, place)
        if any(name not in STAGES for name in names):
            self.problems.append(f"{place}: must be of {', '.join(STAGES)}")
        return frozenset(stage for stage in Stage if stage.value in names and stage is not Stage.DROPPED)

    def _words(self, holder: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
        words = self._list(holder.get(name), f"{place}.{name}")
        if not all(isinstance(word, str) for word in words):
            self.problems.append(f"{place}.{name}: must be a list of strings")
            return ()
        return tuple(words)

    def _list(self, value: Any, place: str) -> Sequence[Any]:
        if value is None or isinstance(value, list):
            return value or []
        self.problems.append(f"{place}: must be a list")
        return []

    def _mapping(self, value: Any, place: str, known: frozenset[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.problems.append(f"{place}: must be a mapping")
            return {}
        self.problems += [f'{place}: there is no field "{name}"' for name in value if name not in known]
        return value


RBAC = "rbac.authorization.k8s.io"
READS = ("get", "list", "watch", "head", "options")
CHANGES = ("create", "update", "patch", "delete", "deletecollection")


def default_policy(group_suffix: str) -> AuditPolicy:
    none, clusters, addons = AuditLevel.NONE, f"cluster.{group_suffix}", f"addon.{group_suffix}"
    report = ("update", "patch")
    rules = (
        # secrets and tokens, all verbs
        _rule(AuditLevel.METADATA, ("", "secrets", "serviceaccounts/token"), ("authentication.k8s.io", "tokenreviews")),
        # other reads
        _rule(none, verbs=READS),
        # access reviews change nothing
        _rule(none, ("authorization.k8s.io",), ("authentication.k8s.io", "selfsubjectreviews")),
        # signs of life: renewals of leases, reports of agents, events
        _rule(none, ("coordination.k8s.io", "leases"), verbs=report),
        _rule(none, (clusters, "managedclusters/status"), (addons, "*/status"), groups=(ALL_CLUSTERS_GROUP,), verbs=report),
        _rule(none, ("", "events"), ("events.k8s.io",)),
        # permissions, acceptance and approval: with the request body, to show what was granted
        _rule(
            AuditLevel.REQUEST,
            (RBAC,),
            (clusters,),
            ("certificates.k8s.io", "certificatesigningrequests/approval"),
            verbs=CHANGES,
        ),
        # all other changes
        _rule(AuditLevel.METADATA),
    )
    return AuditPolicy(rules)


def _rule(
    level: AuditLevel, *resources: tuple[str, ...], groups: tuple[str, ...] = (), verbs: tuple[str, ...] = ()
) -> AuditRule:
    """`resources`: each a group and its resources; without these all of the group."""
    matched = tuple(GroupResources(group, tuple(names)) for group, *names in resources)
    return AuditRule(level=level, resources=matched, groups=groups, verbs=verbs)
