"""ApprovalRule, a kind of this project: its declaration, its only write path, and the counts of the rules' decisions."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from hub.api import approvalrules
from hub.api.approvalrules import RuleAction, RuleDecision
from hub.api.certificatesigningrequests import RequestPhase, phase
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import APPROVAL_RULES
from hub.ports import Transaction, Written
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from machinery.apiserver.resource import TableRow
from machinery.meta.conditions import FALSE, TRUE, Condition
from machinery.meta.objects import Key, StoredObject
from machinery.meta.timestamps import format_time

_DECIDING = Condition("Active", TRUE, "Deciding", "The rule makes decisions.")
_PAUSED = Condition("Active", FALSE, "Paused", "The rule is paused and makes no decisions.")
_DRY_RUN = Condition("Active", FALSE, "DryRun", "The rule only reports the decisions that it would make.")
_COUNTED = {RuleAction.ACCEPT: ("accepted", "wouldAccept"), RuleAction.APPROVE: ("approved", "wouldApprove")}
"""Fields of the status for executed decisions, and for decisions of a dry run."""


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create an ApprovalRule (`old` None) or update it. Raises InvalidError and the errors of `Objects.put`.

    `writer`: see `hub.registry.generic.objects.write`.
    """
    admitted = approvalrules.admitted(new, old.document if old else None)
    return objects.put(tx, APPROVAL_RULES, admitted, old, actor, generations=True, writer=writer)


def count_decisions(tx: Transaction, decisions: Iterable[tuple[RuleDecision, datetime]], actor: str) -> None:
    """Add decisions with their times, in order of time, to the statuses of their rules. Ignores deleted rules."""
    by_name: dict[str, list[tuple[RuleDecision, datetime]]] = {}
    for decided in decisions:
        by_name.setdefault(decided[0].rule, []).append(decided)
    for name, made in by_name.items():
        stored = tx.objects.get(APPROVAL_RULES, Key("", name))
        if stored is not None:
            before = doc.mapping(stored.document, "status")
            new = Counter(_COUNTED[each.action][each.dry_run] for each, _ in made)
            counts = {count: int(before.get(count) or 0) + new[count] for pair in _COUNTED.values() for count in pair}
            decision, at = made[-1]
            last = {"decision": str(decision.action), "cluster": decision.cluster, "dryRun": decision.dry_run}
            matched, moment = sum(counts.values()), format_time(at)
            _write_status(tx, stored, actor, **counts, matched=matched, lastMatched=moment, last=last)


def describe(tx: Transaction, name: str, actor: str) -> None:
    """Set the rule's condition Active: the rule decides, is paused, or only records its decisions (dry run)."""
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


def undecided_of(tx: Transaction, clusters: Iterable[str]) -> list[str]:
    """Return the names of the undecided certificate requests of these clusters."""
    found = (stored for cluster in clusters for stored in request_objects.of_cluster(tx, cluster))
    return [stored.key.name for stored in found if phase(stored.document) is RequestPhase.PENDING]


def _mode(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return "Paused" if spec.get("paused") is True else "DryRun" if spec.get("dryRun") is True else "Active"


APPROVAL_RULE = ResourceDefinition(declared(APPROVAL_RULES, {"Mode": _mode}), put=put)
