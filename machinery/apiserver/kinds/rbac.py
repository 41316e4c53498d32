"""rbac.authorization.k8s.io: ClusterRole, ClusterRoleBinding, Role and RoleBinding, with Kubernetes' validation."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from machinery.apiserver.authz.rbac import GROUP, SERVICE_ACCOUNT, USER, USER_GROUP
from machinery.apiserver.kinds.declaration import Cell, builtin
from machinery.apiserver.resource import CREATED_DESCRIPTION, ApiGroup, Column, TableRow
from machinery.apiserver.write.metadata import subdomain_error
from machinery.errors import BadRequestError, Cause, invalid_value, not_supported, required
from machinery.meta.objects import Document
from machinery.meta.selectors import selector_of


def rbac_name(name: str) -> str | None:
    """Return why this is not a valid name of a role or binding; None if it is one. Any path segment is valid."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    wrong = [letter for letter in "/%" if letter in name]
    return f"may not contain '{wrong[0]}'" if wrong else None


def _role_violations(new: Document, _old: Document | None, *, namespaced: bool) -> Iterator[Cause]:
    for index, rule in enumerate(new.get("rules") or ()):
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


def _cluster_role_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    yield from _role_violations(new, old, namespaced=False)
    if new.get("aggregationRule") is None:
        return
    field, selectors = "aggregationRule.clusterRoleSelectors", new["aggregationRule"].get("clusterRoleSelectors") or ()
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
        if name and (why := subdomain_error(name)):
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


def completed_binding(new: Document, *_: object) -> Document:
    """Return the binding with default API groups for its role and subjects."""
    completed = {**new, "roleRef": {"apiGroup": GROUP, **_without_empty(new.get("roleRef") or {})}}
    if new.get("subjects"):
        completed["subjects"] = [_completed_subject(subject) for subject in new["subjects"]]
    return completed


def _without_empty(reference: Mapping[str, Any]) -> dict[str, Any]:
    return {part: value for part, value in reference.items() if value != ""}


def _completed_subject(subject: Mapping[str, Any]) -> dict[str, Any]:
    given = _without_empty(subject)
    return {"apiGroup": GROUP, **given} if given.get("kind") in (USER, USER_GROUP) else given


def _role_cell(row: TableRow) -> str:
    reference = row.document.get("roleRef", {})
    return f"{reference.get('kind')}/{reference.get('name')}"


def _subjects_cell(kind: str) -> Cell:
    def cell(row: TableRow) -> str:
        subjects = [subject for subject in row.document.get("subjects") or () if subject.get("kind") == kind]
        if kind == SERVICE_ACCOUNT:
            return ", ".join(f"{subject.get('namespace', '')}/{subject['name']}" for subject in subjects)
        return ", ".join(subject["name"] for subject in subjects)

    return cell


CREATED_AT = Column(
    "Created At", lambda row: row.document["metadata"].get("creationTimestamp"), type="date", description=CREATED_DESCRIPTION
)


_role = partial(builtin, name_rule=rbac_name, columns=(CREATED_AT,))
_binding = partial(
    builtin,
    cells={"Role": _role_cell, **{f"{kind}s": _subjects_cell(kind) for kind in (USER, USER_GROUP, SERVICE_ACCOUNT)}},
    name_rule=rbac_name,
    prepare_create=completed_binding,
    prepare_update=completed_binding,
)
CLUSTER_ROLE = _role(f"clusterroles.{GROUP}", validate=_cluster_role_violations)
ROLE = _role(f"roles.{GROUP}", validate=partial(_role_violations, namespaced=True))
CLUSTER_ROLE_BINDING = _binding(f"clusterrolebindings.{GROUP}", validate=partial(_binding_violations, namespaced=False))
ROLE_BINDING = _binding(f"rolebindings.{GROUP}", validate=partial(_binding_violations, namespaced=True))
ROLES_AND_BINDINGS = (CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING)
RBAC = ApiGroup(GROUP, ROLES_AND_BINDINGS)
