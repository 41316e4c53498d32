"""Decoder for request bodies in Kubernetes' protobuf, driven by tables of fields.

Kubernetes' typed clients send protobuf for built-in kinds and accept JSON responses. A body is four magic bytes and a
`runtime.Unknown`, which holds the kind's name and the message. The server reads few messages and writes none, so it uses tables
instead of generated code; their numbers and names are from the `generated.proto` files of Kubernetes' API packages. Unknown
fields are skipped, as protobuf requires.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from machinery.errors import BadRequestError
from machinery.meta.timestamps import format_micro_time, format_time

MAGIC = b"k8s\x00"
ANY_VERSION = "*"
"""Matches every apiVersion in a table of messages: clients send options in the version of the kind that they act on."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
MOST_FIELDS = 5_000
"""Most fields of a body, including nested and unknown ones; decoding one takes a few microseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Message = Mapping[int, "MessageField"]


class FieldKind(Enum):
    TEXT = "text"
    BYTES = "bytes"
    RAW = "raw"
    """Bytes that are decoded later."""
    INTEGER = "int"
    BOOLEAN = "bool"
    TIME = "time"
    MICRO_TIME = "microtime"
    MESSAGE = "message"
    MAP = "map"
    """Entries of key 1 and value 2; `message` is the entry's table."""
    LIST = "list"
    """A message with only a repeated field 1, which is a plain list in JSON."""


@dataclass(frozen=True, slots=True)
class MessageField:
    """One field. `pointer`: a zero value was set explicitly and is kept; other fields are omitted when empty, as in JSON."""

    name: str
    kind: FieldKind = FieldKind.TEXT
    message: Message | None = None
    repeated: bool = False
    pointer: bool = False


_FIELD = re.compile(r"(\d+) (\w+)(?::(\w+))?(\?|\[\]|\{\})?")


def message(fields: str, **nested: Message) -> Message:
    """A table of fields in short form, such as `1 name, 8 creationTimestamp:time, 10 deletionGracePeriodSeconds:int?`.

    After the colon is the FieldKind (by default text) or the name of a message in `nested`. `?`: a pointer; `[]`: repeated;
    `{}`: a map from text to this kind.
    """
    table: dict[int, MessageField] = {}
    for text in fields.split(", "):
        found = _FIELD.fullmatch(text)
        if found is None:
            raise ValueError(f"no field of a message: {text}")
        number, name, kind, mark = found.groups()
        inner = nested.get(kind)
        is_kind = FieldKind.MESSAGE if inner is not None else FieldKind(kind or "text")
        if mark == "{}":
            entry = {1: MessageField("key"), 2: MessageField("value", is_kind)}
            table[int(number)] = MessageField(name, FieldKind.MAP, entry)
        else:
            table[int(number)] = MessageField(name, is_kind, inner, repeated=mark == "[]", pointer=mark == "?")
    return table


_ENVELOPE = message("1 typeMeta:type, 2 raw:raw", type=message("1 apiVersion, 2 kind"))
"""A `runtime.Unknown`."""
_MOMENT = message("1 seconds:int, 2 nanos:int")


_UNREADABLE = "the protobuf body of the request cannot be read"


class _MalformedError(Exception):
    """The bytes are not a valid message."""


def decode(body: bytes, messages: Mapping[tuple[str, str], Message]) -> dict[str, Any] | None:
    """Decode `body` by the table of its apiVersion and kind; None: there is no table for it.

    Raises BadRequestError for a malformed body.
    """
    if not body.startswith(MAGIC):
        raise BadRequestError(f"{_UNREADABLE}: it does not begin as Kubernetes' messages do")
    try:
        reader = _Reader()
        envelope = reader.document(body[len(MAGIC) :], _ENVELOPE)
        meta = envelope.get("typeMeta", {})
        api_version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
        message = messages.get((api_version, kind)) or messages.get((ANY_VERSION, kind))
        if message is None:
            return None
        content = reader.document(envelope.get("raw", b""), message)
    except (_MalformedError, UnicodeDecodeError, OverflowError) as error:
        why = {UnicodeDecodeError: "a text is not UTF-8", OverflowError: "a time is out of range"}.get(type(error), error)
        raise BadRequestError(f"{_UNREADABLE}: {why}") from None
    return {"apiVersion": api_version, "kind": kind, **content}


class _Reader:
    """Decodes one body and counts its fields."""

    def __init__(self) -> None:
        self._count = 0

    def document(self, data: bytes, message: Message) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for number, raw in self._fields(data):
            field = message.get(number)
            if field is None:
                continue
            value = self._value(field, raw)
            if field.repeated:
                document.setdefault(field.name, []).append(value)
            elif field.kind is FieldKind.MAP:
                document.setdefault(field.name, {})[value.get("key", "")] = value.get("value", "")
            elif field.pointer or field.kind is FieldKind.MESSAGE or value not in ("", 0, None):
                document[field.name] = value
        return document

    def _value(self, field: MessageField, value: int | bytes) -> Any:
        if isinstance(value, int):
            if field.kind not in (FieldKind.BOOLEAN, FieldKind.INTEGER):
                raise _MalformedError(f"{field.name} is of another type")
            return bool(value) if field.kind is FieldKind.BOOLEAN else value - (2**64 if value >= 2**63 else 0)
        match field.kind:
            case FieldKind.TEXT:
                return value.decode()
            case FieldKind.BYTES | FieldKind.RAW:
                return value if field.kind is FieldKind.RAW else base64.b64encode(value).decode()
            case FieldKind.MESSAGE | FieldKind.MAP:
                return self.document(value, field.message or {})
            case FieldKind.LIST:
                return self.document(value, {1: MessageField("items", repeated=True)}).get("items", [])
        if field.kind not in (FieldKind.TIME, FieldKind.MICRO_TIME):
            raise _MalformedError(f"{field.name} is of another type")
        moment = self.document(value, _MOMENT)
        instant = _EPOCH + timedelta(seconds=moment.get("seconds", 0), microseconds=moment.get("nanos", 0) // 1000)
        shown = format_time(instant) if field.kind is FieldKind.TIME else format_micro_time(instant)
        return shown if moment else None  # an empty message is Go's zero time

    def _fields(self, data: bytes) -> Iterator[tuple[int, int | bytes]]:
        """Numbers and raw values of a message's fields, in wire order. Fixed-width fields are skipped."""
        position = 0
        while position < len(data):
            tag, position = _varint(data, position)
            number, wire = tag >> 3, tag & 7
            if wire in (_FIXED64, _FIXED32):
                position += 8 if wire == _FIXED64 else 4
            elif wire in (_VARINT, _BYTES):
                value, position = _varint(data, position)
                self._count += 1
                if self._count > MOST_FIELDS:
                    raise _MalformedError(f"it has more than {MOST_FIELDS} fields: send JSON")
                if wire == _BYTES:
                    position += value
                    if position <= len(data):
                        yield number, data[position - value : position]
                else:
                    yield number, value
            else:
                raise _MalformedError("it contains an unknown type")
            if position > len(data):
                raise _MalformedError("it ends too early")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint has no high bit
            return value & (2**64 - 1), position + index + 1
    raise _MalformedError("it ends too early")


_OWNER = message("1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller:bool?, 7 blockOwnerDeletion:bool?")
_METADATA = message(
    "1 name, 2 generateName, 3 namespace, 5 uid, 6 resourceVersion, 7 generation:int, 8 creationTimestamp:time, "
    "9 deletionTimestamp:time, 10 deletionGracePeriodSeconds:int?, 11 labels{}, 12 annotations{}, 13 ownerReferences:owner[], "
    "14 finalizers[]",
    owner=_OWNER,
)
_REFERENCE = message("1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath")
_SOURCE = message("1 component, 2 host")
_SERIES = message("1 count:int, 2 lastObservedTime:microtime")


def _object(fields: str = "", **nested: Message) -> Message:
    return message(", ".join(filter(None, ("1 metadata:metadata", fields))), metadata=_METADATA, **nested)


def _with_spec(spec: Message) -> Message:
    return _object("2 spec:spec", spec=spec)


_BOUND = message("1 kind, 2 apiVersion, 3 name, 4 uid")
_REQUIREMENT = message("1 key, 2 operator, 3 values[]")
_RESOURCE_ATTRIBUTES = message(
    "1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name, 8 fieldSelector:selector, "
    "9 labelSelector:selector",
    selector=message("1 rawSelector, 2 requirements:requirement[]", requirement=_REQUIREMENT),
)
_ASKED = "1 resourceAttributes:resource, 2 nonResourceAttributes:path"
_PATH = message("1 path, 2 verb")
_ACCESS_REVIEW = _with_spec(
    message(f"{_ASKED}, 3 user, 4 groups[], 5 extra:list{{}}, 6 uid", resource=_RESOURCE_ATTRIBUTES, path=_PATH)
)
_RULE = message("1 verbs[], 2 apiGroups[], 3 resources[], 4 resourceNames[], 5 nonResourceURLs[]")
_LABEL_SELECTOR = message("1 matchLabels{}, 2 matchExpressions:requirement[]", requirement=_REQUIREMENT)
_BINDING = _object(
    "2 subjects:subject[], 3 roleRef:role",
    subject=message("1 kind, 2 apiGroup, 3 name, 4 namespace"),
    role=message("1 apiGroup, 2 kind, 3 name"),
)
_CONDITION = message("1 type, 2 reason, 3 message, 4 lastUpdateTime:time, 5 lastTransitionTime:time, 6 status")
_EVENT_PARTS = {"reference": _REFERENCE, "source": _SOURCE, "series": _SERIES}

MESSAGES: Mapping[tuple[str, str], Message] = {
    ("authentication.k8s.io/v1", "SelfSubjectReview"): _object(),
    ("authentication.k8s.io/v1", "TokenRequest"): _with_spec(
        message("1 audiences[], 3 boundObjectRef:bound, 4 expirationSeconds:int?", bound=_BOUND)
    ),
    ("authentication.k8s.io/v1", "TokenReview"): _with_spec(message("1 token, 2 audiences[]")),
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): _ACCESS_REVIEW,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _with_spec(
        message(_ASKED, resource=_RESOURCE_ATTRIBUTES, path=_PATH)
    ),
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _with_spec(message("1 namespace")),
    ("authorization.k8s.io/v1", "SubjectAccessReview"): _ACCESS_REVIEW,
    ("certificates.k8s.io/v1", "CertificateSigningRequest"): _object(
        "2 spec:spec, 3 status:status",
        spec=message(
            "1 request:bytes, 2 username, 3 uid, 4 groups[], 5 usages[], 6 extra:list{}, 7 signerName, 8 expirationSeconds:int?"
        ),
        status=message("1 conditions:condition[], 2 certificate:bytes", condition=_CONDITION),
    ),
    ("coordination.k8s.io/v1", "Lease"): _with_spec(
        message(
            "1 holderIdentity?, 2 leaseDurationSeconds:int?, 3 acquireTime:microtime, 4 renewTime:microtime, "
            "5 leaseTransitions:int?, 6 strategy?, 7 preferredHolder?"
        )
    ),
    ("events.k8s.io/v1", "Event"): _object(
        "2 eventTime:microtime, 3 series:series, 4 reportingController, 5 reportingInstance, 6 action, 7 reason, "
        "8 regarding:reference, 9 related:reference, 10 note, 11 type, 12 deprecatedSource:source, "
        "13 deprecatedFirstTimestamp:time, 14 deprecatedLastTimestamp:time, 15 deprecatedCount:int",
        **_EVENT_PARTS,
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _object(
        "2 rules:rule[], 3 aggregationRule:aggregation",
        rule=_RULE,
        aggregation=message("1 clusterRoleSelectors:selector[]", selector=_LABEL_SELECTOR),
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "Role"): _object("2 rules:rule[]", rule=_RULE),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("v1", "ConfigMap"): _object("2 data{}, 3 binaryData:bytes{}, 4 immutable:bool?"),
    (ANY_VERSION, "DeleteOptions"): message(
        "1 gracePeriodSeconds:int?, 2 preconditions:preconditions, 3 orphanDependents:bool?, 4 propagationPolicy?, 5 dryRun[]",
        preconditions=message("1 uid?, 2 resourceVersion?"),
    ),
    ("v1", "Event"): _object(
        "2 involvedObject:reference, 3 reason, 4 message, 5 source:source, 6 firstTimestamp:time, 7 lastTimestamp:time, "
        "8 count:int, 9 type, 10 eventTime:microtime, 11 series:series, 12 action, 13 related:reference, "
        "14 reportingComponent, 15 reportingInstance",
        **_EVENT_PARTS,
    ),
    ("v1", "Namespace"): _object("2 spec:spec, 3 status:status", spec=message("1 finalizers[]"), status=message("1 phase")),
    ("v1", "Secret"): _object("2 data:bytes{}, 3 type, 4 stringData{}, 5 immutable:bool?"),
    ("v1", "ServiceAccount"): _object(
        "2 secrets:reference[], 3 imagePullSecrets:local[], 4 automountServiceAccountToken:bool?",
        reference=_REFERENCE,
        local=message("1 name"),
    ),
}
"""Tables by apiVersion and kind."""
