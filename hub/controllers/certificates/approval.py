"""Acceptance of clusters, approval of requests and their issuance, and the statuses of the ApprovalRules that decide.

The controller `acceptance` also owns the condition HubAcceptedManagedCluster, which reflects `spec.hubAcceptsClient` as set by
an operator or a rule (OCM's ManagedCluster controller). A cluster that was never accepted has no such condition. Rules accept a
cluster only once, so a later denial by an operator stays. The controller `approval` approves and signs renewals, requests for
add-ons, and registrations that match a rule. It denies no request. All other requests wait for an operator; the controller
`issuance` signs them after their approval. The decisions are made in `hub.registry.approvalrules.approval`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from hub.api import certificatesigningrequests as requests
from hub.api.approvalrules import FLAG, ApprovalRule, RuleAction, RuleDecision
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.events import EventRecord
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES, MANAGED_CLUSTERS, NAMESPACES, REQUESTS
from hub.controllers import ACTOR
from hub.controllers.builder import ChangeFilter, ControllerBuilder, TransactionReconciler, all_of, generation_of
from hub.ports import Store, Transaction
from hub.registry.approvalrules import approval as approving, service as approval_rules
from hub.registry.approvalrules.approval import ApprovalOutcome
from hub.registry.certificatesigningrequests import issuance
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key
from machinery.meta.selectors import Operator, Requirement
from machinery.runtime.controller import Batch, BatchReconciler, Controller

NOT_ACCEPTED = Requirement("spec.hubAcceptsClient", Operator.EQUALS, ("false",))
ACCEPTANCE, APPROVAL, RULES, ISSUANCE = "acceptance", "approval", "approval-rules", "issuance"
COUNTS = ""
"""Key in the queue of the controller `approval-rules`. Its step writes the numbers of decisions into the ApprovalRules."""
ACCEPTED = "accepted/"
"""Prefix of keys in the queue of `approval-rules` that name a cluster whose pending requests a rule may approve now. No rule
name begins with this prefix."""
GATHER = timedelta(seconds=1)
"""Decisions are counted in memory. The counts are written together after this time, so that a decision does not wait for its
count. A hub that is killed loses the counts of this time, but not the decisions, which are in the audit log and on the
objects."""

Enqueue = Callable[[str], None]


@dataclass(eq=False)
class RuleReconciler(TransactionReconciler):
    """Calls the use case `step` for each name, with all approval rules.

    `globs`: name patterns of clusters that need no operator. `are_there_rules`: whether ApprovalRules may exist.
    """

    globs: tuple[str, ...] = ()
    are_there_rules: Callable[[], bool] = lambda: False

    @property
    def has_rules(self) -> bool:
        return bool(self.globs) or self.are_there_rules()

    def shared(self, tx: Transaction, names: Sequence[str]) -> Sequence[ApprovalRule]:
        self.read_ahead(tx, names)
        return approving.rules_in(tx, self.globs) if self.has_rules else ()


def _read_clusters_ahead(tx: Transaction, names: Sequence[str]) -> None:
    keys = [Key("", name) for name in names]
    tx.objects.read_ahead(MANAGED_CLUSTERS, keys)
    tx.objects.read_ahead(NAMESPACES, keys)  # each accepted cluster gets a namespace


def _accept(tx: Transaction, name: str, known: Sequence[ApprovalRule]) -> ApprovalOutcome | None:
    """Accept a cluster by the known rules, and write its condition."""
    cluster = ClusterName(name)
    outcome = approving.accept(tx, cluster, known) if known else None
    condition = _acceptance_condition(clusters.find(tx, cluster).document)
    if condition is not None:
        decisions = outcome.decisions if outcome else ()
        decided = [each.rule for each in decisions if not each.dry_run]
        # the rule that decided is the actor of both writes of the transaction
        actor = approving.RULE_ACTOR + decided[0] if decided else f"{ACTOR}:{ACCEPTANCE}"
        clusters.set_condition(tx, cluster, condition, actor)
        outcome = ApprovalOutcome(decisions, name if condition.status == conditions.TRUE else "")
    return outcome


def wants_acceptance(cluster: Document, *, are_there_rules: bool) -> bool:
    """Whether a step of the controller `acceptance` may change this cluster."""
    return _acceptance_condition(cluster) is not None or (are_there_rules and approving.is_open(cluster))


def _acceptance_condition(cluster: Document) -> Condition | None:
    """Return the condition HubAcceptedManagedCluster to write; None if the current condition is right."""
    current = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    is_true = current is not None and current.status == conditions.TRUE
    if doc.is_deleting(cluster) or cluster_rules.is_accepted(cluster) == is_true:
        return None
    if cluster_rules.is_accepted(cluster):
        return cluster_rules.accepted_condition(cluster)
    return cluster_rules.denied_condition(cluster)


def acceptance_reconciler(store: Store, globs: tuple[str, ...], **options: Any) -> RuleReconciler:
    """Return the reconciler that accepts clusters. `options`: further arguments of RuleReconciler."""
    return RuleReconciler(store, _accept, _read_clusters_ahead, globs=globs, **options)


def approval_reconciler(
    store: Store, globs: tuple[str, ...], sign: Callable[..., dict[str, Any]] | None = None, **options: Any
) -> RuleReconciler:
    """Return the reconciler that approves certificate requests. `sign`: see `hub.registry.approvalrules.approval.review`."""
    review = partial(approving.review, actor=f"{ACTOR}:{APPROVAL}", sign=sign)
    return RuleReconciler(store, review, approving.read_ahead, globs=globs, **options)


class RuleStatusReconciler(BatchReconciler[str]):
    """Writes statuses and counts of ApprovalRules.

    When a rule changes, enqueues all waiting clusters and requests. When a cluster is accepted, or gets other labels,
    annotations or URLs, enqueues its requests.
    """

    at_most = 100

    def __init__(self, store: Store, now: Callable[[], datetime], enqueue_cluster: Enqueue, enqueue_request: Enqueue) -> None:
        self._store = store
        self._now = now
        self._enqueue_cluster = enqueue_cluster
        self._enqueue_request = enqueue_request
        self._decisions: list[tuple[RuleDecision, datetime]] = []
        self.wanted = ChangeFilter(generation_of)

    def count(self, decision: RuleDecision) -> None:
        self._decisions.append((decision, self._now()))

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()
        accepted = [key for key in keys if key.startswith(ACCEPTED)]
        await batch.run(accepted, self._enqueue_requests_of)
        await batch.run([key for key in keys if key == COUNTS], self._write_counts)
        await batch.run([key for key in keys if key != COUNTS and key not in accepted], self._evaluate, at_once=1)
        return batch

    async def _enqueue_requests_of(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        names = tuple(key.removeprefix(ACCEPTED) for key in keys)
        for request in await self._store.read(approval_rules.undecided_of, names):
            self._enqueue_request(request)
        return dict.fromkeys(keys)

    async def _write_counts(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        taken, self._decisions = self._decisions, []
        try:
            await self._store.run(approval_rules.count_decisions, taken, f"{ACTOR}:{RULES}")
        except Exception:
            self._decisions = taken + self._decisions
            raise
        return dict.fromkeys(keys)

    async def _evaluate(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        await self._store.run(approval_rules.describe, keys[0], f"{ACTOR}:{RULES}")
        async for cluster in all_of(self._store, MANAGED_CLUSTERS, NOT_ACCEPTED):
            if approving.is_open(cluster.document):
                self._enqueue_cluster(cluster.key.name)
        async for request in all_of(self._store, REQUESTS):
            if requests.phase(request.document) is RequestPhase.PENDING:
                self._enqueue_request(request.key.name)
        return dict.fromkeys(keys)


def register(builder: ControllerBuilder) -> None:
    store, decisions = builder.store, builder.decisions
    status: RuleStatusReconciler
    acceptance: Controller[str]
    ruling: Controller[str]

    def committed(outcome: ApprovalOutcome) -> None:
        if decisions is not None:
            decisions.committed(outcome)
        for decision in outcome.decisions:
            status.count(decision)
            ruling.queue.add_after(COUNTS, GATHER)
            if decision.dry_run or (decision.action is RuleAction.APPROVE and decision.rule != FLAG):
                builder.record_event(_event_of(decision))
        if outcome.asking:  # a rule may accept the cluster of this request
            acceptance.enqueue(outcome.asking)
        if outcome.accepted:  # renewals and add-ons waited for the acceptance
            ruling.enqueue(ACCEPTED + outcome.accepted)

    options: dict[str, Any] = {"are_there_rules": lambda: bool(status.wanted.known), "committed": committed}
    options |= {} if decisions is None else {"record": decisions.write}
    signing: dict[str, Any] = {"issuer": builder.issuer, "lifetimes": builder.lifetimes}
    accepting = acceptance_reconciler(store, builder.settings.auto_approve, **options)
    approver = approval_reconciler(store, builder.settings.auto_approve, partial(issuance.sign_request, **signing), **options)
    acceptance, approval = builder.add(ACCEPTANCE, accepting), builder.add(APPROVAL, approver)
    status = RuleStatusReconciler(store, builder.clock.now, acceptance.enqueue, approval.enqueue)
    ruling = builder.add(RULES, status)
    issuing = builder.add_use_case(ISSUANCE, partial(issuance.issue, **signing))
    builder.watch_names(APPROVAL_RULES, ruling, status.wanted)
    builder.watch_names(
        MANAGED_CLUSTERS, acceptance, lambda cluster: wants_acceptance(cluster, are_there_rules=accepting.has_rules)
    )
    builder.watch_names(REQUESTS, approval, lambda request: requests.phase(request) is RequestPhase.PENDING)
    other = ChangeFilter(lambda one: hash(msgspec.json.encode([doc.labels(one), doc.annotations(one), one.get("spec")])))
    builder.watch(
        MANAGED_CLUSTERS,
        lambda key: ruling.enqueue(ACCEPTED + key.name),
        lambda one: bool(status.wanted.known) and other(one),  # patterns of names do not depend on what changes
    )
    builder.watch_names(REQUESTS, issuing, lambda request: requests.phase(request) is RequestPhase.APPROVED)


def _event_of(decision: RuleDecision) -> EventRecord:
    """Return the Event of a decision. For acceptances outside of dry runs, TransitionRecorder records the Event."""
    verb, noun = ("accept", "cluster") if decision.action is RuleAction.ACCEPT else ("approve", "certificate request")
    if decision.dry_run:
        message = f'in a dry run, the rule "{decision.rule}" would {verb} this {noun}'
        return EventRecord(decision.cluster, decision.about, "ApprovalRuleDryRun", message)
    return EventRecord(decision.cluster, decision.about, "ApprovedByRule", f'{noun} approved by the rule "{decision.rule}"')
