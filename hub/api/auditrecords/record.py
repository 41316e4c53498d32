"""Audit records: events of Kubernetes' `audit.k8s.io/v1`, as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from machinery.product import NAME
from machinery.sanitize import plain

LOGIN_FAILURE = f"login.{NAME}/failure"
"""Annotation with the reason why a token was not exchanged."""
DRY_RUN = f"{NAME}/dry-run"
"""Annotation of a dry run, which changed nothing."""
STRANGERS = ".refused"
"""Suffix of `replica` in records of refused strangers."""


class AuditLevel(StrEnum):
    """How much is recorded; each level includes the previous one."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class Stage(StrEnum):
    """Stage of the request. DROPPED is ours: it counts records that were dropped for lack of space."""

    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"
    DROPPED = "Dropped"


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """The caller."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The requested object."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """HTTP code (at the gRPC door the corresponding one), and the reason of a refusal."""

    code: int
    reason: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Records that were dropped between two instants."""

    count: int
    first: datetime
    last: datetime


_NAMES = {
    "audit_id": "auditID",
    "request_uri": "requestURI",
    "impersonated_user": "impersonatedUser",
    "source_ips": "sourceIPs",
    "user_agent": "userAgent",
    "object_ref": "objectRef",
    "response_status": "responseStatus",
    "request_object": "requestObject",
    "response_object": "responseObject",
    "received": "requestReceivedTimestamp",
    "at": "stageTimestamp",
}


NO_BODY = msgspec.Raw()


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename=_NAMES):
    """One record. Bodies are JSON, or NO_BODY if none is recorded; no field ever contains a credential."""

    level: AuditLevel
    audit_id: str = ""
    stage: Stage
    request_uri: str = ""
    verb: str = ""
    user: User | None = None
    impersonated_user: User | None = None
    source_ips: tuple[str, ...] = ()
    user_agent: str = ""
    object_ref: ObjectReference | None = None
    response_status: ResponseStatus | None = None
    request_object: msgspec.Raw = NO_BODY
    response_object: msgspec.Raw = NO_BODY
    received: datetime | None = None
    at: datetime
    dropped: Dropped | None = None
    annotations: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class AuditFields:
    """Searchable fields. `resource` has neither group nor subresource."""

    user: str = ""
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


def fields_of(record: AuditRecord) -> AuditFields:
    """Searchable fields of the record. The user is the authenticated one, even with impersonation."""
    reference = record.object_ref or ObjectReference()
    user = record.user.username if record.user else ""
    return AuditFields(user, record.verb, reference.resource, reference.namespace, reference.name)


def plain_record(record: AuditRecord) -> AuditRecord:
    """The record with sanitized text, since text from clients may be impossible to encode or to search."""
    cleaned: AuditRecord = _cleaned(record)
    return cleaned


def _cleaned(value: Any) -> Any:
    match value:
        case Enum():
            return value
        case str():
            return plain(value)
        case tuple():
            return tuple(_cleaned(item) for item in value)
        case Mapping():
            return {_cleaned(key): _cleaned(item) for key, item in value.items()}
        case msgspec.Struct():
            return replace(value, **{name: _cleaned(getattr(value, name)) for name in value.__struct_fields__})
    return value


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditRecord).decode


def written_record(record: AuditRecord) -> bytes:
    """The record as JSON."""
    return _encode(record)


def read_record(document: bytes) -> AuditRecord | None:
    """The record in the bytes; None if they are not a record."""
    try:
        return _decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
