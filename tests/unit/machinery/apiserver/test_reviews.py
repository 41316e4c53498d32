"""Questions about access: what is answered, and what is no question."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.kinds.reviews import Reviewer, access_reviews
from machinery.apiserver.rbac import Rule
from machinery.apiserver.resource import Question
from machinery.apiserver.role_index import Held
from machinery.apiserver.storage import Actor, Document
from machinery.errors import BadRequestError, InvalidError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PODS = {"verb": "get", "resource": "pods", "namespace": "home", "name": "x"}
RULES = (Rule(("get",), ("",), ("pods",), ("x",)), Rule(("get",), paths=("/x",)))


class Remembering(Reviewer):
    """Allows bob what he asks, and knows what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Actor, Attributes]] = []

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self.asked.append((actor, attributes))
        return Decision(actor.user == "bob", "because")

    async def rules(self, actor: Actor, namespace: str) -> Held:
        del actor, namespace
        return Held(RULES, ("a role is missing",))


async def ask(kind: str, spec: Mapping[str, Any], reviewer: Reviewer, namespace: str = "", **metadata: str) -> Document:
    resource = next(each for each in access_reviews(reviewer) if each.kind == kind)
    assert resource.answers is not None
    given = {**metadata, **({"namespace": namespace} if namespace else {})}
    question = Question({"metadata": given, "spec": spec}, Actor("bob"), NOW, namespace)
    return await resource.answers(question)


async def test_one_asks_for_oneself() -> None:
    reviewer = Remembering()
    answer = await ask(
        "SelfSubjectAccessReview", {"resourceAttributes": {**PODS, "subresource": "log", "group": "g"}}, reviewer
    )

    assert answer["status"] == {"allowed": True, "reason": "because"}
    assert reviewer.asked == [(Actor("bob"), Attributes("get", "", "g", "", "pods", "log", "home", "x"))]


async def test_one_asks_for_another_by_all_his_names() -> None:
    reviewer = Remembering()
    spec = {
        "user": "eve",
        "groups": ["g"],
        "uid": "1",
        "extra": {"k": ["v"]},
        "nonResourceAttributes": {"verb": "get", "path": "/x"},
    }
    answer = await ask("SubjectAccessReview", spec, reviewer)

    assert answer["status"] == {"allowed": False, "reason": "because"}
    assert reviewer.asked == [(Actor("eve", ("g",), "1", {"k": ("v",)}), Attributes("get", "/x"))]


async def test_rules_are_told_apart_by_what_they_are_about() -> None:
    status = (await ask("SelfSubjectRulesReview", {"namespace": "home"}, Remembering()))["status"]

    assert status == {
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
        "incomplete": False,
        "evaluationError": "a role is missing",
    }
    with pytest.raises(BadRequestError, match="no namespace on request"):
        await ask("SelfSubjectRulesReview", {}, Remembering())


async def test_one_is_told_who_one_is() -> None:
    (resource,) = (each for each in access_reviews(Remembering()) if each.kind == "SelfSubjectReview")
    assert resource.answers is not None
    actor = Actor("bob", ("g",), "", {"k": ("v",)})
    answer = await resource.answers(Question({"metadata": {}}, actor, NOW))
    assert answer["status"]["userInfo"] == {"username": "bob", "groups": ["g"], "extra": {"k": ["v"]}}


@pytest.mark.parametrize(
    ("kind", "spec", "namespace", "told"),
    [
        ("SelfSubjectAccessReview", {}, "", "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        (
            "SelfSubjectAccessReview",
            {"resourceAttributes": PODS, "nonResourceAttributes": {"path": "/x"}},
            "",
            "cannot be specified in combination with resourceAttributes",
        ),
        ("SubjectAccessReview", {"resourceAttributes": PODS}, "", "at least one of user or group must be specified"),
        ("LocalSubjectAccessReview", {"resourceAttributes": PODS, "user": "eve"}, "away", "must match metadata.namespace"),
        (
            "LocalSubjectAccessReview",
            {"nonResourceAttributes": {"path": "/x"}, "user": "eve"},
            "home",
            "disallowed on this kind of request",
        ),
    ],
)
async def test_what_is_no_question_is_refused(kind: str, spec: Mapping[str, Any], namespace: str, told: str) -> None:
    reviewer = Remembering()
    with pytest.raises(InvalidError) as refused:
        await ask(kind, spec, reviewer, namespace)
    assert told in refused.value.message
    assert reviewer.asked == []


async def test_a_question_has_no_name() -> None:
    with pytest.raises(InvalidError, match="must be empty"):
        await ask("SelfSubjectAccessReview", {"resourceAttributes": PODS}, Remembering(), name="x")
    answer = await ask("LocalSubjectAccessReview", {"resourceAttributes": PODS, "user": "bob"}, Remembering(), "home")
    assert answer["status"]["allowed"]
