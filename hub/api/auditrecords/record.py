"""What is remembered of a request: an event of Kubernetes' `audit.k8s.io/v1`, as JSON."""

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
"""The annotation with the reason why a token was not exchanged."""
DRY_RUN = f"{NAME}/dry-run"
"""The annotation of what changed nothing, because it was a dry run."""
STRANGERS = ".refused"
"""The end of the place of each refusal of a stranger."""


class AuditLevel(StrEnum):
    """How much is remembered: each includes the one before."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class Stage(StrEnum):
    """Where the request stood. DROPPED is ours: it stands for records that found no room."""

    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"
    DROPPED = "Dropped"


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asked."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What was asked about."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """How it was answered: the HTTP code (on the agents' door the one that fits), and the reason of a refusal."""

    code: int
    reason: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Records that found no room between two instants."""

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
    """One record. Bodies are JSON, NO_BODY where none is remembered; no field ever holds a credential."""

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
    """What records are found by. `resource` is the plain one, without group and subresource."""

    user: str = ""
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


def fields_of(record: AuditRecord) -> AuditFields:
    """What the record is found by: the real asker, also where another was impersonated."""
    reference = record.object_ref or ObjectReference()
    user = record.user.username if record.user else ""
    return AuditFields(user, record.verb, reference.resource, reference.namespace, reference.name)


def plain_record(record: AuditRecord) -> AuditRecord:
    """The record with text alone in it: what clients send may be anything, and could be neither encoded nor looked for."""
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
    """The record in the bytes; None when they hold none."""
    try:
        return _decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
