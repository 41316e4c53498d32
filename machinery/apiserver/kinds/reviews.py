"""Access reviews of authorization.k8s.io, and SelfSubjectReview of authentication.k8s.io."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authz.rbac import HeldRules
from machinery.apiserver.http.status_errors import causes_text
from machinery.apiserver.kinds.declaration import builtin
from machinery.apiserver.kinds.tokens import user_info
from machinery.apiserver.resource import Question, Resource
from machinery.apiserver.storage import Actor
from machinery.errors import BadRequestError, Cause, ErrorSubject, InvalidError, invalid_value
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

GROUP = "authorization.k8s.io"
_RESOURCE_PARTS = ("group", "name", "namespace", "resource", "subresource", "verb", "version")


class Reviewer(Protocol):
    """The authorizer that answers reviews."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision: ...

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        """Return all rules of the actor in a namespace."""


Named = Callable[[str, tuple[str, ...], str, Mapping[str, tuple[str, ...]]], Actor]
"""Builds the actor for user, groups, uid and extra, as the authenticator would return it to the authorizer."""


def access_reviews(reviewer: Reviewer, named: Named = Actor) -> tuple[Resource, ...]:
    """Return four resources of authorization.k8s.io, and SelfSubjectReview. `named`: builds the user of a spec."""

    async def own_review(question: Question) -> Document:
        _refuse([*_metadata_causes(question), *_asked_causes(_spec(question))])
        return _decided(question, await reviewer.authorize(question.actor, _attributes(_spec(question))))

    async def subject_review(question: Question) -> Document:
        spec = _spec(question)
        _refuse([*_metadata_causes(question), *_asked_causes(spec), *_subject_causes(question, spec)])
        extra = {key: tuple(values) for key, values in (spec.get("extra") or {}).items()}
        actor = named(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra)
        return _decided(question, await reviewer.authorize(actor, _attributes(spec)))

    async def rules_review(question: Question) -> Document:
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

    return (
        builtin(f"localsubjectaccessreviews.{GROUP}", answers=subject_review),
        builtin(f"selfsubjectaccessreviews.{GROUP}", answers=own_review),
        builtin(f"selfsubjectrulesreviews.{GROUP}", answers=rules_review),
        builtin(f"subjectaccessreviews.{GROUP}", answers=subject_review),
        SELF_SUBJECT_REVIEW,
    )


async def _who_am_i(question: Question) -> Document:
    metadata = {"creationTimestamp": format_time(question.now)}
    return {"metadata": metadata, "status": {"userInfo": user_info(question.actor)}}


SELF_SUBJECT_REVIEW = builtin("selfsubjectreviews.authentication.k8s.io", answers=_who_am_i)


def _spec(question: Question) -> Mapping[str, Any]:
    return question.document.get("spec") or {}


def _attributes(spec: Mapping[str, Any]) -> Attributes:
    asked = spec.get("resourceAttributes")
    if asked is None:
        plain = spec.get("nonResourceAttributes") or {}
        return Attributes(plain.get("verb", ""), plain.get("path", ""))
    parts = {part: asked.get(part, "") for part in _RESOURCE_PARTS}
    return Attributes(path="", **parts, label_selector=(asked.get("labelSelector") or {}).get("rawSelector", ""))


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


def _subject_causes(question: Question, spec: Mapping[str, Any]) -> Iterator[Cause]:
    if not spec.get("user") and not spec.get("groups"):
        yield invalid_value("spec.user", "", "at least one of user or group must be specified")
    if not question.namespace:
        return
    asked, plain = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if asked is not None and asked.get("namespace", "") != question.namespace:
        field = "spec.resourceAttributes.namespace"
        yield invalid_value(field, asked.get("namespace", ""), "must match metadata.namespace")
    if plain is not None:
        yield invalid_value("spec.nonResourceAttributes", plain, "disallowed on this kind of request")


def _refuse(causes: Sequence[Cause]) -> None:
    """Raises InvalidError. Its message does not contain the kind, as in Kubernetes."""
    if causes:
        text = f'.{GROUP} "" is invalid: {causes_text(causes)}'
        raise InvalidError(text, subject=ErrorSubject(group=GROUP), causes=causes)
