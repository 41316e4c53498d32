"""What a rule decided, as a record: nobody asked for it at a door, and it is remembered all the same."""

from uuid import uuid4

from hub.audit.auditor import Auditor
from hub.domain import document as doc
from hub.domain.approval_rule import Decision, Verdict
from hub.domain.audit import DRY_RUN, Level, ObjectReference, Record, ResponseStatus, Stage, User
from hub.services.approving import RULE_ACTOR
from machinery.product import NAME

DONE = 200


def remember_decision(auditor: Auditor, decision: Decision) -> None:
    """Whatever the policy says: an operator's rule stands for the operator."""
    now = auditor.clock.now()
    metadata = doc.mapping(decision.about, "metadata")
    group, _, version = str(decision.about.get("apiVersion") or "").rpartition("/")
    accepts = decision.verdict is Verdict.ACCEPT
    reference = ObjectReference(
        resource="managedclusters" if accepts else "certificatesigningrequests",
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        api_group=group,
        api_version=version,
        subresource="accept" if accepts else "approval",
    )
    notes = {f"{NAME}/rule": decision.rule, f"{NAME}/decision": str(decision.verdict), f"{NAME}/cluster": decision.cluster}
    record = Record(
        level=Level.METADATA,
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
    auditor.offer(record)
