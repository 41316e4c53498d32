"""Automatic decisions on certificate requests and clusters.

Built-in rules approve renewals and add-on certificates. Operators' rules accept clusters and approve registrations. Rules never
deny: without a matching rule, a request waits for an operator. Rules approve only strict requests: label, subject and requester
name exactly the same cluster, and the request is only for a client certificate.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hub.api import approvalrules as by_rule, certificatesigningrequests as csr_rules
from hub.api.approvalrules import ApprovalRule, RequesterKind, RequesterRecord, RuleAction, RuleDecision, RuleInput, rule_of
from hub.api.auditrecords import AuditRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import APPROVED, RequestPhase
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES, MANAGED_CLUSTERS, REQUESTS
from hub.ports import Transaction
from hub.registry import owners
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.certificatesigningrequests.issuance import CertificateGrant, grant_of
from hub.registry.generic.objects import write
from hub.registry.managedclusters import service as cluster_objects
from machinery.errors import InvalidError, MusterError
from machinery.identity import CLUSTER_LABEL, OPERATOR_GROUP, SUBJECT_PREFIX, CertificateSubject, ClusterName, parse_agent_user
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.meta.timestamps import format_time
from machinery.product import NAME

RULE_ACTOR = f"system:{NAME}:rule:"
"""Prefix of the actor of a rule's decisions in the change log; the rule's name follows."""


@dataclass(frozen=True, slots=True)
class ApprovalOutcome:
    """Result of `review` or `accept`. `decisions`: decisions of operators' rules; empty if only built-in rules have decided.

    `accepted`: the accepted cluster. `asking`: the cluster of the reviewed request, if a rule for acceptance depends on
    requests. The caller then runs `accept` for this cluster.
    """

    decisions: tuple[RuleDecision, ...] = ()
    accepted: str = ""
    asking: str = ""
    records: tuple[AuditRecord, ...] = ()
    """Audit records of the decisions, written in the same transaction."""


def rules_in(tx: Transaction, globs: tuple[str, ...]) -> tuple[ApprovalRule, ...]:
    """Return all rules: first the rule of `--auto-approve` (`globs`: its patterns), then the ApprovalRules by name."""
    known = list(by_rule.flag_rules(globs))
    for stored in tx.objects.find(APPROVAL_RULES, Query()).items:
        with suppress(InvalidError):  # written by another version of the hub; an unreadable rule decides nothing
            known.append(rule_of(stored.encoded))
    return tuple(known)


def read_ahead(tx: Transaction, names: Sequence[str]) -> None:
    """Read these requests and their clusters with few queries. Later reads of this transaction need no query for them."""
    keys = [Key("", name) for name in names]
    tx.objects.read_ahead(REQUESTS, keys)
    found = [tx.objects.get(REQUESTS, key) for key in keys]
    clusters_asked = {doc.labels(stored.document).get(CLUSTER_LABEL, "") for stored in found if stored}
    tx.objects.read_ahead(MANAGED_CLUSTERS, [Key("", name) for name in clusters_asked])


def review(
    tx: Transaction, name: str, known: Sequence[ApprovalRule], actor: str, *, sign: Callable[..., dict[str, Any]] | None = None
) -> ApprovalOutcome | None:
    """Approve a certificate request if a built-in rule or one of `known` matches. Return the outcome. Raises NotFoundError.

    Returns None if nothing was written and the outcome has no `asking`. With `sign` (`issuance.sign_request`) the approved
    request is also signed; without `sign`, `issuance.issue` signs it later.
    """
    stored = request_objects.find(tx, name)
    asking = doc.labels(stored.document).get(CLUSTER_LABEL, "") if any(map(_needs_request, known)) else ""
    undecided = ApprovalOutcome(asking=asking) if asking else None
    asked = _strict_request(tx, stored.document) if csr_rules.phase(stored.document) is RequestPhase.PENDING else None
    if asked is None:
        return undecided
    message, by, decisions = csr_rules.AUTO_APPROVED_MESSAGE, actor, tuple[RuleDecision, ...]()
    candidate, grant, is_automatic = asked
    if not is_automatic:
        cluster = candidate.document
        is_denied = cluster is not None and (doc.is_deleting(cluster) or clusters.is_denied(cluster))
        if grant.purpose is not Purpose.AGENT or is_denied or _needs_bound(tx, candidate, stored):
            return undecided
        fitting = [rule for rule in known if rule.fits(RuleAction.APPROVE, candidate)]
        deciding = next((rule for rule in fitting if not rule.dry_run), None)
        if deciding is None:
            dry = _record_dry_run_approval(tx, stored, fitting, candidate.cluster)
            return ApprovalOutcome(dry, asking=asking) if dry else undecided
        message, by = f'Approved by the rule "{deciding.name}".', RULE_ACTOR + deciding.name
        decisions = (_decision(deciding, RuleAction.APPROVE, candidate.cluster, stored),)
    approved = csr_rules.with_decision(stored.document, APPROVED, csr_rules.AUTO_APPROVED_REASON, message, tx.now)
    if sign is not None:
        with suppress(MusterError):  # a missing key or an expired CA: the issuance controller tries again and logs the error
            approved = sign(tx, approved, stored.uid, grant=grant)
    write(tx, REQUESTS, approved, stored, by, writer=HUB_WRITER)
    return ApprovalOutcome(decisions, asking=asking)


def _record_dry_run_approval(
    tx: Transaction, stored: StoredObject, fitting: Sequence[ApprovalRule], cluster: str
) -> tuple[RuleDecision, ...]:
    """Record on the request, once, which dry-run rules would have approved it; return their decisions."""
    if not fitting:
        return ()
    message = _would(fitting, "approve this request")
    present = doc.conditions(stored.document)
    if any(entry.get("type") == by_rule.DRY_RUN and entry.get("message") == message for entry in present):
        return ()
    others = [dict(entry) for entry in present if entry.get("type") != by_rule.DRY_RUN]
    undecided = doc.with_status(stored.document, conditions=others)
    noted = csr_rules.with_decision(undecided, by_rule.DRY_RUN, "WouldApprove", message, tx.now)
    write(tx, REQUESTS, noted, stored, RULE_ACTOR + fitting[0].name, writer=HUB_WRITER)
    return tuple(_decision(rule, RuleAction.APPROVE, cluster, stored) for rule in fitting)


def accept(tx: Transaction, name: ClusterName, known: Sequence[ApprovalRule]) -> ApprovalOutcome | None:
    """Accept a cluster if one of the rules `known` matches it. Returns None if nothing was written.

    Rules accept a cluster at most once, and never override an operator.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None or not is_open(stored.document):
        return None
    fitting = _accepting(tx, stored, known)
    deciding = next((rule for rule in fitting if not rule.dry_run), None)
    if deciding is None:
        return _record_dry_run_acceptance(tx, stored, fitting) if fitting else None
    if clusters.is_accepted(stored.document):  # by an operator: with the annotation, no rule accepts it after a denial
        marked = doc.with_annotations(stored.document, {clusters.ACCEPTED_ON: format_time(tx.now)})
        cluster_objects.put(tx, marked, stored, RULE_ACTOR + deciding.name, writer=HUB_WRITER)
        return ApprovalOutcome()
    accepted = clusters.automatically_accepted(stored.document, deciding.name, tx.now)
    shown = doc.with_status_condition(accepted, clusters.accepted_condition(accepted), tx.now)
    cluster_objects.put(tx, shown, stored, RULE_ACTOR + deciding.name, writer=HUB_WRITER)
    return ApprovalOutcome((_decision(deciding, RuleAction.ACCEPT, name, stored),), accepted=name)


def _needs_request(rule: ApprovalRule) -> bool:
    return RuleAction.ACCEPT in rule.decides and bool(rule.requesters or rule.condition)


def is_open(cluster: Document) -> bool:
    """Whether rules may still accept this cluster: no rule and no operator has decided."""
    is_decided = clusters.was_ever_accepted(cluster) or clusters.ACCEPTED_ON in doc.annotations(cluster)
    return not is_decided and not doc.is_deleting(cluster)


def _record_dry_run_acceptance(
    tx: Transaction, stored: StoredObject, fitting: Sequence[ApprovalRule]
) -> ApprovalOutcome | None:
    """Record on the cluster, once, which dry-run rules would have accepted it."""
    new = doc.with_status_condition(stored.document, by_rule.dry_run_condition(_would(fitting, "accept this cluster")), tx.now)
    if clusters.is_accepted(stored.document) or not doc.differs(new, stored.document):
        return None
    cluster_objects.put(tx, new, stored, RULE_ACTOR + fitting[0].name, writer=HUB_WRITER)
    return ApprovalOutcome(tuple(_decision(rule, RuleAction.ACCEPT, stored.key.name, stored) for rule in fitting))


def _accepting(tx: Transaction, cluster: StoredObject, known: Sequence[ApprovalRule]) -> list[ApprovalRule]:
    """Rules that match the cluster alone or with one of its requests."""
    deciding = [rule for rule in known if RuleAction.ACCEPT in rule.decides and not rule.paused]
    candidates = [RuleInput(ClusterName(cluster.key.name), cluster.document, tx.now)]
    if any(map(_needs_request, deciding)):
        refused = (RequestPhase.DENIED, RequestPhase.FAILED)
        requests = (stored.document for stored in request_objects.of_cluster(tx, cluster.key.name))
        found = [_strict_request(tx, request) for request in requests if csr_rules.phase(request) not in refused]
        candidates += [asked[0] for asked in found if asked is not None and asked[1].purpose is Purpose.AGENT]
    return [rule for rule in deciding if any(rule.fits(RuleAction.ACCEPT, candidate) for candidate in candidates)]


def _strict_request(tx: Transaction, request: Document) -> tuple[RuleInput, CertificateGrant, bool] | None:
    """Return what rules know of a strict request, its grant, and whether built-in rules approve it.

    None: only an operator can decide, or the request is for another signer. Built-in rules approve a request of the cluster's
    own agent, if the agent renews its certificate or requests a certificate for a registered add-on. Sources: OCM's CSR
    approver (the requester is the subject; exact parts, never a prefix), ADR 0012.
    """
    if not csr_rules.is_for_a_client(request):
        return None
    try:
        grant = grant_of(tx, request)
    except MusterError:
        return None
    requester, name, spec = grant.requester, grant.holder.cluster, doc.mapping(request, "spec")
    if name is None or doc.labels(request).get(CLUSTER_LABEL) != name:
        return None
    if requester is not None and spec.get("username") != requester.user:
        return None
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    renews = requester is not None and requester.purpose is Purpose.AGENT and requester.user == grant.subject.common_name
    is_due = is_an_addons(grant.subject) if grant.purpose is Purpose.ADDON else renews
    is_automatic = requester is not None and is_due and _is_own(tx, requester, name, cluster)
    user, groups = str(spec.get("username") or ""), tuple(map(str, spec.get("groups") or ()))
    asker = None
    if (credential := csr_rules.bootstrap_credential(request)) is not None:
        asker = RequesterRecord(RequesterKind.CREDENTIAL, str(credential), user, groups)
    elif requester is None:
        asker = RequesterRecord(RequesterKind.USER, user, user, groups)
    elif is_automatic:
        asker = RequesterRecord(RequesterKind.AGENT, user, user, groups)
    document = cluster.document if cluster else None
    candidate = RuleInput(name, document, tx.now, request, asker, str(grant.holder.agent or ""))
    return candidate, grant, is_automatic


def is_an_addons(subject: CertificateSubject) -> bool:
    """Whether a subject from an add-on's registration names neither operators nor the agent of any cluster."""
    if parse_agent_user(subject.common_name) is not None or OPERATOR_GROUP in subject.organizations:
        return False
    names = (each for each in subject.organizations if each.startswith(SUBJECT_PREFIX))
    return all(name.startswith(f"{SUBJECT_PREFIX}cluster:") for name in names)


def _is_own(tx: Transaction, requester: CertificateRecord, name: ClusterName, cluster: StoredObject | None) -> bool:
    """Whether the requester is the agent of an accepted cluster, and its certificate is not revoked."""
    return (
        requester.purpose is Purpose.AGENT
        and requester.cluster == name
        and cluster is not None
        and clusters.is_accepted(cluster.document)
        and not doc.is_deleting(cluster.document)
        and requester.revoked_at is None
        and requester.not_before <= tx.now
        and requester.agent == owners.own_agent(tx, name)
    )


def _needs_bound(tx: Transaction, candidate: RuleInput, request: StoredObject) -> bool:
    """Whether the cluster requires a bootstrap credential for its name alone, and the request used no such credential."""
    if not clusters.is_bound_only(candidate.document):
        return False
    credential = csr_rules.bootstrap_credential(request.document)
    record = tx.credentials.by_id(credential) if credential is not None else None
    return record is None or record.cluster != candidate.cluster


def _decision(rule: ApprovalRule, verdict: RuleAction, cluster: str, stored: StoredObject) -> RuleDecision:
    return RuleDecision(rule.name, verdict, cluster, stored.document, dry_run=rule.dry_run)


def _would(fitting: Sequence[ApprovalRule], what: str) -> str:
    names = ", ".join(f'"{rule.name}"' for rule in fitting)
    return f"In a dry run, {'a rule' if len(fitting) == 1 else 'rules'} would {what}: {names}."
