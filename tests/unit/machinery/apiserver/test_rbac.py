"""Rules of roles against Kubernetes' own cases: what a rule allows, what holding it is worth, what a refusal says."""

import pytest

from machinery.apiserver.access import Attributes
from machinery.apiserver.rbac import EVERYTHING, Rule, compact, missing, rules_of


def asked(verb: str, resource: str, group: str = "", **more: str) -> Attributes:
    name, _, part = resource.partition("/")
    return Attributes(verb, "", group, "v1", name, part, **more)


PODS = Rule(("get",), ("",), ("pods",))
NAMED = Rule(("get", "list", "watch", "create", "deletecollection"), ("",), ("pods",), ("one",))


@pytest.mark.parametrize(
    ("rule", "question", "allowed"),
    [
        (PODS, asked("get", "pods"), True),
        (PODS, asked("list", "pods"), False),
        (PODS, asked("get", "pods", "apps"), False),
        (PODS, asked("get", "pods/log"), False),
        (PODS, asked("get", "podss"), False),
        (Rule(("*",), ("",), ("pods",)), asked("frob", "pods"), True),
        (Rule(("get",), ("*",), ("pods",)), asked("get", "pods", "apps"), True),
        (Rule(("get",), ("",), ("*",)), asked("get", "pods/log"), True),
        (Rule(("get",), ("",), ("pods/log",)), asked("get", "pods/log"), True),
        (Rule(("get",), ("",), ("pods/log",)), asked("get", "pods"), False),
        (Rule(("get",), ("",), ("*/log",)), asked("get", "pods/log"), True),
        (Rule(("get",), ("",), ("*/log",)), asked("get", "pods/logs"), False),
        (Rule(("get",), ("",), ("*/log",)), asked("get", "pods"), False),
        (Rule(("get",), ("",), ("pods/*",)), asked("get", "pods/log"), False),
        (NAMED, asked("get", "pods", name="one"), True),
        (NAMED, asked("get", "pods", name="two"), False),
        (NAMED, asked("list", "pods"), False),
        (NAMED, asked("list", "pods", selected_name="one"), True),
        (NAMED, asked("watch", "pods", selected_name="one"), True),
        (NAMED, asked("watch", "pods", selected_name="two"), False),
        (NAMED, asked("deletecollection", "pods", selected_name="one"), False),
        (NAMED, asked("create", "pods"), False),
        (Rule(("get",), paths=("/healthz",)), Attributes("get", "/healthz"), True),
        (Rule(("get",), paths=("/healthz",)), Attributes("get", "/healthz/etcd"), False),
        (Rule(("get",), paths=("/healthz",)), Attributes("put", "/healthz"), False),
        (Rule(("get",), paths=("/apis/*",)), Attributes("get", "/apis/x/v1"), True),
        (Rule(("get",), paths=("/apis/*",)), Attributes("get", "/apis"), False),
        (Rule(("get",), paths=("*",)), Attributes("get", "/anything"), True),
        (Rule(("*",), ("*",), ("*",)), Attributes("get", "/anything"), False),
        (Rule(("*",), paths=("*",)), asked("get", "pods"), False),
        (Rule(), asked("get", "pods"), False),
    ],
)
def test_a_rule_allows_what_kubernetes_says(rule: Rule, question: Attributes, *, allowed: bool) -> None:
    assert rule.allows(question) is allowed


@pytest.mark.parametrize(
    ("held", "wanted", "lacking"),
    [
        ((PODS,), (PODS,), ()),
        ((), (PODS,), (PODS,)),
        ((Rule(("*",), ("*",), ("*",)),), (PODS, NAMED), ()),
        ((PODS,), (Rule(("get", "list"), ("",), ("pods",)),), (Rule(("list",), ("",), ("pods",)),)),
        ((PODS,), (Rule(("*",), ("",), ("pods",)),), (Rule(("*",), ("",), ("pods",)),)),
        # What two rules hold in parts covers each part.
        (
            (Rule(("get",), ("",), ("pods",)), Rule(("list",), ("",), ("pods",))),
            (Rule(("get", "list"), ("",), ("pods",)),),
            (),
        ),
        # Verbs of one rule and resources of another are not held together.
        (
            (Rule(("get",), ("",), ("pods",)), Rule(("list",), ("",), ("nodes",))),
            (Rule(("list",), ("",), ("pods",)),),
            (Rule(("list",), ("",), ("pods",)),),
        ),
        ((Rule(("get",), ("",), ("*",)),), (Rule(("get",), ("",), ("pods/log",)),), ()),
        ((Rule(("get",), ("",), ("*/log",)),), (Rule(("get",), ("",), ("pods/log",)),), ()),
        ((PODS,), (Rule(("get",), ("",), ("pods/log",)),), (Rule(("get",), ("",), ("pods/log",)),)),
        ((Rule(("get",), ("",), ("*/log",)),), (Rule(("get",), ("",), ("*",)),), (Rule(("get",), ("",), ("*",)),)),
        # A name is less than all names.
        ((PODS,), (Rule(("get",), ("",), ("pods",), ("one",)),), ()),
        ((Rule(("get",), ("",), ("pods",), ("one",)),), (PODS,), (PODS,)),
        (
            (Rule(("get",), ("",), ("pods",), ("one",)),),
            (Rule(("get",), ("",), ("pods",), ("one", "two")),),
            (Rule(("get",), ("",), ("pods",), ("two",)),),
        ),
        ((Rule(("get",), paths=("/apis/*",)),), (Rule(("get",), paths=("/apis/x", "/apis/y/*")),), ()),
        ((Rule(("get",), paths=("/apis/x",)),), (Rule(("get",), paths=("/apis/*",)),), (Rule(("get",), paths=("/apis/*",)),)),
        ((Rule(("*",), ("*",), ("*",)),), (Rule(("get",), paths=("/x",)),), (Rule(("get",), paths=("/x",)),)),
    ],
)
def test_nobody_gives_what_is_not_held(held: tuple[Rule, ...], wanted: tuple[Rule, ...], lacking: tuple[Rule, ...]) -> None:
    assert tuple(missing(held, wanted)) == lacking


def test_everything_covers_everything() -> None:
    assert missing(EVERYTHING, (*EVERYTHING, PODS, NAMED, Rule(("get",), paths=("/x*",)))) == []


def test_what_is_missing_is_told_with_its_verbs_together() -> None:
    parts = missing((), (Rule(("get", "list"), ("", "apps"), ("pods",)), Rule(("get",), paths=("/x", "/y"))))

    assert [str(rule) for rule in compact(parts)] == [
        '{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}',
        '{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list"]}',
        '{NonResourceURLs:["/x"], Verbs:["get"]}',
        '{NonResourceURLs:["/y"], Verbs:["get"]}',
    ]


def test_a_role_without_rules_has_none_and_a_rule_is_written_as_it_was_read() -> None:
    document = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["one"]}

    assert rules_of({"rules": None}) == rules_of({}) == ()
    assert rules_of({"rules": [document]})[0].document() == document
