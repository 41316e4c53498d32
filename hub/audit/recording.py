"""Audit records of requests and of approval rules' decisions. The transaction of the change writes them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

import structlog

from hub.api.approvalrules import RuleAction, RuleDecision
from hub.api.auditrecords import DRY_RUN, AuditEntry, AuditLevel, AuditRecord, ObjectReference, ResponseStatus, Stage, User
from hub.api.meta import document as doc
from hub.api.meta.change import Change
from hub.audit.auditor import Auditor
from hub.ports import RECORDING, Recording, Transaction
from hub.registry.approvalrules.approval import RULE_ACTOR, ApprovalOutcome
from machinery.meta.objects import ChangeType
from machinery.product import NAME

CREATED, OK = 201, 200

log = structlog.get_logger(__name__)


class RequestRecording(Recording):
    """Audits the changes of one request. `make` returns the audit record for changes of a transaction; None: not required."""

    def __init__(self, auditor: Auditor, make: Callable[[Sequence[Change]], AuditRecord | None]) -> None:
        self._numbering = auditor.numbering
        self._make = make
        self._closed = False
        self.stored = False

    def entry(self, changes: Sequence[Change]) -> AuditEntry | None:
        if self.stored or self._closed or self._numbering is None:
            return None
        try:
            record = self._make(changes)
            return None if record is None else self._numbering.entry(record)
        except Exception:
            log.exception("the audit record of a change cannot be made in its transaction")
            return None

    def committed(self, entry: AuditEntry) -> None:
        del entry
        self.stored = True

    def close(self) -> None:
        """Ends the recording. Later writes of the request's tasks are not recorded."""
        self._closed = True


@contextmanager
def recording(auditor: Auditor, make: Callable[[Sequence[Change]], AuditRecord | None]) -> Iterator[RequestRecording]:
    """While the block runs, audits the changes that the request's task writes. `make`: see `RequestRecording`."""
    made = RequestRecording(auditor, make)
    token = RECORDING.set(made)
    try:
        yield made
    finally:
        made.close()
        RECORDING.reset(token)


def change_of(changes: Sequence[Change], resource: str) -> Change | None:
    """Returns the change of the requested resource; None if the request changed only other resources."""
    return next((change for change in changes if change.kind.partition(".")[0] == resource), None)


def status_of(change: Change | None, verb: str) -> ResponseStatus:
    created = change.type is ChangeType.ADDED if change is not None else verb == "create"
    return ResponseStatus(CREATED if created else OK)


class DecisionAudit:
    """Audits decisions of approval rules. Call `write` in the decisions' transaction, and `committed` after the commit."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor

    def write(self, tx: Transaction, outcome: ApprovalOutcome) -> ApprovalOutcome:
        if not outcome.decisions:
            return outcome
        records = tuple(record_of(decision, self._auditor.clock.now()) for decision in outcome.decisions)
        if self._auditor.numbering is not None:
            tx.audit.add([self._auditor.numbering.entry(record) for record in records])
        return replace(outcome, records=records)

    def committed(self, outcome: ApprovalOutcome) -> None:
        for record in outcome.records:
            self._auditor.offer(record, stored=self._auditor.numbering is not None)


def record_of(decision: RuleDecision, now: datetime) -> AuditRecord:
    """Returns the record of a decision. The audit policy does not apply, because a rule acts for the operator who made it."""
    metadata = doc.mapping(decision.about, "metadata")
    group, _, version = str(decision.about.get("apiVersion") or "").rpartition("/")
    accepts = decision.action is RuleAction.ACCEPT
    reference = ObjectReference(
        resource="managedclusters" if accepts else "certificatesigningrequests",
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        api_group=group,
        api_version=version,
        subresource="accept" if accepts else "approval",
    )
    notes = {f"{NAME}/rule": decision.rule, f"{NAME}/decision": str(decision.action), f"{NAME}/cluster": decision.cluster}
    return AuditRecord(
        level=AuditLevel.METADATA,
        audit_id=str(uuid4()),
        stage=Stage.RESPONSE_COMPLETE,
        verb="update",
        user=User(RULE_ACTOR + decision.rule),
        object_ref=reference,
        response_status=ResponseStatus(OK),
        received=now,
        at=now,
        annotations={**notes, DRY_RUN: "true"} if decision.dry_run else notes,
    )
