"""Access reviews of authorization.k8s.io, and SelfSubjectReview of authentication.k8s.io.

Nothing is stored; the answers apply to the current moment.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authz.rbac import HeldRules
from machinery.apiserver.http.status_errors import causes_text
from machinery.apiserver.kinds.declaration import BOOLEAN, EXTRA, OPEN, TEXT, TEXTS, builtin, listing, record
from machinery.apiserver.kinds.tokens import GROUP as AUTHENTICATION, USER_INFO, user_info
from machinery.apiserver.resource import Answers, Question, Resource
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, Cause, ErrorSubject, InvalidError, invalid_value
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

GROUP = "authorization.k8s.io"
_SELECTOR = record(rawSelector=TEXT, requirements=listing(OPEN))
_RESOURCE_PARTS = ("group", "name", "namespace", "resource", "subresource", "verb", "version")
_ASKED: dict[str, Any] = {
    "resourceAttributes": record(
        "Information for a resource access request.",
        **dict.fromkeys(_RESOURCE_PARTS, TEXT),
        fieldSelector=_SELECTOR,
        labelSelector=_SELECTOR,
    ),
    "nonResourceAttributes": record("Information for a non-resource access request.", path=TEXT, verb=TEXT),
}
_WHO: dict[str, Any] = {"user": TEXT, "groups": TEXTS, "uid": TEXT, "extra": EXTRA}
_DECIDED = record(allowed=BOOLEAN, denied=BOOLEAN, reason=TEXT, evaluationError=TEXT)
_RULE_LISTS = record(resourceRules=listing(OPEN), nonResourceRules=listing(OPEN), incomplete=BOOLEAN, evaluationError=TEXT)


class Reviewer(Protocol):
    """The authorizer that answers reviews."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision: ...

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        """All rules of the actor in a namespace."""


Named = Callable[[str, tuple[str, ...], str, Mapping[str, tuple[str, ...]]], Actor]
"""Builds an actor from user, groups, uid and extra as the authorizer would see it."""


def access_reviews(reviewer: Reviewer, named: Named = Actor) -> tuple[Resource, ...]:
    """The five resources: four of authorization.k8s.io and SelfSubjectReview."""
    subject = _subject_review(reviewer, named)
    return (
        _review("LocalSubjectAccessReview", {**_ASKED, **_WHO}, _DECIDED, subject, namespaced=True),
        _review("SelfSubjectAccessReview", _ASKED, _DECIDED, _self_review(reviewer)),
        _review("SelfSubjectRulesReview", {"namespace": TEXT}, _RULE_LISTS, _rules_review(reviewer)),
        _review("SubjectAccessReview", {**_ASKED, **_WHO}, _DECIDED, subject),
        SELF_SUBJECT_REVIEW,
    )


def _review(
    kind: str, spec: Mapping[str, Any], status: Mapping[str, Any], answers: Answers, *, namespaced: bool = False
) -> Resource:
    return builtin(
        group=GROUP,
        name=f"{kind.lower()}s",
        kind=kind,
        namespaced=namespaced,
        verbs=("create",),
        schema=record(f"{kind} asks what is allowed.", spec=record(**spec), status=dict(status)),
        answers=answers,
    )


def _self_review(reviewer: Reviewer) -> Answers:
    async def answer(question: Question) -> Document:
        spec = _spec(question)
        _refuse([*_metadata_causes(question), *_asked_causes(spec)])
        return _decided(question, await reviewer.authorize(question.actor, _attributes(spec)))

    return answer


def _subject_review(reviewer: Reviewer, named: Named) -> Answers:
    async def answer(question: Question) -> Document:
        spec = _spec(question)
        _refuse([*_metadata_causes(question), *_asked_causes(spec), *_who_causes(spec), *_local_causes(question, spec)])
        extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
        actor = named(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
        return _decided(question, await reviewer.authorize(actor, _attributes(spec)))

    return answer


def _rules_review(reviewer: Reviewer) -> Answers:
    async def answer(question: Question) -> Document:
        namespace = _spec(question).get("namespace", "")
        if not namespace:
            raise BadRequestError("no namespace on request")
        held = await reviewer.rules(question.actor, namespace)
        status: dict[str, Any] = {
            "resourceRules": [rule.document() for rule in held.rules if not rule.paths],
            "nonResourceRules": [rule.document() for rule in held.rules if rule.paths],
            "incomplete": False,
        }
        if held.errors:
            status["evaluationError"] = ", ".join(held.errors)
        return {"metadata": {}, "spec": {}, "status": status}

    return answer


async def _who_am_i(question: Question) -> Document:
    metadata = {"creationTimestamp": format_time(question.now)}
    return {"metadata": metadata, "status": {"userInfo": user_info(question.actor)}}


SELF_SUBJECT_REVIEW = builtin(
    group=AUTHENTICATION,
    name="selfsubjectreviews",
    kind="SelfSubjectReview",
    verbs=("create",),
    schema=record(
        "SelfSubjectReview contains the user information that the server has about the requester.",
        status=record(userInfo=USER_INFO),
    ),
    answers=_who_am_i,
)


def _spec(question: Question) -> Mapping[str, Any]:
    return question.document.get("spec") or {}


def _attributes(spec: Mapping[str, Any]) -> Attributes:
    asked = spec.get("resourceAttributes")
    if asked is None:
        plain = spec.get("nonResourceAttributes") or {}
        return Attributes(plain.get("verb", ""), plain.get("path", ""))
    return Attributes(
        verb=asked.get("verb", ""),
        path="",
        group=asked.get("group", ""),
        version=asked.get("version", ""),
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
        label_selector=(asked.get("labelSelector") or {}).get("rawSelector", ""),
    )


def _decided(question: Question, decision: Decision) -> Document:
    status: dict[str, Any] = {"allowed": decision.allowed, **({"reason": decision.reason} if decision.reason else {})}
    return {"metadata": question.document.get("metadata") or {}, "spec": _spec(question), "status": status}


def _metadata_causes(question: Question) -> Sequence[Cause]:
    metadata = {name: value for name, value in (question.document.get("metadata") or {}).items() if value}
    metadata.pop("managedFields", None)
    if metadata.pop("namespace", "") == question.namespace and not metadata:
        return ()
    why = "must be empty except for namespace" if question.namespace else "must be empty"
    return (invalid_value("metadata", metadata, why),)


def _asked_causes(spec: Mapping[str, Any]) -> Sequence[Cause]:
    resource, plain = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and plain is not None:
        why = "cannot be specified in combination with resourceAttributes"
        return (invalid_value("spec.nonResourceAttributes", plain, why),)
    if resource is None and plain is None:
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return (invalid_value("spec.resourceAttributes", None, why),)
    return ()


def _who_causes(spec: Mapping[str, Any]) -> Sequence[Cause]:
    if spec.get("user") or spec.get("groups"):
        return ()
    return (invalid_value("spec.user", "", "at least one of user or group must be specified"),)


def _local_causes(question: Question, spec: Mapping[str, Any]) -> list[Cause]:
    if not question.namespace:
        return []
    causes = []
    asked = spec.get("resourceAttributes")
    if asked is not None and asked.get("namespace", "") != question.namespace:
        field = "spec.resourceAttributes.namespace"
        causes.append(invalid_value(field, asked.get("namespace", ""), "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        plain = spec["nonResourceAttributes"]
        causes.append(invalid_value("spec.nonResourceAttributes", plain, "disallowed on this kind of request"))
    return causes


def _refuse(causes: Sequence[Cause]) -> None:
    """Raises InvalidError. Kubernetes' message lacks the kind, too."""
    if causes:
        text = f'.{GROUP} "" is invalid: {causes_text(causes)}'
        raise InvalidError(text, subject=ErrorSubject(group=GROUP), causes=causes)
