"""Nobody gives away what he does not have: writes of roles and bindings, by who makes them."""

from collections.abc import Mapping
from time import process_time
from typing import Any

import pytest

from machinery.apiserver.admission import Admission
from machinery.apiserver.escalation import MOST_LISTED, EscalationCheck
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from machinery.apiserver.rbac_authorizer import RbacAuthorizer, Roles
from machinery.apiserver.resource import Resource
from machinery.apiserver.role_index import RoleIndex
from machinery.apiserver.storage import Actor, GroupResource, Key
from machinery.errors import ForbiddenError, NotFoundError

RBAC = "rbac.authorization.k8s.io"
GET_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
LIST_PODS = {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}
EVERYTHING = [
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
]
ALICE = Actor("alice", ("team", "system:authenticated"))


class Fixed(Roles):
    """Roles that nobody follows."""

    def __init__(self, index: RoleIndex) -> None:
        self._index = index

    @property
    def index(self) -> RoleIndex:
        return self._index

    def check(self) -> None:
        return

    async def seen(self, resource: GroupResource, revision: int) -> None:
        del resource, revision


def rule(verb: str, resource: str, *names: str) -> dict[str, Any]:
    return {"verbs": [verb], "apiGroups": [RBAC], "resources": [resource], "resourceNames": list(names)}


def check(*rules: Mapping[str, Any], namespace: str = "") -> EscalationCheck:
    """For a world in which alice holds these rules, everywhere or in one namespace."""
    index = RoleIndex()
    subject = {"kind": "User", "apiGroup": RBAC, "name": "alice"}
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "alices"}
    index.put("clusterroles", Key("", "alices"), {"rules": list(rules)})
    index.put("clusterroles", Key("", "lister"), {"rules": [LIST_PODS]})
    index.put("roles", Key("home", "lister"), {"rules": [LIST_PODS]})
    kind = "rolebindings" if namespace else "clusterrolebindings"
    index.put(kind, Key(namespace, "alices"), {"roleRef": reference, "subjects": [subject]})
    return EscalationCheck(RbacAuthorizer(Fixed(index)))


def write(resource: Resource, new: Mapping[str, Any], old: Mapping[str, Any] | None = None, namespace: str = "") -> Admission:
    named = {"metadata": {"name": "x"}, **new}
    return Admission(resource.key, Key(namespace, "x"), named, old and {"metadata": {"name": "x"}, **old}, ALICE)


def bound(kind: str = "ClusterRole", name: str = "lister") -> dict[str, Any]:
    return {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": []}


def test_a_role_may_hold_what_its_writer_holds() -> None:
    check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [GET_PODS]}))


def test_a_role_that_holds_more_is_refused_in_kubernetes_words() -> None:
    with pytest.raises(ForbiddenError) as refused:
        check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [GET_PODS, LIST_PODS]}))

    assert refused.value.message == (
        'clusterroles.rbac.authorization.k8s.io "x" is forbidden: user "alice" (groups=["team" "system:authenticated"]) '
        'is attempting to grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["list"]}'
    )


@pytest.mark.parametrize(
    ("held", "refused"),
    [(rule("escalate", "clusterroles"), False), (rule("escalate", "roles"), True), (rule("bind", "clusterroles"), True)],
)
def test_whoever_may_escalate_writes_any_role(held: Mapping[str, Any], *, refused: bool) -> None:
    admission = write(CLUSTER_ROLE, {"rules": EVERYTHING})
    if refused:
        with pytest.raises(ForbiddenError):
            check(held)(admission)
    else:
        check(held)(admission)


def test_escalation_by_name_is_for_a_role_that_is_there() -> None:
    may = check(rule("escalate", "clusterroles", "x"))

    may(write(CLUSTER_ROLE, {"rules": [GET_PODS]}, {"rules": []}))
    with pytest.raises(ForbiddenError):
        may(write(CLUSTER_ROLE, {"rules": [GET_PODS]}))


def test_what_is_held_in_a_namespace_is_given_in_that_namespace_alone() -> None:
    at_home = check(GET_PODS, namespace="home")

    at_home(write(ROLE, {"rules": [GET_PODS]}, namespace="home"))
    for admission in (write(ROLE, {"rules": [GET_PODS]}, namespace="away"), write(CLUSTER_ROLE, {"rules": [GET_PODS]})):
        with pytest.raises(ForbiddenError):
            at_home(admission)


@pytest.mark.parametrize("old", [None, {"rules": [], "aggregationRule": {"clusterRoleSelectors": [{}]}}])
def test_only_who_holds_everything_may_aggregate(old: Mapping[str, Any] | None) -> None:
    new = {"rules": []} if old else {"rules": [], "aggregationRule": {"clusterRoleSelectors": [{}]}}

    check(*EVERYTHING)(write(CLUSTER_ROLE, new, old))
    with pytest.raises(ForbiddenError, match="must have cluster-admin privileges to use the aggregationRule"):
        check(GET_PODS)(write(CLUSTER_ROLE, new, old))


@pytest.mark.parametrize(
    "held", [LIST_PODS, rule("bind", "clusterroles"), rule("bind", "clusterroles", "lister"), EVERYTHING[0]]
)
@pytest.mark.parametrize("resource", [CLUSTER_ROLE_BINDING, ROLE_BINDING])
def test_a_role_is_bound_by_who_holds_it_or_may_bind_it(held: Mapping[str, Any], resource: Resource) -> None:
    namespace = "home" if resource.namespaced else ""

    check(held)(write(resource, bound(), namespace=namespace))
    with pytest.raises(ForbiddenError, match="attempting to grant RBAC permissions not currently held"):
        check(GET_PODS)(write(resource, bound(), namespace=namespace))


def test_the_right_to_bind_another_role_is_not_enough() -> None:
    with pytest.raises(ForbiddenError):
        check(rule("bind", "clusterroles", "other"))(write(CLUSTER_ROLE_BINDING, bound()))


def test_a_binding_to_a_role_that_is_not_there_needs_the_right_to_bind_it() -> None:
    admission = write(ROLE_BINDING, bound("Role", "later"), namespace="home")

    check(rule("bind", "roles", "later"))(admission)
    with pytest.raises(NotFoundError, match='"later" not found'):
        check(LIST_PODS)(admission)


def test_a_role_of_the_namespace_is_meant_by_a_binding_to_a_role() -> None:
    check(LIST_PODS)(write(ROLE_BINDING, bound("Role"), namespace="home"))
    with pytest.raises(NotFoundError):
        check(LIST_PODS)(write(ROLE_BINDING, bound("Role"), namespace="away"))


def test_who_only_lets_an_object_go_needs_nothing() -> None:
    old = {"rules": [LIST_PODS], "metadata": {"name": "x", "finalizers": ["a/b"]}}
    new = {"rules": [LIST_PODS], "metadata": {"name": "x"}}

    check()(write(CLUSTER_ROLE, new, old))
    with pytest.raises(ForbiddenError):
        check()(write(CLUSTER_ROLE, {**new, "metadata": {"name": "x", "labels": {"a": "b"}}}, old))


def test_system_masters_may_do_everything() -> None:
    master = Actor("root", ("system:masters",))
    admission = write(CLUSTER_ROLE, {"rules": EVERYTHING})

    check()(Admission(admission.resource, admission.key, admission.new, None, master))


def role_of(*rules: Mapping[str, Any]) -> Admission:
    document = {"metadata": {"name": "new"}, "rules": list(rules)}
    return Admission(GroupResource(RBAC, "clusterroles"), Key("", "new"), document, None, ALICE)


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(1_000)]


def test_a_rule_that_stands_for_billions_is_not_taken_apart() -> None:
    vast = {"verbs": names("v"), "apiGroups": names("g"), "resources": names("r")}
    began = process_time()
    with pytest.raises(ForbiddenError, match="its rules are 1000000000 permissions"):
        check(GET_PODS)(role_of(vast))
    assert process_time() - began < 5 * 0.1


def test_of_what_is_missing_the_first_hundred_are_told() -> None:
    with pytest.raises(ForbiddenError) as refused:
        check(GET_PODS)(role_of({"verbs": ["get"], "apiGroups": [""], "resources": names("r")}))
    assert refused.value.message.count("Resources:") == MOST_LISTED


def test_whoever_may_escalate_writes_as_much_as_he_likes() -> None:
    vast = {"verbs": names("v"), "apiGroups": names("g"), "resources": names("r")}
    check(rule("escalate", "clusterroles"))(role_of(vast))
