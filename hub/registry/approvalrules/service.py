"""Use cases about ApprovalRules: the kind's only write path, and the counts of their decisions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hub.api import approvalrules
from hub.api.approvalrules import RuleDecision, RuleVerdict
from hub.api.certificatesigningrequests import RequestPhase, phase
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES, MANAGED_CLUSTERS, REQUESTS
from hub.ports import Transaction, Written
from hub.registry.approvalrules.approval import is_open
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.generic import objects
from machinery.meta.conditions import FALSE, TRUE, Condition
from machinery.meta.objects import Key, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time

PAGE = 500
NOT_ACCEPTED = Requirement("spec.hubAcceptsClient", Operator.EQUALS, ("false",))
_DECIDING = Condition("Active", TRUE, "Deciding", "The rule decides.")
_PAUSED = Condition("Active", FALSE, "Paused", "The rule is paused and decides nothing.")
_DRY_RUN = Condition("Active", FALSE, "DryRun", "The rule says what it would decide, and decides nothing.")
_COUNTS = ("accepted", "approved", "wouldAccept", "wouldApprove")


@dataclass(frozen=True, slots=True)
class DecisionCount:
    """Decisions of one rule since the last status update. `last`: the newest, made at `at`."""

    counts: Mapping[str, int]
    last: RuleDecision
    at: datetime

    @classmethod
    def of(cls, decision: RuleDecision, at: datetime) -> "DecisionCount":
        return cls({_counted(decision): 1}, decision, at)

    def and_then(self, later: "DecisionCount") -> "DecisionCount":
        counts = {name: self.counts.get(name, 0) + later.counts.get(name, 0) for name in _COUNTS}
        return replace(later, counts=counts)


def _counted(decision: RuleDecision) -> str:
    if decision.verdict is RuleVerdict.ACCEPT:
        return "wouldAccept" if decision.dry_run else "accepted"
    return "wouldApprove" if decision.dry_run else "approved"


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create (`old` None) or update. Raises InvalidError and the errors of `Objects.put`.

    `writer`: see `hub.registry.generic.objects.store`.
    """
    admitted = approvalrules.admitted(new, old.document if old else None)
    return objects.put(tx, APPROVAL_RULES, admitted, old, actor, generations=True, writer=writer)


def note(tx: Transaction, use_counts: Mapping[str, DecisionCount], actor: str) -> None:
    """Add decision counts to the rules' statuses; deleted rules are ignored."""
    for name, tally in use_counts.items():
        stored = tx.objects.get(APPROVAL_RULES, Key("", name))
        if stored is not None:
            _write_status(tx, stored, actor, **_counted_status(stored, tally))


def _counted_status(stored: StoredObject, tally: DecisionCount) -> dict[str, Any]:
    before = doc.mapping(stored.document, "status")
    counts = {name: int(before.get(name) or 0) + tally.counts.get(name, 0) for name in _COUNTS}
    last = {"decision": str(tally.last.verdict), "cluster": tally.last.cluster, "dryRun": tally.last.dry_run}
    return {**counts, "matched": sum(counts.values()), "lastMatched": format_time(tally.at), "last": last}


def describe(tx: Transaction, name: str, actor: str) -> None:
    """Set the condition that shows whether the rule decides."""
    stored = tx.objects.get(APPROVAL_RULES, Key("", name))
    if stored is None:
        return
    spec = doc.mapping(stored.document, "spec")
    state = _PAUSED if spec.get("paused") is True else _DRY_RUN if spec.get("dryRun") is True else _DECIDING
    conditions = doc.mapping(doc.with_status_condition(stored.document, state, tx.now), "status")["conditions"]
    generation = doc.mapping(stored.document, "metadata").get("generation", 1)
    _write_status(tx, stored, actor, conditions=conditions, observedGeneration=generation)


def _write_status(tx: Transaction, stored: StoredObject, actor: str, **fields: Any) -> None:
    new = doc.with_status(stored.document, **fields)
    if doc.differs(new, stored.document):
        put(tx, new, stored, actor, writer=HUB_WRITER)


def undecided_requests(tx: Transaction, after: Key | None) -> tuple[list[str], Key | None]:
    """One page of names of undecided requests, and the start of the next page."""
    page = tx.objects.find(REQUESTS, Query(limit=PAGE, after=after))
    return _undecided(page.items), page.after


def undecided_of(tx: Transaction, clusters: Iterable[str]) -> list[str]:
    """Names of undecided requests of these clusters."""
    names = []
    for cluster in clusters:
        names += _undecided(request_objects.of_cluster(tx, cluster))
    return names


def _undecided(requests: Iterable[StoredObject]) -> list[str]:
    return [stored.key.name for stored in requests if phase(stored.document) is RequestPhase.PENDING]


def open_clusters(tx: Transaction, after: Key | None) -> tuple[list[str], Key | None]:
    """One page of names of clusters that rules may still accept, and the start of the next page."""
    page = tx.objects.find(MANAGED_CLUSTERS, Query(fields=(NOT_ACCEPTED,), limit=PAGE, after=after))
    names = [stored.key.name for stored in page.items if is_open(stored.document)]
    return names, page.after
