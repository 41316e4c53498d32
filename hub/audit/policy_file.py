"""Strict parser of the policy file: `audit.k8s.io/v1` Policy in YAML, as in Kubernetes. It reports all problems at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hub.api.auditrecords import AuditLevel, Stage
from hub.audit.policy import AuditPolicy, AuditRule, GroupResources
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError

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
