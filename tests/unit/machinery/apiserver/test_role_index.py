"""Roles and bindings by subject: who gets what from which binding, and what is gone when one goes."""

from typing import Any

import pytest

from machinery.apiserver.access import Attributes
from machinery.apiserver.rbac import Rule
from machinery.apiserver.role_index import RoleIndex
from machinery.apiserver.storage import Actor, Key

READ_PODS = {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}
BOB = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}
TEAM = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "team"}
ROBOT = {"kind": "ServiceAccount", "name": "robot", "namespace": "home"}
GET = Attributes("get", "", "", "v1", "pods", name="x")
GET_HOME = Attributes("get", "", "", "v1", "pods", namespace="home", name="x")
GET_AWAY = Attributes("get", "", "", "v1", "pods", namespace="away", name="x")


def binding(*subjects: dict[str, str], kind: str = "ClusterRole", name: str = "reader") -> dict[str, Any]:
    return {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}, "subjects": list(subjects)}


def with_cluster_role() -> RoleIndex:
    index = RoleIndex()
    index.put("clusterroles", Key("", "reader"), READ_PODS)
    return index


@pytest.mark.parametrize(
    ("actor", "reason"),
    [
        (Actor("bob"), 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to User "bob"'),
        (Actor("eve", ("team",)), 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to Group "team"'),
        (
            Actor("system:serviceaccount:home:robot"),
            'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to ServiceAccount "robot/home"',
        ),
    ],
)
def test_a_cluster_role_binding_counts_everywhere_for_each_of_its_subjects(actor: Actor, reason: str) -> None:
    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "b"), binding(BOB, TEAM, ROBOT))

    for question in (GET, GET_HOME, GET_AWAY):
        decision = index.decide(actor, question)
        assert (decision.allowed, decision.reason) == (True, reason)


@pytest.mark.parametrize(
    "actor", [Actor("team"), Actor("bobby"), Actor("eve", ("bob",)), Actor("robot"), Actor("system:serviceaccount:away:robot")]
)
def test_names_count_whole_and_in_their_kind(actor: Actor) -> None:
    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "b"), binding(BOB, TEAM, ROBOT))

    decision = index.decide(actor, GET)
    assert (decision.allowed, decision.reason) == (False, "")


def test_a_role_binding_counts_in_its_namespace_alone() -> None:
    index = with_cluster_role()
    index.put("rolebindings", Key("home", "b"), binding(BOB))

    assert index.decide(Actor("bob"), GET_HOME).reason == (
        'RBAC: allowed by RoleBinding "b/home" of ClusterRole "reader" to User "bob"'
    )
    assert not index.decide(Actor("bob"), GET_AWAY).allowed
    assert not index.decide(Actor("bob"), GET).allowed


def test_a_role_is_looked_for_in_the_namespace_of_its_binding() -> None:
    index = RoleIndex()
    index.put("roles", Key("away", "reader"), READ_PODS)
    index.put("rolebindings", Key("home", "b"), binding(BOB, kind="Role"))

    decision = index.decide(Actor("bob"), GET_HOME)
    assert (decision.allowed, decision.reason) == (False, 'RBAC: role.rbac.authorization.k8s.io "reader" not found')

    index.put("roles", Key("home", "reader"), READ_PODS)
    assert index.decide(Actor("bob"), GET_HOME).allowed


def test_a_service_account_of_no_namespace_is_that_of_the_binding() -> None:
    index = with_cluster_role()
    index.put("rolebindings", Key("home", "b"), binding({"kind": "ServiceAccount", "name": "robot"}))
    index.put("clusterrolebindings", Key("", "b"), binding({"kind": "ServiceAccount", "name": "robot"}))

    assert index.decide(Actor("system:serviceaccount:home:robot"), GET_HOME).allowed
    assert not index.decide(Actor("system:serviceaccount:home:robot"), GET).allowed


def test_a_binding_to_nothing_is_told_and_hides_no_other() -> None:
    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "a"), binding(BOB, name="gone"))
    index.put("clusterrolebindings", Key("", "c"), binding(BOB, name="lost"))

    why = '"gone" not found, clusterrole.rbac.authorization.k8s.io "lost" not found'
    assert index.decide(Actor("bob"), GET).reason == f"RBAC: [clusterrole.rbac.authorization.k8s.io {why}]"

    index.put("clusterrolebindings", Key("", "d"), binding(BOB))
    assert index.decide(Actor("bob"), GET).allowed


def test_what_changes_counts_at_once_and_what_goes_is_gone() -> None:
    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "b"), binding(BOB, TEAM))
    index.put("clusterrolebindings", Key("", "b"), binding(TEAM))
    assert not index.decide(Actor("bob"), GET).allowed
    assert index.decide(Actor("eve", ("team",)), GET).allowed

    index.put("clusterroles", Key("", "reader"), {"rules": []})
    assert not index.decide(Actor("eve", ("team",)), GET).allowed

    index.put("clusterroles", Key("", "reader"), READ_PODS)
    index.put("clusterrolebindings", Key("", "b"), None)
    assert not index.decide(Actor("eve", ("team",)), GET).allowed
    assert len(index) == 0


def test_what_somebody_holds_is_all_of_it_with_what_is_missing() -> None:
    index = with_cluster_role()
    index.put("roles", Key("home", "more"), {"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]})
    index.put("clusterrolebindings", Key("", "b"), binding(BOB))
    index.put("rolebindings", Key("home", "b"), binding(TEAM, kind="Role", name="more"))
    index.put("rolebindings", Key("home", "c"), binding(BOB, kind="Role", name="none"))
    bob = Actor("bob", ("team",))

    reads, everything = Rule(("get",), ("",), ("pods",)), Rule(("*",), ("*",), ("*",))
    assert index.held(bob, "").rules == (reads,)
    held = index.held(bob, "home")
    assert held.rules == (reads, everything)
    assert held.errors == ('role.rbac.authorization.k8s.io "none" not found',)
