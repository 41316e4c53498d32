"""The audit policy: its rules, its file format, and the default that applies without a file.

The first rule that matches applies, as in kube-apiserver. Bodies of `NEVER_BODIES` are never recorded.

The default omits beats, status reports, events, access reviews, and reads of anything but Secrets and tokens. To record these,
write a policy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from hub.api.auditrecords import AuditLevel, Stage
from machinery.apiserver.access import Attributes
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError
from machinery.identity import ALL_CLUSTERS_GROUP
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.settings import problem_of

NEVER_BODIES = frozenset(
    ("secrets", "serviceaccounts/token", "tokenreviews", "bootstrapcredentials", "tokencredentialrequests")
)
"""Resources (with their subresource) that hold secrets or tokens, in any group."""


STAGES = ("RequestReceived", *(stage.value for stage in Stage if stage is not Stage.DROPPED))


def _stages(names: Any) -> frozenset[Stage]:
    if any(name not in STAGES for name in (names if isinstance(names, list | None) else (names,)) or ()):
        raise ValueError(f"must be of {', '.join(STAGES)}")
    return frozenset(stage for stage in Stage if stage.value in (names or ()))


def _group(name: str) -> str:
    if "/" in name:
        raise ValueError('must be a group without its version, such as "cluster.example.io"')
    return name


def _path(path: str) -> str:
    if path != "*" and (not path.startswith("/") or "*" in path[:-1]):
        raise ValueError(f'"{path}" must begin with "/", and "*" may only be its end')
    return path


def _some(rules: "tuple[AuditRule, ...]") -> "tuple[AuditRule, ...]":
    if not rules:
        raise ValueError("at least one rule is needed, such as `- level: Metadata`")
    return rules


class _PolicyPart(BaseModel):
    """A part of the policy file, with the field names of Kubernetes. A null value counts as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, content: Any) -> Any:
        return {name: value for name, value in content.items() if value is not None} if isinstance(content, dict) else content


Texts = tuple[StrictStr, ...]
Stages = Annotated[frozenset[Stage], BeforeValidator(_stages)]


class GroupResources(_PolicyPart):
    """Resources of an API group: `leases`, `managedclusters/status`, `*/status`, `managedclusters/*`, `*`. Empty: all."""

    group: Annotated[StrictStr, AfterValidator(_group)] = ""
    resources: Texts = ()
    names: Texts = Field(default=(), alias="resourceNames")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.names and not self.resources:
            raise ValueError("resourceNames need resources")
        return self

    def match(self, attributes: Attributes) -> bool:
        if attributes.group != self.group:
            return False
        if not self.resources:
            return True
        return (not self.names or attributes.name in self.names) and any(
            _is(resource, attributes) for resource in self.resources
        )


def _is(pattern: str, attributes: Attributes) -> bool:
    if pattern in ("*", _combined(attributes)):
        return True
    resource, slash, part = pattern.partition("/")
    if not slash:
        return False
    return (resource == "*" and part == attributes.subresource) or (part == "*" and resource == attributes.resource)


def _combined(attributes: Attributes) -> str:
    return f"{attributes.resource}/{attributes.subresource}" if attributes.subresource else attributes.resource


class AuditRule(_PolicyPart):
    """Matches a request if all fields match. An empty field matches everything."""

    level: AuditLevel
    users: Texts = ()
    groups: Texts = Field(default=(), alias="userGroups")
    verbs: Texts = ()
    resources: tuple[GroupResources, ...] = ()
    namespaces: Texts = ()
    paths: tuple[Annotated[StrictStr, AfterValidator(_path)], ...] = Field(default=(), alias="nonResourceURLs")
    omit_stages: Stages = Field(default=frozenset(), alias="omitStages")
    omit_managed_fields: Any = Field(default=None, alias="omitManagedFields")
    """Accepted for compatibility, without effect: records contain no managed fields."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.paths and (self.resources or self.namespaces):
            raise ValueError("nonResourceURLs cannot be combined with resources or namespaces")
        return self

    def match(self, actor: Actor, attributes: Attributes) -> bool:
        if (self.users and actor.user not in self.users) or (self.verbs and attributes.verb not in self.verbs):
            return False
        if self.groups and not any(group in self.groups for group in actor.groups):
            return False
        if self.resources or self.namespaces:
            if not attributes.resource or (self.namespaces and attributes.namespace not in self.namespaces):
                return False
            return not self.resources or any(resources.match(attributes) for resources in self.resources)
        if not self.paths:
            return True
        asked = "" if attributes.resource else attributes.path
        return any(path == asked or (path.endswith("*") and asked.startswith(path[:-1])) for path in self.paths if asked)


@dataclass(frozen=True, slots=True)
class RequestAuditConfig:
    """What the policy records for one request: the level, and the stages without a record."""

    level: AuditLevel
    omit_stages: frozenset[Stage] = frozenset()

    def records(self, stage: Stage) -> bool:
        return self.level is not AuditLevel.NONE and stage not in self.omit_stages

    @property
    def request_body(self) -> bool:
        return self.level in (AuditLevel.REQUEST, AuditLevel.REQUEST_RESPONSE)

    @property
    def response_body(self) -> bool:
        return self.level is AuditLevel.REQUEST_RESPONSE


NOTHING = RequestAuditConfig(AuditLevel.NONE)


class AuditPolicy(_PolicyPart):
    """A policy file. The first rule that matches a request applies. `omit_stages`: stages that no rule records."""

    api_version: Literal["audit.k8s.io/v1"] = Field(alias="apiVersion")
    kind: Literal["Policy"]
    metadata: Any = None
    rules: Annotated[tuple[AuditRule, ...], AfterValidator(_some)]
    omit_stages: Stages = Field(default=frozenset(), alias="omitStages")
    omit_managed_fields: Any = Field(default=None, alias="omitManagedFields")

    def evaluate(self, actor: Actor, attributes: Attributes) -> RequestAuditConfig:
        """Returns what to record; NOTHING if no rule matches. `actor`: the authenticated actor, not the impersonated one."""
        for rule in self.rules:
            if rule.match(actor, attributes):
                level = rule.level
                if level in (AuditLevel.REQUEST, AuditLevel.REQUEST_RESPONSE) and _combined(attributes) in NEVER_BODIES:
                    level = AuditLevel.METADATA
                return RequestAuditConfig(level, self.omit_stages | rule.omit_stages)
        return NOTHING


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
    try:
        return AuditPolicy.model_validate(content)
    except ValidationError as error:
        entries = error.errors(include_url=False, include_input=False)
    count = "one problem" if len(entries) == 1 else f"{len(entries)} problems"
    raise InvalidError(
        "\n".join([f"{source} has {count}:", *(f"  - {_place(*entry['loc'])}: {_problem(entry)}" for entry in entries)])
    )


def _place(first: int | str = "the file", *rest: int | str) -> str:
    return str(first) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _problem(entry: ErrorDetails) -> str:
    own = {"extra_forbidden": "there is no such field", "model_type": "must be a mapping"}
    return own.get(entry["type"]) or problem_of(entry)


def default_policy(group_suffix: str) -> AuditPolicy:
    return parse_policy(boundedyaml.load(_DEFAULT.replace("SUFFIX", group_suffix).encode()), "the default audit policy")


_DEFAULT = """
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
# secrets and tokens, all verbs
- level: Metadata
  resources:
  - resources: [secrets, serviceaccounts/token]
  - {group: authentication.k8s.io, resources: [tokenreviews]}
# other reads
- level: None
  verbs: [get, list, watch, head, options]
# access reviews change nothing
- level: None
  resources: [{group: authorization.k8s.io}, {group: authentication.k8s.io, resources: [selfsubjectreviews]}]
# signs of life: renewals of leases, reports of agents, events
- level: None
  verbs: [update, patch]
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: None
  verbs: [update, patch]
  userGroups: ["GROUP"]
  resources: [{group: cluster.SUFFIX, resources: [managedclusters/status]}, {group: addon.SUFFIX, resources: ["*/status"]}]
- level: None
  resources: [{resources: [events]}, {group: events.k8s.io}]
# permissions, acceptance and approval: with the request body, to show what was granted
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: rbac.authorization.k8s.io
  - group: cluster.SUFFIX
  - {group: certificates.k8s.io, resources: [certificatesigningrequests/approval]}
# all other changes
- level: Metadata
""".replace("GROUP", ALL_CLUSTERS_GROUP)
