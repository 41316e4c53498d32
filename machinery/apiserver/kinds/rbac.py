"""rbac.authorization.k8s.io: ClusterRole, ClusterRoleBinding, Role and RoleBinding, with Kubernetes' validation.

The escalation checks are in `machinery.apiserver.authz.escalation`.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from machinery.apiserver.authz.rules import GROUP, SERVICE_ACCOUNT, USER, USER_GROUP
from machinery.apiserver.http.status_errors import invalid_value, not_supported, required
from machinery.apiserver.read.tables import AGE, CREATED_DESCRIPTION
from machinery.apiserver.resource import ApiGroup, Column, Resource, TableRow
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.write.metadata import subdomain
from machinery.errors import BadRequestError, Cause
from machinery.meta.selectors import selector_of

_TEXT: dict[str, Any] = {"type": "string"}
_TEXTS: dict[str, Any] = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
_RULES: dict[str, Any] = {
    "description": "Rules holds all the PolicyRules for this role.",
    "type": "array",
    "x-kubernetes-list-type": "atomic",
    "items": {
        "description": "PolicyRule holds information that describes a policy rule, but does not contain information about who "
        "the rule applies to or which namespace the rule applies to.",
        "type": "object",
        "properties": {
            "apiGroups": {**_TEXTS, "description": 'The API groups with the resources; "" is the core group, "*" all groups.'},
            "nonResourceURLs": {**_TEXTS, "description": "Partial URLs; * is allowed as the full, final step in the path."},
            "resourceNames": {**_TEXTS, "description": "A white list of names that the rule applies to; empty: all."},
            "resources": {**_TEXTS, "description": "Resources this rule applies to; '*' represents all resources."},
            "verbs": {**_TEXTS, "description": "Verbs that apply to all the resources; '*' represents all verbs."},
        },
    },
}
_SELECTOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "matchLabels": {"type": "object", "additionalProperties": _TEXT},
        "matchExpressions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["key", "operator"],
                "properties": {"key": _TEXT, "operator": _TEXT, "values": _TEXTS},
            },
        },
    },
}
_ROLE: dict[str, Any] = {
    "description": "Role is a namespaced, logical grouping of PolicyRules that can be referenced as a unit by a RoleBinding.",
    "type": "object",
    "properties": {"rules": _RULES},
}
_CLUSTER_ROLE: dict[str, Any] = {
    "description": "ClusterRole is a cluster level, logical grouping of PolicyRules that can be referenced as a unit by a "
    "RoleBinding or ClusterRoleBinding.",
    "type": "object",
    "properties": {
        "aggregationRule": {
            "description": "How to build the Rules for this ClusterRole; if it is set, the Rules are managed by the server.",
            "type": "object",
            "properties": {"clusterRoleSelectors": {"type": "array", "items": _SELECTOR, "x-kubernetes-list-type": "atomic"}},
        },
        "rules": _RULES,
    },
}
_BINDING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "roleRef": {
            "description": "The role that is granted. It cannot be changed.",
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"apiGroup": _TEXT, "kind": _TEXT, "name": _TEXT},
        },
        "subjects": {
            "description": "Subjects holds references to the objects the role applies to.",
            "type": "array",
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "x-kubernetes-map-type": "atomic",
                "properties": {"apiGroup": _TEXT, "kind": _TEXT, "name": _TEXT, "namespace": _TEXT},
            },
        },
    },
}


def rbac_name(name: str) -> str | None:
    """Why this is not a valid name of a role or binding: any path segment is valid."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    wrong = [letter for letter in "/%" if letter in name]
    return f"may not contain '{wrong[0]}'" if wrong else None


def _rule_violations(rules: Any, *, namespaced: bool) -> Iterator[Cause]:
    for index, rule in enumerate(rules or ()):
        field = f"rules[{index}]"
        if not rule.get("verbs"):
            yield required(f"{field}.verbs", "verbs must contain at least one value")
        if urls := rule.get("nonResourceURLs"):
            if namespaced:
                why = "namespaced rules cannot apply to non-resource URLs"
                yield invalid_value(f"{field}.nonResourceURLs", urls, why)
            if any(rule.get(part) for part in ("apiGroups", "resources", "resourceNames")):
                why = "rules cannot apply to both regular resources and non-resource URLs"
                yield invalid_value(f"{field}.nonResourceURLs", urls, why)
            continue
        if not rule.get("apiGroups"):
            yield required(f"{field}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield required(f"{field}.resources", "resource rules must supply at least one resource")


def _role_violations(new: Document, _old: Document | None) -> list[Cause]:
    return list(_rule_violations(new.get("rules"), namespaced=True))


def _cluster_role_violations(new: Document, _old: Document | None) -> list[Cause]:
    return [*_rule_violations(new.get("rules"), namespaced=False), *_aggregation_violations(new.get("aggregationRule"))]


def _aggregation_violations(rule: Mapping[str, Any] | None) -> Iterator[Cause]:
    if rule is None:
        return
    field, selectors = "aggregationRule.clusterRoleSelectors", rule.get("clusterRoleSelectors") or ()
    if not selectors:
        yield required(field, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for index, selector in enumerate(selectors):
        try:
            selector_of(selector)
        except BadRequestError as error:
            yield invalid_value(f"{field}[{index}]", selector, error.message)


def _binding_violations(new: Document, old: Document | None, *, namespaced: bool) -> Iterator[Cause]:
    reference = new.get("roleRef") or {}
    if reference.get("apiGroup") != GROUP:
        yield not_supported("roleRef.apiGroup", reference.get("apiGroup", ""), (GROUP,))
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    if reference.get("kind") not in kinds:
        yield not_supported("roleRef.kind", reference.get("kind", ""), kinds)
    if not reference.get("name"):
        yield required("roleRef.name")
    elif why := rbac_name(reference["name"]):
        yield invalid_value("roleRef.name", reference["name"], why)
    for index, subject in enumerate(new.get("subjects") or ()):
        yield from _subject_violations(subject, f"subjects[{index}]", namespaced=namespaced)
    if old is not None and reference != old.get("roleRef"):
        shown = {part[0].upper() + part[1:]: reference.get(part, "") for part in ("kind", "name")}
        yield invalid_value("roleRef", {"APIGroup": reference.get("apiGroup", ""), **shown}, "cannot change roleRef")


def _subject_violations(subject: Mapping[str, Any], field: str, *, namespaced: bool) -> Iterator[Cause]:
    name, kind, group = subject.get("name", ""), subject.get("kind", ""), subject.get("apiGroup", "")
    if not name:
        yield required(f"{field}.name")
    if kind == SERVICE_ACCOUNT:
        if name and (why := subdomain(name)):
            yield invalid_value(f"{field}.name", name, why)
        if group:
            yield not_supported(f"{field}.apiGroup", group, ("",))
        if not namespaced and not subject.get("namespace"):
            yield required(f"{field}.namespace")
    elif kind in (USER, USER_GROUP):
        if group != GROUP:
            yield not_supported(f"{field}.apiGroup", group, (GROUP,))
    else:
        yield not_supported(f"{field}.kind", kind, (SERVICE_ACCOUNT, USER, USER_GROUP))


def _role_binding_violations(new: Document, old: Document | None) -> list[Cause]:
    return list(_binding_violations(new, old, namespaced=True))


def _cluster_role_binding_violations(new: Document, old: Document | None) -> list[Cause]:
    return list(_binding_violations(new, old, namespaced=False))


def completed_binding(new: Document) -> Document:
    """The binding with default API groups of its role and subjects."""
    completed = {**new, "roleRef": {"apiGroup": GROUP, **_without_empty(new.get("roleRef") or {})}}
    if new.get("subjects"):
        completed["subjects"] = [_completed_subject(subject) for subject in new["subjects"]]
    return completed


def _without_empty(reference: Mapping[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in reference.items() if value != ""}


def _completed_subject(subject: Mapping[str, Any]) -> dict[str, Any]:
    given = _without_empty(subject)
    return {"apiGroup": GROUP, **given} if given.get("kind") in (USER, USER_GROUP) else given


def _new_binding(new: Document, _actor: Actor, _now: datetime) -> Document:
    return completed_binding(new)


def _changed_binding(new: Document, _old: Document, _actor: Actor, _now: datetime) -> Document:
    return completed_binding(new)


def _role_cell(row: TableRow) -> str:
    reference = row.document.get("roleRef", {})
    return f"{reference.get('kind')}/{reference.get('name')}"


def _subjects(kind: str) -> Column:
    def cell(row: TableRow) -> str:
        subjects = [subject for subject in row.document.get("subjects") or () if subject.get("kind") == kind]
        if kind == SERVICE_ACCOUNT:
            return ", ".join(f"{subject.get('namespace', '')}/{subject['name']}" for subject in subjects)
        return ", ".join(subject["name"] for subject in subjects)

    return Column(f"{kind}s", cell, description=f"{kind}s in the roleBinding", priority=1)


CREATED_AT = Column(
    "Created At",
    lambda row: row.document["metadata"].get("creationTimestamp"),
    type="date",
    description=CREATED_DESCRIPTION,
)
_BINDING_COLUMNS = (
    Column("Role", _role_cell, description="RoleRef can reference a role; if it cannot be resolved, nothing is granted."),
    AGE,
    _subjects(USER),
    _subjects(USER_GROUP),
    _subjects(SERVICE_ACCOUNT),
)


def _resource(name: str, kind: str, **parts: Any) -> Resource:
    shared: dict[str, Any] = {"custom": False, "unconditional_update": True, "name_rule": rbac_name}
    return Resource(group=GROUP, version="v1", name=name, kind=kind, **shared, **parts)


CLUSTER_ROLE = _resource(
    "clusterroles", "ClusterRole", schema=_CLUSTER_ROLE, validate=_cluster_role_violations, columns=(CREATED_AT,)
)
ROLE = _resource("roles", "Role", namespaced=True, schema=_ROLE, validate=_role_violations, columns=(CREATED_AT,))
CLUSTER_ROLE_BINDING = _resource(
    "clusterrolebindings",
    "ClusterRoleBinding",
    schema={**_BINDING, "description": "ClusterRoleBinding references a ClusterRole, but does not contain it."},
    validate=_cluster_role_binding_violations,
    prepare_create=_new_binding,
    prepare_update=_changed_binding,
    columns=_BINDING_COLUMNS,
)
ROLE_BINDING = _resource(
    "rolebindings",
    "RoleBinding",
    namespaced=True,
    schema={**_BINDING, "description": "RoleBinding references a role, but does not contain it."},
    validate=_role_binding_violations,
    prepare_create=_new_binding,
    prepare_update=_changed_binding,
    columns=_BINDING_COLUMNS,
)
ROLES_AND_BINDINGS = (CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING)
RBAC = ApiGroup(GROUP, ROLES_AND_BINDINGS)
