"""Parse ApprovalRule documents, with a cause for each mistake."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from hub.api.approvalrules.rule import CLUSTER_FIELDS, ApprovalRule, AskerKind, Requesters, RuleVerdict
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.errors import BadRequestError, Cause, ErrorSubject, InvalidError
from machinery.expression import Expression, ExpressionError, parse
from machinery.meta.selectors import LabelSelector, selector_of
from machinery.product import GROUP_SUFFIX

GROUP = f"hub.{GROUP_SUFFIX}"
API_VERSION = f"{GROUP}/v1alpha1"
KIND = "ApprovalRule"


@lru_cache(maxsize=512)
def rule_of(encoded: bytes) -> ApprovalRule:
    """The rule of a stored object. Raises InvalidError with a cause per mistake."""
    return read(msgspec.json.decode(encoded))


def read(document: Document) -> ApprovalRule:
    """The rule of a document. Raises InvalidError with a cause per mistake."""
    spec = doc.mapping(document, "spec")
    causes: list[Cause] = []
    rule = ApprovalRule(
        name=doc.name(document),
        decides=frozenset(RuleVerdict(each) for each in doc.sequence(document, "spec", "decides") if each in set(RuleVerdict)),
        globs=tuple(map(str, doc.sequence(document, "spec", "clusterNames"))),
        requesters=tuple(_requesters(document, causes)),
        selector=_selector(document, causes),
        condition=_condition(spec.get("condition"), causes),
        dry_run=spec.get("dryRun") is True,
        paused=spec.get("paused") is True,
    )
    if not rule.decides:
        what = "Required value: say what the rule decides: Accept, Approve or both"
        causes.append(Cause("FieldValueRequired", what, "spec.decides"))
    if not any(spec.get(part) for part in ("clusterNames", "requesters", "clusterSelector", "condition")):
        what = 'Required value: a rule for every cluster must say so: clusterNames: ["*"]'
        causes.append(Cause("FieldValueRequired", what, "spec"))
    if causes:
        raise _invalid(rule.name, causes)
    return rule


def _requesters(document: Document, causes: list[Cause]) -> Iterable[Requesters]:
    for index, entry in enumerate(doc.sequence(document, "spec", "requesters")):
        kind, name = str(entry.get("kind") or ""), str(entry.get("name") or "")
        if kind not in set(AskerKind):
            known = ", ".join(f'"{each}"' for each in AskerKind)
            what = f'Unsupported value: "{kind[:80]}": supported values: {known}'
            causes.append(Cause("FieldValueNotSupported", what, f"spec.requesters[{index}].kind"))
        elif not name and kind in (AskerKind.USER, AskerKind.GROUP):
            what = f"Required value: a {kind} is named, whole and exactly"
            causes.append(Cause("FieldValueRequired", what, f"spec.requesters[{index}].name"))
        else:
            yield Requesters(AskerKind(kind), name)


def _selector(document: Document, causes: list[Cause]) -> LabelSelector | None:
    selector = doc.mapping(document, "spec", "clusterSelector")
    try:
        return selector_of(selector) if selector else None
    except BadRequestError as error:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {error.message}", "spec.clusterSelector"))
        return None


def _condition(text: object, causes: list[Cause]) -> Expression | None:
    if text in (None, ""):
        return None
    try:
        return parse(str(text), CLUSTER_FIELDS)
    except ExpressionError as error:
        causes.append(Cause("FieldValueInvalid", f'Invalid value: "{str(text)[:200]}": {error.message}', "spec.condition"))
        return None


def _invalid(name: str, causes: Sequence[Cause]) -> InvalidError:
    listed = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    listed = listed if len(causes) == 1 else f"[{listed}]"
    subject = ErrorSubject(name=name, group=GROUP, kind=KIND)
    return InvalidError(f'{KIND}.{GROUP} "{name[:80]}" is invalid: {listed}', subject=subject, causes=causes)


def admitted(new: Document, before: Document | None) -> dict[str, Any]:
    """Return `new` in stored form. Raises InvalidError, except for an unchanged spec: another release may have written it."""
    if before is None or doc.mapping(new, "spec") != doc.mapping(before, "spec"):
        read(new)
    return doc.typed(new, API_VERSION, KIND)
