"""AuditRecord, a kind of this project: a request to the hub, its user and its outcome, as an event of `audit.k8s.io/v1`."""

from typing import Any

from hub.api.auditrecords import DRY_RUN
from hub.api.meta import document as doc
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import Storage

TEXT: dict[str, Any] = {"type": "string"}
MOMENT: dict[str, Any] = {"type": "string", "format": "date-time"}
NUMBER: dict[str, Any] = {"type": "integer", "format": "int64"}
FREE: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
"""Any type, because a JSON patch is a list."""
USER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "username": TEXT,
        "uid": TEXT,
        "groups": {"type": "array", "items": TEXT},
        "extra": {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "AuditRecord is one request that the hub's audit policy wanted remembered. Select by the fields user, verb, "
    "resource, namespace, name, since and until, as in since=2026-11-21T08:00:00Z,verb=delete.",
    "properties": {
        "level": {**TEXT, "description": "How much is remembered: Metadata, Request or RequestResponse."},
        "auditID": {**TEXT, "description": "The request's id: its answer carried it as the header Audit-Id."},
        "stage": {**TEXT, "description": "ResponseStarted, ResponseComplete, Panic; Dropped: records that found no room."},
        "requestURI": TEXT,
        "verb": TEXT,
        "user": {**USER, "description": "Who really asked."},
        "impersonatedUser": {**USER, "description": "On whose behalf, when that was another."},
        "sourceIPs": {"type": "array", "items": TEXT},
        "userAgent": TEXT,
        "objectRef": {
            "type": "object",
            "properties": dict.fromkeys(
                ("resource", "namespace", "name", "uid", "apiGroup", "apiVersion", "subresource"), TEXT
            ),
        },
        "responseStatus": {"type": "object", "properties": {"code": {**NUMBER, "format": "int32"}, "reason": TEXT}},
        "requestObject": FREE,
        "responseObject": FREE,
        "requestReceivedTimestamp": MOMENT,
        "stageTimestamp": MOMENT,
        "annotations": {"type": "object", "additionalProperties": TEXT},
        "dropped": {"type": "object", "properties": {"count": NUMBER, "first": MOMENT, "last": MOMENT}},
    },
}


def _of(*path: str) -> Any:
    return lambda row: doc.mapping(row.document, *path[:-1]).get(path[-1], "") if path[:-1] else row.document.get(path[-1], "")


def _object(row: TableRow) -> str:
    """Returns the object of the request, as kubectl names it; for dropped records their number."""
    reference = doc.mapping(row.document, "objectRef")
    if not reference:
        count = doc.mapping(row.document, "dropped").get("count")
        return f"{count} records dropped" if count else str(row.document.get("requestURI", ""))
    parts = [str(reference.get(part, "")) for part in ("resource", "name", "subresource")]
    return "/".join(part for part in parts if part)


def _verb(row: TableRow) -> str:
    """Returns the verb, and whether the request was a dry run, which changes nothing."""
    dry = doc.mapping(row.document, "annotations").get(DRY_RUN)
    return f"{row.document.get('verb', '')}{' (dry run)' if dry else ''}"


def _source(row: TableRow) -> str:
    return ", ".join(str(source) for source in doc.sequence(row.document, "sourceIPs"))


COLUMNS = (
    Column("Time", _of("stageTimestamp"), description="When it was answered."),
    Column("User", _of("user", "username"), description="Who really asked."),
    Column("Verb", _verb, description="What was asked."),
    Column("Object", _object, description="About what: resource, name, subresource."),
    Column("Namespace", _of("objectRef", "namespace"), description="In which namespace."),
    Column("Code", _of("responseStatus", "code"), type="integer", description="How it was answered."),
    Column("Stage", _of("stage"), description="Where the request stood.", priority=1),
    Column("As", _of("impersonatedUser", "username"), description="On whose behalf, when that was another.", priority=1),
    Column("Source", _source, description="Where the request came from.", priority=1),
    Column("Audit-ID", _of("auditID"), description="The request's id.", priority=1),
    AGE,
)


def audit_record(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="auditrecords",
        kind="AuditRecord",
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=COLUMNS,
        selectable_names=("user", "verb", "resource", "namespace", "name", "since", "until"),
        storage=storage,
    )
