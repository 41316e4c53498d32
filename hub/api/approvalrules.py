"""ApprovalRules: decisions that operators automate, as pure functions.

A rule matches if all its fields match: requester, cluster name, labels, condition. Names of requesters are compared exactly,
names of clusters with shell patterns. Unknown values never match. A rule without `requesters` approves for any holder of a
bootstrap credential, and accepts a cluster from any source. A rule with `requesters` accepts a cluster if one of the requesters
has requested its certificate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from hub.api import certificatesigningrequests as requests
from hub.api.bootstrapcredentials import matches_names
from hub.api.managedclusters import cluster as clusters
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta import document as doc
from machinery.errors import BadRequestError, Cause, invalid_object, not_supported, required
from machinery.expression import Expression, ExpressionError, Fields, ListOf, MapOf, Type, parse
from machinery.identity import ClusterName
from machinery.meta.conditions import TRUE, Condition
from machinery.meta.objects import Document
from machinery.meta.selectors import LabelSelector, selector_of
from machinery.product import GROUP_SUFFIX

DRY_RUN = "ApprovalRuleDryRun"
"""Condition type for the decisions of dry runs."""
FLAG = "--auto-approve"
"""Rule name for the globs of the setting `--auto-approve`. No object can have this name."""


class RuleAction(StrEnum):
    ACCEPT = "Accept"
    APPROVE = "Approve"


class RequesterKind(StrEnum):
    """Kind of a requester. AGENT: the cluster's own agent, which renews its certificate."""

    CREDENTIAL = "BootstrapCredential"
    USER = "User"
    GROUP = "Group"
    AGENT = "Agent"


@dataclass(frozen=True, slots=True)
class RequesterRecord:
    """The requester of a certificate, according to the hub's records. `name`: the id of a credential, else the user name."""

    kind: RequesterKind
    name: str
    user: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Requesters:
    """One entry of `spec.requesters`. An entry without a name matches any requester of the kind."""

    kind: RequesterKind
    name: str = ""

    def include(self, asker: RequesterRecord) -> bool:
        if self.kind is RequesterKind.GROUP:
            return asker.kind is RequesterKind.USER and self.name in asker.groups
        return asker.kind is self.kind and self.name in ("", asker.name)


@dataclass(frozen=True, slots=True)
class RuleInput:
    """The input of a rule: a cluster that it may accept, or a certificate request that it may approve.

    `document`: the ManagedCluster; None: it does not exist. `request`: the CertificateSigningRequest; `requested_by`: its
    requester. `agent`: id of the agent that the request is for; "": no agent.
    """

    cluster: ClusterName
    document: Document | None
    now: datetime
    request: Document | None = None
    requested_by: RequesterRecord | None = None
    agent: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    name: str
    decides: frozenset[RuleAction]
    globs: tuple[str, ...] = ()
    requesters: tuple[Requesters, ...] = ()
    selector: LabelSelector | None = None
    condition: Expression | None = None
    dry_run: bool = False
    paused: bool = False

    def fits(self, verdict: RuleAction, candidate: RuleInput) -> bool:
        """Whether the rule makes the decision `verdict` and all its fields match the candidate. False for a paused rule."""
        asker, document = candidate.requested_by, candidate.document
        if self.requesters:
            fits_asker = asker is not None and any(each.include(asker) for each in self.requesters)
        else:
            fits_asker = verdict is RuleAction.ACCEPT or (asker is not None and asker.kind is RequesterKind.CREDENTIAL)
        return (
            not self.paused
            and verdict in self.decides
            and matches_names(candidate.cluster, self.globs)
            and fits_asker
            and (self.selector is None or (document is not None and self.selector.matches(doc.labels(document))))
            and (self.condition is None or self.condition.holds(values_of(candidate)))
        )


@dataclass(frozen=True, slots=True)
class RuleDecision:
    """A decision of a rule about the object `about`: executed, or only recorded (`dry_run`)."""

    rule: str
    action: RuleAction
    cluster: str
    about: Document = field(repr=False)
    dry_run: bool = False


def dry_run_condition(message: str) -> Condition:
    """Return the condition DRY_RUN of a cluster that dry-run rules would accept."""
    return Condition(DRY_RUN, TRUE, "WouldAccept", message)


def flag_rules(globs: tuple[str, ...]) -> tuple[ApprovalRule, ...]:
    """Returns the one rule of the setting `--auto-approve`; empty if the setting has no globs."""
    return (ApprovalRule(FLAG, frozenset(RuleAction), globs),) if globs else ()


CLUSTER_FIELDS = Fields(
    {
        "name": Type.TEXT,
        "labels": MapOf(Type.TEXT),
        "annotations": MapOf(Type.TEXT),
        "claims": MapOf(Type.TEXT),
        "set": Type.TEXT,
        "uid": Type.TEXT,
        "urls": ListOf(Type.TEXT),
        "version": Type.VERSION,
        "capacity": MapOf(Type.QUANTITY),
        "cpu": Type.QUANTITY,
        "memory": Type.QUANTITY,
        "nodes": Type.QUANTITY,
        "accepted": Type.BOOLEAN,
        "age": Type.DURATION,
        "agent": Type.TEXT,
        "requester.kind": Type.TEXT,
        "requester.user": Type.TEXT,
        "requester.groups": ListOf(Type.TEXT),
        "requester.credential": Type.TEXT,
        "lifetime": Type.DURATION,
    }
)
"""Fields that the condition of a rule can use. Their values come from the ManagedCluster, the request and its requester."""


def values_of(candidate: RuleInput) -> dict[str, Any]:
    """Return the values of a candidate's fields, without missing values."""
    asker, request, cluster = candidate.requested_by, candidate.request, candidate.document
    values: dict[str, Any] = {
        "name": candidate.cluster,
        "agent": candidate.agent or None,
        "lifetime": requests.requested_duration(request) if request is not None else None,
    }
    if asker is not None:
        values |= {"requester.kind": str(asker.kind), "requester.user": asker.user, "requester.groups": asker.groups}
        values["requester.credential"] = asker.name if asker.kind is RequesterKind.CREDENTIAL else None
    if cluster is None:
        return values
    capacity = doc.mapping(cluster, "status", "capacity")
    claims = [claim for claim in doc.sequence(cluster, "status", "clusterClaims") if isinstance(claim, Mapping)]
    configs = [config for config in doc.sequence(cluster, "spec", "managedClusterClientConfigs") if isinstance(config, Mapping)]
    created = doc.created_at(cluster)
    return {
        **values,
        "labels": doc.labels(cluster),
        "annotations": doc.annotations(cluster),
        "claims": {str(claim.get("name")): claim.get("value") for claim in claims},
        "set": doc.labels(cluster).get(SET_LABEL),
        "uid": doc.annotations(cluster).get(clusters.CLUSTER_UID),
        "urls": [str(config.get("url") or "") for config in configs],
        "version": doc.mapping(cluster, "status", "version").get("kubernetes"),
        "capacity": capacity,
        "cpu": capacity.get("cpu"),
        "memory": capacity.get("memory"),
        "nodes": capacity.get(clusters.NODES),
        "accepted": clusters.is_accepted(cluster),
        "age": candidate.now - created if created else None,
    }


GROUP = f"hub.{GROUP_SUFFIX}"
API_VERSION = f"{GROUP}/v1alpha1"
KIND = "ApprovalRule"


@lru_cache(maxsize=512)
def rule_of(encoded: bytes) -> ApprovalRule:
    """Return the rule of a stored ApprovalRule in JSON. Raises InvalidError with a cause per mistake."""
    return read_rule(msgspec.json.decode(encoded))


def read_rule(document: Document) -> ApprovalRule:
    """Return the rule of an ApprovalRule. Raises InvalidError with a cause per mistake."""
    spec = doc.mapping(document, "spec")
    causes: list[Cause] = []
    rule = ApprovalRule(
        name=doc.name(document),
        decides=frozenset(RuleAction(each) for each in doc.sequence(document, "spec", "decides") if each in set(RuleAction)),
        globs=tuple(map(str, doc.sequence(document, "spec", "clusterNames"))),
        requesters=tuple(_requesters(document, causes)),
        dry_run=spec.get("dryRun") is True,
        paused=spec.get("paused") is True,
    )
    try:
        if selector := doc.mapping(document, "spec", "clusterSelector"):
            rule = replace(rule, selector=selector_of(selector))
    except BadRequestError as error:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {error.message}", "spec.clusterSelector"))
    text = str(spec.get("condition") or "")
    try:
        if text:
            rule = replace(rule, condition=parse(text, CLUSTER_FIELDS))
    except ExpressionError as error:
        causes.append(Cause("FieldValueInvalid", f'Invalid value: "{text[:200]}": {error.message}', "spec.condition"))
    if not rule.decides:
        causes.append(required("spec.decides", "Accept, Approve or both"))
    if not any(spec.get(part) for part in ("clusterNames", "requesters", "clusterSelector", "condition")):
        causes.append(required("spec", 'a rule for all clusters needs clusterNames: ["*"]'))
    if causes:
        raise invalid_object(rule.name, KIND, GROUP, causes)
    return rule


def _requesters(document: Document, causes: list[Cause]) -> Iterator[Requesters]:
    for index, entry in enumerate(doc.sequence(document, "spec", "requesters")):
        kind, name = str(entry.get("kind") or ""), str(entry.get("name") or "")
        if kind not in set(RequesterKind):
            causes.append(not_supported(f"spec.requesters[{index}].kind", kind[:80], RequesterKind))
        elif not name and kind in (RequesterKind.USER, RequesterKind.GROUP):
            causes.append(required(f"spec.requesters[{index}].name", f"the complete name of the {kind}"))
        else:
            yield Requesters(RequesterKind(kind), name)


def admitted(new: Document, before: Document | None) -> dict[str, Any]:
    """Return `new` in stored form. Raises InvalidError. An unchanged spec may be of another release, so it is not checked."""
    if before is None or doc.mapping(new, "spec") != doc.mapping(before, "spec"):
        read_rule(new)
    return doc.typed(new, API_VERSION, KIND)
