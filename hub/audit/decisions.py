"""Audit records of approval rules' decisions, written in the transaction of the decision, as no request has caused them."""

from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from hub.api.approvalrules import RuleDecision, RuleVerdict
from hub.api.auditrecords import DRY_RUN, AuditLevel, AuditRecord, ObjectReference, ResponseStatus, Stage, User
from hub.api.meta import document as doc
from hub.audit.auditor import Auditor
from hub.ports import Transaction
from hub.registry.approvalrules.approval import RULE_ACTOR, ApprovalOutcome
from machinery.product import NAME

DONE = 200


class DecisionAudit:
    """Call `write` in the transaction of the decisions and `committed` after it."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def write(self, tx: Transaction, outcome: ApprovalOutcome) -> ApprovalOutcome:
        """Writes the records of an outcome's decisions to the database and returns the outcome with them."""
        if not outcome.decisions:
            return outcome
        records = tuple(record_of(decision, self._auditor.clock.now()) for decision in outcome.decisions)
        if self._auditor.numbering is not None:
            tx.audit.add([self._auditor.numbering.entry(record) for record in records])
        return replace(outcome, records=records)

    def committed(self, outcome: ApprovalOutcome) -> None:
        """Offers the records to the other trails."""
        for record in outcome.records:
            self._auditor.offer(record, stored=self._auditor.numbering is not None)


def record_of(decision: RuleDecision, now: datetime) -> AuditRecord:
    """Returns the record of a decision. The policy does not apply: a rule acts for the operator that made it."""
    metadata = doc.mapping(decision.about, "metadata")
    group, _, version = str(decision.about.get("apiVersion") or "").rpartition("/")
    accepts = decision.verdict is RuleVerdict.ACCEPT
    reference = ObjectReference(
        resource="managedclusters" if accepts else "certificatesigningrequests",
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        api_group=group,
        api_version=version,
        subresource="accept" if accepts else "approval",
    )
    notes = {f"{NAME}/rule": decision.rule, f"{NAME}/decision": str(decision.verdict), f"{NAME}/cluster": decision.cluster}
    return AuditRecord(
        level=AuditLevel.METADATA,
        audit_id=str(uuid4()),
        stage=Stage.RESPONSE_COMPLETE,
        verb="update",
        user=User(RULE_ACTOR + decision.rule),
        object_ref=reference,
        response_status=ResponseStatus(DONE),
        received=now,
        at=now,
        annotations={**notes, DRY_RUN: "true"} if decision.dry_run else notes,
    )
