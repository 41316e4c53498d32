"""Acceptance of clusters, approval of requests and their issuance, and the statuses of the ApprovalRules that decide.

Acceptance also owns the condition HubAcceptedManagedCluster, which reflects `spec.hubAcceptsClient` as set by an operator or a
rule (OCM's ManagedCluster controller). A cluster that was never accepted has no such condition. A rule accepts a cluster only
once, so a later denial by an operator stands. Approval approves renewals, add-ons, and registrations that match a rule; it
never denies, and other requests wait for an operator. The rules are in `hub.registry.approvalrules.approval`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hub.api import certificatesigningrequests as requests
from hub.api.approvalrules import FLAG, ApprovalRule, RuleDecision, RuleVerdict
from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.events import EventRecord
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES, MANAGED_CLUSTERS, NAMESPACES, REQUESTS
from hub.controllers import ACTOR
from hub.controllers.batch import TransactionReconciler, UseCaseReconciler
from hub.controllers.builder import ControllerBuilder, GenerationFilter
from hub.ports import Issuer, Store, Transaction
from hub.registry.approvalrules import approval as approving, service as approval_rules
from hub.registry.approvalrules.approval import ApprovalOutcome
from hub.registry.approvalrules.service import DecisionCount
from hub.registry.certificatesigningrequests import issuance, service as request_service
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Batch, BatchReconciler

ACCEPTANCE, APPROVAL, RULES, ISSUANCE = "acceptance", "approval", "approval-rules", "issuance"
COUNTS = ""
"""Key of the rules' counts."""
ACCEPTED = "accepted/"
"""Prefix of keys of accepted clusters. No rule can have such a name."""
GATHER = timedelta(seconds=1)
"""Matches are counted in memory and written together, so that a decision does not wait for its count. A killed hub loses at
most this much of them; the decisions themselves are in the audit log and on the objects."""

Enqueue = Callable[[str], None]
Page = Callable[[Transaction, Key | None], tuple[list[str], Key | None]]
Record = Callable[[Transaction, ApprovalOutcome], ApprovalOutcome]


def unrecorded(_tx: Transaction, outcome: ApprovalOutcome) -> ApprovalOutcome:
    """For hubs that do not audit decisions."""
    return outcome


class RuleReconciler(TransactionReconciler):
    """`globs`: cluster names that need no operator. `are_there_rules`: whether ApprovalRules may exist.

    `record`: writes the audit records of each outcome in its transaction.
    """

    def __init__(
        self,
        store: Store,
        globs: tuple[str, ...],
        *,
        are_there_rules: Callable[[], bool] = lambda: False,
        committed: Callable[[ApprovalOutcome], None] = lambda _outcome: None,
        record: Record = unrecorded,
    ) -> None:
        super().__init__(store, committed)
        self._globs = globs
        self._are_there_rules = are_there_rules
        self._record = record

    @property
    def has_rules(self) -> bool:
        return bool(self._globs) or self._are_there_rules()

    def prepared(self, tx: Transaction, names: Sequence[str]) -> Callable[[str], object]:
        self.read_ahead(tx, names)
        known = approving.rules_in(tx, self._globs) if self.has_rules else ()

        def step(name: str) -> ApprovalOutcome | None:
            outcome = self.decide(tx, known, name)
            return None if outcome is None else self._record(tx, outcome)

        return step

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        """Read the objects of these names together."""
        raise NotImplementedError

    def decide(self, tx: Transaction, known: tuple[ApprovalRule, ...], name: str) -> ApprovalOutcome | None:
        """Decide about one name by the known rules."""
        raise NotImplementedError


class AcceptanceReconciler(RuleReconciler):
    def wanted(self, cluster: Document) -> bool:
        """Whether a step on this cluster may write."""
        return _verdict(cluster) is not None or (self.has_rules and approving.is_open(cluster))

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        keys = [Key("", name) for name in names]
        tx.objects.read_ahead(MANAGED_CLUSTERS, keys)
        tx.objects.read_ahead(NAMESPACES, keys)  # each accepted cluster gets a namespace

    def decide(self, tx: Transaction, known: tuple[ApprovalRule, ...], name: str) -> ApprovalOutcome | None:
        cluster = ClusterName(name)
        outcome = approving.accept(tx, cluster, known) if known else None
        verdict = _verdict(clusters.find(tx, cluster).document)
        if verdict is None:
            return outcome
        decided = [each.rule for each in outcome.decisions if not each.dry_run] if outcome else []
        # the rule that decided is the actor of both writes of the transaction
        actor = approving.RULE_ACTOR + decided[0] if decided else f"{ACTOR}:{ACCEPTANCE}"
        clusters.set_condition(tx, cluster, verdict, actor)
        accepted = name if verdict.status == conditions.TRUE else ""
        return ApprovalOutcome(outcome.decisions if outcome else (), accepted)


def _verdict(cluster: Document) -> Condition | None:
    """The condition HubAcceptedManagedCluster to write; None: the current one is right."""
    current = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    is_true = current is not None and current.status == conditions.TRUE
    if doc.is_deleting(cluster) or rules.is_accepted(cluster) == is_true:
        return None
    return rules.accepted(cluster) if rules.is_accepted(cluster) else rules.DENIED


class ApprovalReconciler(RuleReconciler):
    @staticmethod
    def wanted(request: Document) -> bool:
        """Whether the request is undecided."""
        return requests.phase(request) is RequestPhase.PENDING

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        approving.read_ahead(tx, names)

    def decide(self, tx: Transaction, known: tuple[ApprovalRule, ...], name: str) -> ApprovalOutcome:
        outcome = approving.review(tx, name, known, f"{ACTOR}:{APPROVAL}")
        return replace(outcome or ApprovalOutcome(), asking=approving.asking(tx, name, known))


class RuleStatusReconciler(BatchReconciler[str]):
    """Writes statuses and counts of ApprovalRules. Enqueues waiting clusters and requests when a rule or a cluster changes."""

    at_most = 100

    def __init__(self, store: Store, now: Callable[[], datetime], enqueue_cluster: Enqueue, enqueue_request: Enqueue) -> None:
        self._store = store
        self._now = now
        self._enqueue_cluster = enqueue_cluster
        self._enqueue_request = enqueue_request
        self._counts: dict[str, DecisionCount] = {}
        self.wanted = GenerationFilter()

    def count(self, decision: RuleDecision) -> None:
        """Add a decision to the next write of COUNTS."""
        self._add(decision.rule, DecisionCount.of(decision, self._now()))

    def _add(self, rule: str, count: DecisionCount) -> None:
        known = self._counts.get(rule)
        self._counts[rule] = known.and_then(count) if known else count

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()
        accepted = [key for key in keys if key.startswith(ACCEPTED)]
        await batch.run(accepted, self._enqueue_requests_of)
        await batch.run([key for key in keys if key == COUNTS], self._write_counts)
        await batch.run([key for key in keys if key != COUNTS and key not in accepted], self._evaluate, at_once=1)
        return batch

    async def _enqueue_requests_of(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        """Enqueue the requests that waited for the acceptance of their clusters."""
        names = tuple(key.removeprefix(ACCEPTED) for key in keys)
        for request in await self._store.read(approval_rules.undecided_of, names):
            self._enqueue_request(request)
        return dict.fromkeys(keys)

    async def _write_counts(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        taken, self._counts = self._counts, {}
        try:
            await self._store.run(approval_rules.note, taken, f"{ACTOR}:{RULES}")
        except Exception:
            later, self._counts = self._counts, taken
            for rule, count in later.items():
                self._add(rule, count)
            raise
        return dict.fromkeys(keys)

    async def _evaluate(self, keys: Sequence[str]) -> Mapping[str, timedelta | None]:
        await self._store.run(approval_rules.describe, keys[0], f"{ACTOR}:{RULES}")
        await self._enqueue_pages(approval_rules.open_clusters, self._enqueue_cluster)
        await self._enqueue_pages(approval_rules.undecided_requests, self._enqueue_request)
        return dict.fromkeys(keys)

    async def _enqueue_pages(self, page: Page, enqueue: Enqueue) -> None:
        after: Key | None = None
        while True:
            names, after = await self._store.read(page, after)
            for name in names:
                enqueue(name)
            if after is None:
                return


def issuance_reconciler(store: Store, issuer: Issuer, lifetimes: Lifetimes) -> UseCaseReconciler:
    """Signs with `issuer`; the hub's records determine the content of each certificate."""

    def issue(tx: Transaction, name: str, actor: str) -> None:
        issuance.issue(tx, name, issuer, lifetimes, actor)

    return UseCaseReconciler(store, issue, f"{ACTOR}:{ISSUANCE}", request_service.read_ahead)


def _is_approved(request: Document) -> bool:
    """Whether the request is approved and not signed."""
    return requests.phase(request) is RequestPhase.APPROVED


def register(builder: ControllerBuilder) -> None:
    store, decisions = builder.store, builder.decisions

    def committed(outcome: ApprovalOutcome) -> None:
        if decisions is not None:
            decisions.committed(outcome)
        for decision in outcome.decisions:
            status.count(decision)
            ruling.queue.add_after(COUNTS, GATHER)
            if decision.dry_run or (decision.verdict is RuleVerdict.APPROVE and decision.rule != FLAG):
                builder.record_event(_event_of(decision))
        if outcome.asking:  # a rule may accept the cluster of this request
            acceptance.enqueue(outcome.asking)
        if outcome.accepted:  # renewals and add-ons waited for the acceptance
            ruling.enqueue(ACCEPTED + outcome.accepted)

    def enqueue_cluster(name: str) -> None:
        acceptance.enqueue(name)

    def enqueue_request(name: str) -> None:
        approval.enqueue(name)

    status = RuleStatusReconciler(store, builder.clock.now, enqueue_cluster, enqueue_request)
    ruling = builder.add(RULES, status)
    record = unrecorded if decisions is None else decisions.write
    globs = builder.settings.auto_approve

    def are_there_rules() -> bool:
        return bool(status.wanted.known)

    accepting = AcceptanceReconciler(store, globs, are_there_rules=are_there_rules, committed=committed, record=record)
    acceptance = builder.add(ACCEPTANCE, accepting)
    approver = ApprovalReconciler(store, globs, are_there_rules=are_there_rules, committed=committed, record=record)
    approval = builder.add(APPROVAL, approver)
    builder.watch_names(APPROVAL_RULES, ruling, status.wanted)
    builder.watch_names(MANAGED_CLUSTERS, acceptance, accepting.wanted)
    builder.watch_names(REQUESTS, approval, ApprovalReconciler.wanted)
    issuance_ = builder.add(ISSUANCE, issuance_reconciler(store, builder.issuer, builder.lifetimes))
    builder.watch_names(REQUESTS, issuance_, _is_approved)


def _event_of(decision: RuleDecision) -> EventRecord:
    """The Event of a decision; TransitionRecorder records acceptances."""
    verb, noun = ("accept", "cluster") if decision.verdict is RuleVerdict.ACCEPT else ("approve", "certificate request")
    if decision.dry_run:
        message = f'in a dry run, the rule "{decision.rule}" would {verb} this {noun}'
        return EventRecord(decision.cluster, decision.about, "ApprovalRuleDryRun", message)
    return EventRecord(decision.cluster, decision.about, "ApprovedByRule", f'{noun} approved by the rule "{decision.rule}"')
