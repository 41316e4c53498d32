"""Owns the condition HubAcceptedManagedCluster, which reflects `spec.hubAcceptsClient` as set by an operator or a rule.

Source: OCM's ManagedCluster controller. A cluster that was never accepted has no such condition. A rule accepts a cluster only
once, so a later denial by an operator stands.
"""

from collections.abc import Callable, Sequence
from functools import partial

from hub.api.approvalrules import ApprovalRule
from hub.api.managedclusters import cluster as rules
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, NAMESPACES
from hub.controllers import ACTOR
from hub.controllers.rule_controller import Ruled
from hub.ports import Transaction
from hub.registry.approvalrules import approval as approving
from hub.registry.approvalrules.approval import ApprovalOutcome
from hub.registry.managedclusters import service as clusters
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key

NAME = "acceptance"


class AcceptanceController(Ruled):
    """Updates many clusters in one transaction."""

    def wanted(self, cluster: Document) -> bool:
        """Whether a step on this cluster may write."""
        return _verdict(cluster) is not None or (self.has_rules and approving.is_open(cluster))

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        keys = [Key("", name) for name in names]
        tx.objects.read_ahead(MANAGED_CLUSTERS, keys)
        tx.objects.read_ahead(NAMESPACES, keys)  # each accepted cluster gets a namespace

    def prepared(self, tx: Transaction) -> Callable[[str], object]:
        return partial(self._step, tx, self.rules_in(tx))

    def _step(self, tx: Transaction, known: tuple[ApprovalRule, ...], name: str) -> ApprovalOutcome | None:
        cluster = ClusterName(name)
        outcome = approving.accept(tx, cluster, known) if known else None
        verdict = _verdict(clusters.find(tx, cluster).document)
        if verdict is None:
            return outcome
        clusters.set_condition(tx, cluster, verdict, _actor(outcome))
        accepted = name if verdict.status == conditions.TRUE else ""
        return ApprovalOutcome(outcome.decisions if outcome else (), accepted)


def _actor(outcome: ApprovalOutcome | None) -> str:
    """The rule that decided, so that both writes of the transaction have one actor; else this controller."""
    decided = [each.rule for each in outcome.decisions if not each.dry_run] if outcome else []
    return approving.RULE_ACTOR + decided[0] if decided else f"{ACTOR}:{NAME}"


def _verdict(cluster: Document) -> Condition | None:
    """The condition to write; None: the current one is right."""
    current = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    is_true = current is not None and current.status == conditions.TRUE
    if doc.is_deleting(cluster) or rules.is_accepted(cluster) == is_true:
        return None
    return rules.accepted(cluster) if rules.is_accepted(cluster) else rules.DENIED
