"""Audit records (events of Kubernetes' `audit.k8s.io/v1` as JSON), their position in the store, and queries."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from machinery.product import NAME
from machinery.sanitize import plain

LOGIN_FAILURE = f"login.{NAME}/failure"
"""Annotation with the reason why a token was not exchanged."""
DRY_RUN = f"{NAME}/dry-run"
"""Annotation of the record of a dry run, which changed nothing."""
STRANGERS = ".refused"
"""Suffix of `AuditEntry.replica` in records of refused callers without a known credential."""


class AuditLevel(StrEnum):
    """Level of detail of a record. Each level includes the previous level."""

    NONE = "None"
    METADATA = "Metadata"
    REQUEST = "Request"
    REQUEST_RESPONSE = "RequestResponse"


class Stage(StrEnum):
    """Stage of the request. Only this project has DROPPED: such a record counts records that were dropped for lack of space."""

    RESPONSE_STARTED = "ResponseStarted"
    RESPONSE_COMPLETE = "ResponseComplete"
    PANIC = "Panic"
    DROPPED = "Dropped"


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = {}


class ObjectReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class ResponseStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """HTTP code (for a gRPC call: the corresponding HTTP code), and the reason of a refusal."""

    code: int
    reason: str = ""


class Dropped(msgspec.Struct, frozen=True):
    """Number of records that were dropped between two instants, `first` and `last`."""

    count: int
    first: datetime
    last: datetime


NO_BODY = msgspec.Raw()


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, rename="camel"):
    """One record. Bodies are JSON, or NO_BODY if none is recorded; no field ever contains a credential."""

    level: AuditLevel
    audit_id: str = msgspec.field(default="", name="auditID")
    stage: Stage
    request_uri: str = msgspec.field(default="", name="requestURI")
    verb: str = ""
    user: User | None = None
    impersonated_user: User | None = None
    source_ips: tuple[str, ...] = msgspec.field(default=(), name="sourceIPs")
    user_agent: str = ""
    object_ref: ObjectReference | None = None
    response_status: ResponseStatus | None = None
    request_object: msgspec.Raw = NO_BODY
    response_object: msgspec.Raw = NO_BODY
    received: datetime | None = msgspec.field(default=None, name="requestReceivedTimestamp")
    at: datetime = msgspec.field(name="stageTimestamp")
    dropped: Dropped | None = None
    annotations: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class AuditFields:
    """Searchable fields. `user` is the authenticated user, even with impersonation; `resource` has no group or subresource."""

    user: str = ""
    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""


def _cleaned(value: Any) -> Any:
    """Return a copy with sanitized text, because text from clients may be impossible to encode or to search."""
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


encode_record = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditRecord).decode


_MAY_BE_STRANGE = re.compile(rb"\\[bfu]|\x7f")


def _encoded(record: AuditRecord) -> tuple[AuditRecord, bytes]:
    """Return the sanitized record and its JSON. Only a record with suspicious characters is sanitized, because this is slow."""
    with suppress(UnicodeEncodeError):  # a lone surrogate
        if _MAY_BE_STRANGE.search(document := encode_record(record)) is None:
            return record, document
    record = _cleaned(record)
    return record, encode_record(record)


def read_record(document: bytes) -> AuditRecord | None:
    """Parse a record; None if the bytes are not a record."""
    try:
        return _decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A stored record. `replica` and `sequence` identify it uniquely.

    `replica`: name of a replica plus an id of one run of its process. `fields` and `at` duplicate values of the document.
    """

    replica: str
    sequence: int
    at: datetime
    fields: AuditFields
    document: bytes


class Numbering:
    """Assigns `replica` and `sequence` to records. `suffix`: added to `replica`, marks one class of records."""

    def __init__(self, replica: str, suffix: str = "") -> None:
        self.replica = f"{replica}.{uuid4().hex[:8]}{suffix}"
        self._numbers = count(1)

    def entry(self, record: AuditRecord) -> AuditEntry:
        """Return a record's AuditEntry with the next sequence number. Never fails, even for invalid text from a client."""
        record, document = _encoded(record)
        about, user = record.object_ref or ObjectReference(), record.user.username if record.user else ""
        fields = AuditFields(user, record.verb, about.resource, about.namespace, about.name)
        return AuditEntry(self.replica, next(self._numbers), record.at, fields, document)


def named(at: datetime, replica: str, sequence: int) -> str:
    """Return the name of a record in the API: `20261121t210314.123456z-<replica>-<sequence>`. Names sort by time."""
    return f"{at:%Y%m%dt%H%M%S.%fz}-{replica}-{sequence:012}"


@dataclass(frozen=True, slots=True)
class AuditPosition:
    """Position of a record, ordered by time, then by replica."""

    at: datetime
    replica: str
    sequence: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A query for records. `equal`, `unequal`: pairs of field (`user`, `verb`, ...) and value; `since`, `until`: inclusive."""

    equal: tuple[tuple[str, str], ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    after: AuditPosition | None = None
    limit: int | None = None
    newest_first: bool = False


@dataclass(frozen=True, slots=True)
class AuditSize:
    """Size of a set of audit records, for example of all records of one user. `bytes`: their size in the database."""

    records: int = 0
    bytes: int = 0
    floor: datetime | None = None
    """Only for the records of one user: time before which the database has no records of this user; None: unknown."""

    def without(self, gone: "AuditSize") -> "AuditSize":
        """Return the size after the removal of the records that `gone` counts."""
        return AuditSize(self.records - gone.records, self.bytes - gone.bytes, gone.floor)
