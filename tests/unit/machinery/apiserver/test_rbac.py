"""Roles and bindings, the check against escalation, and access reviews."""

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
import yaml

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authz import rbac
from machinery.apiserver.authz.escalation import MOST_LISTED, EscalationCheck
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from machinery.apiserver.kinds.reviews import Reviewer, access_reviews
from machinery.apiserver.resource import Question, Resource
from machinery.apiserver.storage import Actor, Admission, GroupResource
from machinery.errors import BadRequestError, ForbiddenError, InvalidError, NotFoundError
from machinery.meta.objects import Document, Key
from tests import checks


def asked(verb: str, resource: str, group: str = "", **more: str) -> Attributes:
    name, _, part = resource.partition("/")
    return Attributes(verb, "", group, "v1", name, part, **more)


def may(verbs: str, resources: str, *names: str, groups: str = "") -> rbac.PolicyRule:
    return rbac.PolicyRule(tuple(verbs.split()), tuple(groups.split(",")), tuple(resources.split()), names)


PODS, NAMED = may("get", "pods"), may("get list watch create deletecollection", "pods", "one")
TABLES = yaml.safe_load((checks.CASE_FILES / "rbac.yaml").read_text())


def rule_of(text: str) -> rbac.PolicyRule:
    """`get+list pods one groups=apps` is a rule for a resource, perhaps with names; `get @/x` is one for a URL."""
    verbs, *words = text.split() or [""]
    if not words or words[0].startswith("@"):
        return rbac.PolicyRule(tuple(filter(None, verbs.split("+"))), paths=tuple(word[1:] for word in words))
    groups = [word.removeprefix("groups=") for word in words if word.startswith("groups=")]
    names = [word for word in words[1:] if not word.startswith("groups=")]
    return may(verbs.replace("+", " "), words[0], *names, groups=",".join(groups))


def question_of(text: str) -> Attributes:
    """`get pods/log apps name=one`, or `get @/x`."""
    verb, what, *more = text.split()
    if what.startswith("@"):
        return Attributes(verb, what[1:])
    groups, names = [word for word in more if "=" not in word], [word.split("=") for word in more if "=" in word]
    return asked(verb, what, *groups, **dict(names))


def test_rule_allows_what_kubernetes_rules_allow() -> None:
    for granted in (True, False):
        cases = [(rule, each) for rule, *questions in TABLES["rules"] for each in questions[not granted]]
        assert [case for case in cases if rule_of(case[0]).allows(question_of(case[1])) is not granted] == []


def test_missing_permissions_are_computed_and_shown_compactly() -> None:
    rows = [(held, wanted, list(map(rule_of, left))) for held, wanted, left in TABLES["missing"]]
    checks.check_results(lambda held, wanted: list(rbac.missing(tuple(map(rule_of, held)), (rule_of(wanted),))), rows)

    assert rbac.missing(rbac.EVERYTHING, (*rbac.EVERYTHING, PODS, NAMED, rbac.PolicyRule(("get",), paths=("/x*",)))) == []

    parts = rbac.missing(
        (), (rbac.PolicyRule(("get", "list"), ("", "apps"), ("pods",)), rbac.PolicyRule(("get",), paths=("/x", "/y")))
    )
    assert [str(rule) for rule in rbac.compact(parts)] == [
        '{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}',
        '{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/x"], Verbs:["get"]}',
        '{NonResourceURLs:["/y"], Verbs:["get"]}',
    ]

    document = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["one"]}
    assert rbac.rules_of({"rules": None}) == rbac.rules_of({}) == ()
    assert rbac.rules_of({"rules": [document]})[0].document() == document


RBAC = "rbac.authorization.k8s.io"
GET_PODS = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
READ_PODS = {"rules": [GET_PODS]}
BOB = {"kind": "User", "apiGroup": RBAC, "name": "bob"}
TEAM = {"kind": "Group", "apiGroup": RBAC, "name": "team"}
ROBOT = {"kind": "ServiceAccount", "name": "robot", "namespace": "home"}
GET, GET_HOME, GET_AWAY = (asked("get", "pods", namespace=namespace, name="x") for namespace in ("", "home", "away"))


def binding(*subjects: dict[str, str], kind: str = "ClusterRole", name: str = "reader") -> dict[str, Any]:
    return {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": list(subjects)}


def with_cluster_role() -> rbac.RoleIndex:
    index = rbac.RoleIndex()
    index.put("clusterroles", Key("", "reader"), READ_PODS)
    return index


def test_cluster_role_binding_applies_everywhere_to_its_subjects_alone() -> None:
    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "b"), binding(BOB, TEAM, ROBOT))
    rows = [
        (Actor("bob"), 'User "bob"'),
        (Actor("eve", ("team",)), 'Group "team"'),
        (Actor("system:serviceaccount:home:robot"), 'ServiceAccount "robot/home"'),
    ]
    for (actor, subject), question in product(rows, (GET, GET_HOME, GET_AWAY)):
        decision = index.decide(actor, question)
        reason = f'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "reader" to {subject}'
        assert (decision.allowed, decision.reason) == (True, reason)
    others = [Actor(name) for name in ("team", "bobby", "robot", "system:serviceaccount:away:robot")]
    for actor in (*others, Actor("eve", ("bob",))):
        decision = index.decide(actor, GET)
        assert (decision.allowed, decision.reason) == (False, ""), actor


def test_changed_and_deleted_bindings_count_at_once() -> None:
    index, eve = with_cluster_role(), Actor("eve", ("team",))
    index.put("clusterrolebindings", Key("", "b"), binding(BOB, TEAM))
    index.put("clusterrolebindings", Key("", "b"), binding(TEAM))
    assert (index.decide(Actor("bob"), GET).allowed, index.decide(eve, GET).allowed) == (False, True)
    index.put("clusterroles", Key("", "reader"), {"rules": []})
    assert not index.decide(eve, GET).allowed
    index.put("clusterroles", Key("", "reader"), READ_PODS)
    index.put("clusterrolebindings", Key("", "b"), None)
    assert (index.decide(eve, GET).allowed, len(index)) == (False, 0)


def test_role_binding_applies_in_its_namespace_alone_and_missing_roles_are_reported() -> None:
    index = with_cluster_role()
    index.put("rolebindings", Key("home", "b"), binding(BOB))
    assert index.decide(Actor("bob"), GET_HOME).reason == (
        'RBAC: allowed by RoleBinding "b/home" of ClusterRole "reader" to User "bob"'
    )
    assert (index.decide(Actor("bob"), GET_AWAY).allowed, index.decide(Actor("bob"), GET).allowed) == (False, False)

    index = rbac.RoleIndex()
    index.put("roles", Key("away", "reader"), READ_PODS)
    index.put("rolebindings", Key("home", "b"), binding(BOB, kind="Role"))
    decision = index.decide(Actor("bob"), GET_HOME)
    assert (decision.allowed, decision.reason) == (False, 'RBAC: role.rbac.authorization.k8s.io "reader" not found')
    index.put("roles", Key("home", "reader"), READ_PODS)
    assert index.decide(Actor("bob"), GET_HOME).allowed

    index = with_cluster_role()
    index.put("rolebindings", Key("home", "b"), binding({"kind": "ServiceAccount", "name": "robot"}))
    index.put("clusterrolebindings", Key("", "b"), binding({"kind": "ServiceAccount", "name": "robot"}))
    assert index.decide(Actor("system:serviceaccount:home:robot"), GET_HOME).allowed
    assert not index.decide(Actor("system:serviceaccount:home:robot"), GET).allowed

    index = with_cluster_role()
    index.put("clusterrolebindings", Key("", "a"), binding(BOB, name="gone"))
    index.put("clusterrolebindings", Key("", "c"), binding(BOB, name="lost"))
    why = '"gone" not found, clusterrole.rbac.authorization.k8s.io "lost" not found'
    assert index.decide(Actor("bob"), GET).reason == f"RBAC: [clusterrole.rbac.authorization.k8s.io {why}]"
    index.put("clusterrolebindings", Key("", "d"), binding(BOB))
    assert index.decide(Actor("bob"), GET).allowed

    index = with_cluster_role()
    index.put("roles", Key("home", "more"), {"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]})
    index.put("clusterrolebindings", Key("", "b"), binding(BOB))
    index.put("rolebindings", Key("home", "b"), binding(TEAM, kind="Role", name="more"))
    index.put("rolebindings", Key("home", "c"), binding(BOB, kind="Role", name="none"))
    bob = Actor("bob", ("team",))
    reads, everything = rbac.PolicyRule(("get",), ("",), ("pods",)), rbac.PolicyRule(("*",), ("*",), ("*",))
    assert index.held(bob, "").rules == (reads,)
    held = index.held(bob, "home")
    assert (held.rules, held.errors) == ((reads, everything), ('role.rbac.authorization.k8s.io "none" not found',))


LIST_PODS = {**GET_PODS, "verbs": ["list"]}
ALL_RULES = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]}]
ALICE = Actor("alice", ("team", "system:authenticated"))


class Fixed(rbac.Roles):
    """Roles that nobody follows."""

    def __init__(self, index: rbac.RoleIndex) -> None:
        self._index = index

    @property
    def index(self) -> rbac.RoleIndex:
        return self._index

    def check(self) -> None:
        return

    async def seen(self, resource: GroupResource, revision: int) -> None:
        del resource, revision


def rule(verb: str, resource: str, *names: str) -> dict[str, Any]:
    return {"verbs": [verb], "apiGroups": [RBAC], "resources": [resource], "resourceNames": list(names)}


def check(*rules: Mapping[str, Any], namespace: str = "") -> EscalationCheck:
    """For a world in which alice holds these rules, everywhere or in one namespace."""
    index = rbac.RoleIndex()
    index.put("clusterroles", Key("", "alices"), {"rules": list(rules)})
    index.put("clusterroles", Key("", "lister"), {"rules": [LIST_PODS]})
    index.put("roles", Key("home", "lister"), {"rules": [LIST_PODS]})
    kind = "rolebindings" if namespace else "clusterrolebindings"
    index.put(kind, Key(namespace, "alices"), binding({**BOB, "name": "alice"}, name="alices"))
    return EscalationCheck(rbac.RbacAuthorizer(Fixed(index)))


def write(resource: Resource, new: Mapping[str, Any], old: Mapping[str, Any] | None = None, namespace: str = "") -> Admission:
    named = {"metadata": {"name": "x"}, **new}
    return Admission(resource.key, Key(namespace, "x"), named, old and {"metadata": {"name": "x"}, **old}, ALICE)


def test_role_may_grant_only_what_its_writer_holds() -> None:
    check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [GET_PODS]}))

    with pytest.raises(ForbiddenError) as refused:
        check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [GET_PODS, LIST_PODS]}))
    assert refused.value.message == (
        'clusterroles.rbac.authorization.k8s.io "x" is forbidden: user "alice" (groups=["team" "system:authenticated"]) '
        'is attempting to grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["pods"], Verbs:["list"]}'
    )

    at_home = check(GET_PODS, namespace="home")
    at_home(write(ROLE, {"rules": [GET_PODS]}, namespace="home"))
    for admission in (write(ROLE, {"rules": [GET_PODS]}, namespace="away"), write(CLUSTER_ROLE, {"rules": [GET_PODS]})):
        checks.check_refusal(ForbiddenError, at_home, admission)

    old = {"rules": [LIST_PODS], "metadata": {"name": "x", "finalizers": ["a/b"]}}
    new = {"rules": [LIST_PODS], "metadata": {"name": "x"}}
    check()(write(CLUSTER_ROLE, new, old))
    checks.check_refusal(
        ForbiddenError, check(), write(CLUSTER_ROLE, {**new, "metadata": {"name": "x", "labels": {"a": "b"}}}, old)
    )

    master, admission = Actor("root", ("system:masters",)), write(CLUSTER_ROLE, {"rules": ALL_RULES})
    check()(Admission(admission.resource, admission.key, admission.new, None, master))


def test_role_is_bound_by_holders_or_with_the_bind_verb() -> None:
    named, any_role = rule("bind", "clusterroles", "lister"), rule("bind", "clusterroles")
    for held, resource in product((LIST_PODS, any_role, named, ALL_RULES[0]), (CLUSTER_ROLE_BINDING, ROLE_BINDING)):
        admission = write(resource, binding(name="lister"), namespace="home" if resource.namespaced else "")
        check(held)(admission)
        with pytest.raises(ForbiddenError, match="attempting to grant RBAC permissions not currently held"):
            check(GET_PODS)(admission)

    with pytest.raises(ForbiddenError):
        check(rule("bind", "clusterroles", "other"))(write(CLUSTER_ROLE_BINDING, binding(name="lister")))

    admission = write(ROLE_BINDING, binding(kind="Role", name="later"), namespace="home")
    check(rule("bind", "roles", "later"))(admission)
    checks.check_refusal(NotFoundError, check(LIST_PODS), admission, match='"later" not found')

    check(LIST_PODS)(write(ROLE_BINDING, binding(kind="Role", name="lister"), namespace="home"))
    checks.check_refusal(
        NotFoundError, check(LIST_PODS), write(ROLE_BINDING, binding(kind="Role", name="lister"), namespace="away")
    )


def names(prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(1_000)]


def test_escalate_verb_allows_any_role_and_aggregation_needs_cluster_admin() -> None:
    admission = write(CLUSTER_ROLE, {"rules": ALL_RULES})
    check(rule("escalate", "clusterroles"))(admission)
    checks.check_refusals(
        ForbiddenError,
        lambda held: check(held)(admission),
        [(held, "") for held in (rule("escalate", "roles"), rule("bind", "clusterroles"))],
    )

    may = check(rule("escalate", "clusterroles", "x"))
    may(write(CLUSTER_ROLE, {"rules": [GET_PODS]}, {"rules": []}))
    checks.check_refusal(ForbiddenError, may, write(CLUSTER_ROLE, {"rules": [GET_PODS]}))

    vast = {"verbs": names("v"), "apiGroups": names("g"), "resources": names("r")}
    check(rule("escalate", "clusterroles"))(write(CLUSTER_ROLE, {"rules": [vast]}))

    rows: list[Mapping[str, Any] | None] = [None, {"rules": [], "aggregationRule": {"clusterRoleSelectors": [{}]}}]
    for old in rows:
        new = {"rules": []} if old else {"rules": [], "aggregationRule": {"clusterRoleSelectors": [{}]}}
        check(*ALL_RULES)(write(CLUSTER_ROLE, new, old))
        with pytest.raises(ForbiddenError, match="must have cluster-admin privileges to use the aggregationRule"):
            check(GET_PODS)(write(CLUSTER_ROLE, new, old))

    with pytest.raises(ForbiddenError, match="its rules contain 1000000000 permissions"):
        checks.within_steps(20_000, lambda: check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [vast]})))
    with pytest.raises(ForbiddenError) as refused:
        check(GET_PODS)(write(CLUSTER_ROLE, {"rules": [{**GET_PODS, "resources": names("r")}]}))
    assert refused.value.message.count("Resources:") == MOST_LISTED


REVIEWED, ASKER = datetime(2026, 1, 1, tzinfo=UTC), Actor("bob")
POD_QUESTION = {"verb": "get", "resource": "pods", "namespace": "home", "name": "x"}
HELD_RULES = (rbac.PolicyRule(("get",), ("",), ("pods",), ("x",)), rbac.PolicyRule(("get",), paths=("/x",)))


class Remembering(Reviewer):
    """Allows bob what he asks, and knows what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Actor, Attributes]] = []

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self.asked.append((actor, attributes))
        return Decision(actor.user == "bob", "because")

    async def rules(self, _actor: Actor, _namespace: str) -> rbac.HeldRules:
        return rbac.HeldRules(HELD_RULES, ("a role is missing",))


async def ask(
    kind: str, spec: Mapping[str, Any], reviewer: Reviewer, namespace: str = "", actor: Actor = ASKER, **metadata: str
) -> Document:
    resource = next(each for each in access_reviews(reviewer) if each.kind == kind)
    given = {**metadata, **({"namespace": namespace} if namespace else {})}
    return await checks.present(resource.answers)(Question({"metadata": given, "spec": spec}, actor, REVIEWED, namespace))


async def test_access_reviews_are_answered_and_rules_separated_from_urls() -> None:
    reviewer = Remembering()
    answer = await ask(
        "SelfSubjectAccessReview", {"resourceAttributes": {**POD_QUESTION, "subresource": "log", "group": "g"}}, reviewer
    )
    assert answer["status"] == {"allowed": True, "reason": "because"}
    assert reviewer.asked == [(Actor("bob"), Attributes("get", "", "g", "", "pods", "log", "home", "x"))]

    reviewer = Remembering()
    eve = {"user": "eve", "groups": ["g"], "uid": "1", "extra": {"k": ["v"]}}
    answer = await ask("SubjectAccessReview", {**eve, "nonResourceAttributes": {"verb": "get", "path": "/x"}}, reviewer)
    assert answer["status"] == {"allowed": False, "reason": "because"}
    assert reviewer.asked == [(Actor("eve", ("g",), "1", {"k": ("v",)}), Attributes("get", "/x"))]

    answer = await ask("SelfSubjectReview", {}, Remembering(), actor=Actor("bob", ("g",), "", {"k": ("v",)}))
    assert answer["status"]["userInfo"] == {"username": "bob", "groups": ["g"], "extra": {"k": ["v"]}}

    assert (await ask("SelfSubjectRulesReview", {"namespace": "home"}, Remembering()))["status"] == {
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
        "incomplete": False,
        "evaluationError": "a role is missing",
    }
    await checks.check_refusal_of(
        BadRequestError, ask("SelfSubjectRulesReview", {}, Remembering()), match="no namespace on request"
    )


async def test_malformed_review_is_refused() -> None:
    mine, local = "SelfSubjectAccessReview", "LocalSubjectAccessReview"
    pod, url = {"resourceAttributes": POD_QUESTION}, {"nonResourceAttributes": {"path": "/x"}}
    rows: list[tuple[str, Mapping[str, Any], str, str]] = [
        (mine, {**pod, **url}, "", "cannot be specified in combination with resourceAttributes"),
        ("SubjectAccessReview", pod, "", "at least one of user or group must be specified"),
        (local, {**pod, "user": "eve"}, "away", "must match metadata.namespace"),
        (local, {**url, "user": "eve"}, "home", "disallowed on this kind of request"),
    ]
    for kind, spec, namespace, message in rows:
        reviewer = Remembering()
        refused = checks.present(await checks.awaited_refusal(InvalidError, ask(kind, spec, reviewer, namespace)))
        assert message in refused.message, (kind, spec)
        assert reviewer.asked == [], (kind, spec)

    await checks.check_refusal_of(InvalidError, ask(mine, pod, Remembering(), name="x"), match="must be empty")
    assert (await ask(local, {**pod, "user": "bob"}, Remembering(), "home"))["status"]["allowed"]
