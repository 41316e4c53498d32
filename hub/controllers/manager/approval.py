"""Connects the controllers of acceptance, approval and approval rules."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hub.api.approvalrules import FLAG, RuleDecision, RuleVerdict
from hub.api.events import EventRecord
from hub.api.meta.change import APPROVAL_RULES, MANAGED_CLUSTERS, REQUESTS
from hub.controllers.batch import TOGETHER
from hub.controllers.certificates import approval
from hub.controllers.certificates import approval_rules as rules
from hub.controllers.certificates.approval import Approval
from hub.controllers.certificates.approval_rules import Rules
from hub.controllers.clusters import acceptance
from hub.controllers.clusters.acceptance import AcceptanceController
from hub.controllers.feed import EventHandler
from hub.controllers.rule_controller import unrecorded
from hub.ports import Store, Transaction
from hub.registry.approvalrules.approval import ApprovalOutcome
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Controller


class DecisionRecorder(Protocol):
    """Writes audit records of decisions in the deciding transaction."""

    def write(self, tx: Transaction, outcome: ApprovalOutcome) -> ApprovalOutcome:
        """Write the records; returns the outcome including them."""

    def committed(self, outcome: ApprovalOutcome) -> None: ...


class Deciding:
    """`tell` records an Event without blocking. `decisions`: None: decisions are not audited."""

    def __init__(
        self,
        store: Store,
        globs: tuple[str, ...],
        clock: Clock,
        *,
        tell: Callable[[EventRecord], None],
        decisions: DecisionRecorder | None = None,
    ) -> None:
        self._tell = tell
        self._decisions = decisions
        record = decisions.write if decisions is not None else unrecorded
        # ApprovalRules: statuses, and re-evaluation after a change
        self._rules = Rules(store, clock.now, self._look_at_cluster, self._look_at_request)
        self._ruling = Controller(rules.NAME, self._rules)
        # spec.hubAcceptsClient -> condition HubAcceptedManagedCluster, and acceptance by rules
        self._accepting = AcceptanceController(
            store, globs, are_there_rules=self._are_there_rules, committed=self.committed, record=record
        )
        self._acceptance = Controller(acceptance.NAME, self._accepting)
        # renewals, add-ons, and registrations that match a rule -> condition Approved
        self._approving = Approval(store, globs, are_there_rules=self._are_there_rules, committed=self.committed, record=record)
        self._approval = Controller(approval.NAME, self._approving)

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        return self._ruling, self._acceptance, self._approval

    @property
    def routes(self) -> Sequence[EventHandler]:
        """Rules come first, so that they are known when clusters and requests are handled."""
        return (
            EventHandler(APPROVAL_RULES, lambda key: self._ruling.enqueue(key.name), self._rules.wanted),
            EventHandler(MANAGED_CLUSTERS, lambda key: self._look_at_cluster(key.name), self._accepting.wanted),
            EventHandler(REQUESTS, lambda key: self._look_at_request(key.name), approval.wanted),
        )

    def _are_there_rules(self) -> bool:
        return self._rules.any

    def _look_at_cluster(self, name: str) -> None:
        self._accepting.wants(name)
        self._acceptance.enqueue(TOGETHER)

    def _look_at_request(self, name: str) -> None:
        self._approving.wants(name)
        self._approval.enqueue(TOGETHER)

    def committed(self, outcome: ApprovalOutcome) -> None:
        """Process the outcome of a step after its commit."""
        if self._decisions is not None:
            self._decisions.committed(outcome)
        for decision in outcome.decisions:
            self._rules.count(decision)
            self._ruling.queue.add_after(rules.COUNTS, rules.GATHER)
            if decision.dry_run or (decision.verdict is RuleVerdict.APPROVE and decision.rule != FLAG):
                self._tell(_told(decision))
        if outcome.asking:
            self._look_at_cluster(outcome.asking)
        if outcome.accepted:  # renewals and add-ons that waited for the acceptance
            self._rules.accepted(outcome.accepted)
            self._ruling.enqueue(rules.ACCEPTED)


def _told(decision: RuleDecision) -> EventRecord:
    """The Event of a decision; TransitionRecorder records acceptances."""
    verb, noun = ("accept", "cluster") if decision.verdict is RuleVerdict.ACCEPT else ("approve", "certificate request")
    if decision.dry_run:
        message = f'in a dry run, the rule "{decision.rule}" would {verb} this {noun}'
        return EventRecord(decision.cluster, decision.about, "ApprovalRuleDryRun", message)
    return EventRecord(decision.cluster, decision.about, "ApprovedByRule", f'{noun} approved by the rule "{decision.rule}"')
