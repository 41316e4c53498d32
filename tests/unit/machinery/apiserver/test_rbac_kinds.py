"""What a role or binding must be like, in Kubernetes' words."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from machinery.apiserver.resource import Resource, Row
from machinery.apiserver.storage import Actor
from machinery.apiserver.writes import Write
from machinery.errors import InvalidError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULE = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
REFERENCE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
BOB = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}


def created(resource: Resource, document: Mapping[str, Any], name: str = "x") -> dict[str, Any]:
    namespace = {"namespace": "home"} if resource.namespaced else {}
    return Write(resource, Actor("admin"), NOW).created({"metadata": {"name": name, **namespace}, **document})


@pytest.mark.parametrize(
    ("resource", "document", "told"),
    [
        (
            CLUSTER_ROLE,
            {"rules": [{**RULE, "verbs": []}]},
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
        (
            CLUSTER_ROLE,
            {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}]},
            "rules cannot apply to both regular resources and non-resource URLs",
        ),
        (
            ROLE,
            {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]},
            "namespaced rules cannot apply to non-resource URLs",
        ),
        (
            CLUSTER_ROLE,
            {"rules": [RULE, {"verbs": ["get"], "apiGroups": [""]}]},
            "rules[1].resources: Required value: resource rules must supply at least one resource",
        ),
        (
            CLUSTER_ROLE,
            {"aggregationRule": {"clusterRoleSelectors": []}},
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ),
        (
            CLUSTER_ROLE,
            {"aggregationRule": {"clusterRoleSelectors": [{"matchExpressions": [{"key": "a", "operator": "Near"}]}]}},
            '"Near" is not a valid label selector operator',
        ),
        (CLUSTER_ROLE_BINDING, {"roleRef": {**REFERENCE, "kind": "Role"}}, 'supported values: "ClusterRole"'),
        (ROLE_BINDING, {"roleRef": {**REFERENCE, "kind": "Rule"}}, 'supported values: "Role", "ClusterRole"'),
        (ROLE_BINDING, {"roleRef": {**REFERENCE, "name": ""}}, "roleRef.name: Required value"),
        (ROLE_BINDING, {"roleRef": {**REFERENCE, "apiGroup": "v1"}}, 'roleRef.apiGroup: Unsupported value: "v1"'),
        (ROLE_BINDING, {"roleRef": {**REFERENCE, "name": "a/b"}}, "may not contain '/'"),
        (ROLE_BINDING, {"roleRef": REFERENCE, "subjects": [{**BOB, "name": ""}]}, "subjects[0].name: Required value"),
        (ROLE_BINDING, {"roleRef": REFERENCE, "subjects": [{**BOB, "kind": "Robot"}]}, "subjects[0].kind: Unsupported value"),
        (
            CLUSTER_ROLE_BINDING,
            {"roleRef": REFERENCE, "subjects": [{"kind": "ServiceAccount", "name": "robot"}]},
            "subjects[0].namespace: Required value",
        ),
        (
            ROLE_BINDING,
            {"roleRef": REFERENCE, "subjects": [{**BOB, "kind": "ServiceAccount"}]},
            "subjects[0].apiGroup: Unsupported value",
        ),
        (
            ROLE_BINDING,
            {"roleRef": REFERENCE, "subjects": [{"kind": "ServiceAccount", "name": "A B"}]},
            "subjects[0].name: Invalid",
        ),
    ],
)
def test_what_breaks_a_rule_is_refused(resource: Resource, document: Mapping[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as refused:
        created(resource, document)
    assert told in refused.value.message


@pytest.mark.parametrize("name", ["system:node", "Upper", "a b", "x.y:z"])
def test_a_role_may_have_any_name_that_fits_into_a_path(name: str) -> None:
    assert created(CLUSTER_ROLE, {"rules": [RULE]}, name)["metadata"]["name"] == name


@pytest.mark.parametrize("name", [".", "..", "a/b", "a%b"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidError):
        created(CLUSTER_ROLE, {"rules": [RULE]}, name)


def test_api_groups_of_a_binding_are_filled_in() -> None:
    subjects = [{"kind": "User", "name": "bob"}, {"kind": "ServiceAccount", "name": "robot", "namespace": "home"}]
    binding = created(ROLE_BINDING, {"roleRef": {"kind": "ClusterRole", "name": "viewer"}, "subjects": subjects})

    assert binding["roleRef"] == REFERENCE
    assert binding["subjects"] == [BOB, subjects[1]]


def test_a_binding_shows_its_role_and_its_subjects_by_kind() -> None:
    robot = {"kind": "ServiceAccount", "name": "robot", "namespace": "home"}
    eve = {**BOB, "name": "eve"}
    row = Row(
        {"metadata": {}, "roleRef": REFERENCE, "subjects": [BOB, robot, eve, {**BOB, "kind": "Group", "name": "team"}]}, NOW
    )
    columns = {column.name: column for column in ROLE_BINDING.columns or ()}

    shown = {name: column.cell(row) for name, column in columns.items() if name != "Age"}
    assert shown == {"Role": "ClusterRole/viewer", "Users": "bob, eve", "Groups": "team", "ServiceAccounts": "home/robot"}
    assert [name for name, column in columns.items() if column.priority == 0] == ["Role", "Age"]
