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


_TYPE = message("1 apiVersion, 2 kind")
_TYPE_META, _RAW = 1, 2
"""Fields of the envelope, a `runtime.Unknown`."""
_MOMENT = message("1 seconds:int, 2 nanos:int")


class _MalformedError(Exception):
    """The bytes are not a valid message."""


def decode(body: bytes, messages: Mapping[tuple[str, str], Message]) -> dict[str, Any] | None:
    """Decode `body` by the table of its apiVersion and kind; None: there is no table for it.

    Raises BadRequestError for a malformed body.
    """
    try:
        reader = _Reader()
        envelope = reader.envelope(body)
        meta = reader.document(envelope.get(_TYPE_META, b""), _TYPE)
        api_version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
        message = messages.get((api_version, kind)) or messages.get((ANY_VERSION, kind))
        if message is None:
            return None
        content = reader.document(envelope.get(_RAW, b""), message)
    except _MalformedError as error:
        raise BadRequestError(f"the protobuf body of the request cannot be read: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **content}


class _Reader:
    """Decodes one body and counts its fields."""

    def __init__(self) -> None:
        self._fields = 0

    def envelope(self, body: bytes) -> dict[int, bytes]:
        if not body.startswith(MAGIC):
            raise _MalformedError("it does not begin as Kubernetes' messages do")
        found: dict[int, bytes] = {}
        for number, value in self._counted(body[len(MAGIC) :]):
            if isinstance(value, bytes):
                found[number] = value
            elif number in (_TYPE_META, _RAW):
                raise _MalformedError("its envelope is of another type")
        return found

    def _counted(self, data: bytes) -> Iterator[tuple[int, int | bytes]]:
        for each in _fields(data):
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise _MalformedError(f"it has more than {MOST_FIELDS} fields: send JSON")
            yield each

    def document(self, data: bytes, message: Message) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for number, value in self._counted(data):
            if field := message.get(number):
                _put(document, field, self._value(field, value))
        return document

    def _value(self, field: MessageField, value: int | bytes) -> Any:
        if isinstance(value, int):
            return _number(field, value)
        match field.kind:
            case FieldKind.TEXT:
                return _text(value)
            case FieldKind.BYTES:
                return base64.b64encode(value).decode()
            case FieldKind.TIME | FieldKind.MICRO_TIME:
                return _time(field.kind, self.document(value, _MOMENT))
            case FieldKind.MESSAGE | FieldKind.MAP:
                return self.document(value, field.message or {})
            case FieldKind.LIST:
                return self.document(value, {1: MessageField("items", repeated=True)}).get("items", [])
            case _:
                raise _MalformedError(f"{field.name} is of another type")


def _put(document: dict[str, Any], field: MessageField, value: Any) -> None:
    if field.repeated:
        document.setdefault(field.name, []).append(value)
    elif field.kind is FieldKind.MAP:
        document.setdefault(field.name, {})[value.get("key", "")] = value.get("value", "")
    elif field.pointer or field.kind is FieldKind.MESSAGE or value not in ("", 0, None):
        document[field.name] = value


def _number(field: MessageField, value: int) -> int | bool:
    if field.kind is FieldKind.BOOLEAN:
        return bool(value)
    if field.kind is FieldKind.INTEGER:
        return value - 2**64 if value >= 2**63 else value
    raise _MalformedError(f"{field.name} is of another type")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _MalformedError("a text is not UTF-8") from None


def _time(kind: FieldKind, moment: Mapping[str, int]) -> str | None:
    """Convert to a timestamp; None for an empty message, which is Go's zero time."""
    if not moment:
        return None
    try:
        instant = _EPOCH + timedelta(seconds=moment.get("seconds", 0), microseconds=moment.get("nanos", 0) // 1000)
    except OverflowError:
        raise _MalformedError("a time is out of range") from None
    return format_time(instant) if kind is FieldKind.TIME else format_micro_time(instant)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and raw values of a message's fields, in wire order. Fixed-width fields are skipped."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == _BYTES:
            length, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise _MalformedError("it holds an unknown type")
        if position + length > len(data):
            raise _MalformedError("it ends too early")
        if wire == _BYTES:
            yield number, data[position : position + length]
        position += length


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


_SECRET = _object("2 data:bytes{}, 3 type, 4 stringData{}, 5 immutable:bool?")
_CONFIG_MAP = _object("2 data{}, 3 binaryData:bytes{}, 4 immutable:bool?")
_SERVICE_ACCOUNT = _object(
    "2 secrets:reference[], 3 imagePullSecrets:local[], 4 automountServiceAccountToken:bool?",
    reference=_REFERENCE,
    local=message("1 name"),
)
_BOUND = message("1 kind, 2 apiVersion, 3 name, 4 uid")
_TOKEN_REQUEST = _with_spec(message("1 audiences[], 3 boundObjectRef:bound, 4 expirationSeconds:int?", bound=_BOUND))
_TOKEN_REVIEW = _with_spec(message("1 token, 2 audiences[]"))
_REQUIREMENT = message("1 key, 2 operator, 3 values[]")
_RESOURCE_ATTRIBUTES = message(
    "1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name, 8 fieldSelector:selector, "
    "9 labelSelector:selector",
    selector=message("1 rawSelector, 2 requirements:requirement[]", requirement=_REQUIREMENT),
)
_ASKED = "1 resourceAttributes:resource, 2 nonResourceAttributes:path"
_PATH = message("1 path, 2 verb")
_SELF_ACCESS_REVIEW = _with_spec(message(_ASKED, resource=_RESOURCE_ATTRIBUTES, path=_PATH))
_ACCESS_REVIEW = _with_spec(
    message(f"{_ASKED}, 3 user, 4 groups[], 5 extra:list{{}}, 6 uid", resource=_RESOURCE_ATTRIBUTES, path=_PATH)
)
_RULES_REVIEW = _with_spec(message("1 namespace"))
_RULE = message("1 verbs[], 2 apiGroups[], 3 resources[], 4 resourceNames[], 5 nonResourceURLs[]")
_LABEL_SELECTOR = message("1 matchLabels{}, 2 matchExpressions:requirement[]", requirement=_REQUIREMENT)
_ROLE = _object("2 rules:rule[]", rule=_RULE)
_CLUSTER_ROLE = _object(
    "2 rules:rule[], 3 aggregationRule:aggregation",
    rule=_RULE,
    aggregation=message("1 clusterRoleSelectors:selector[]", selector=_LABEL_SELECTOR),
)
_BINDING = _object(
    "2 subjects:subject[], 3 roleRef:role",
    subject=message("1 kind, 2 apiGroup, 3 name, 4 namespace"),
    role=message("1 apiGroup, 2 kind, 3 name"),
)
_NAMESPACE = _object("2 spec:spec, 3 status:status", spec=message("1 finalizers[]"), status=message("1 phase"))
_LEASE = _with_spec(
    message(
        "1 holderIdentity?, 2 leaseDurationSeconds:int?, 3 acquireTime:microtime, 4 renewTime:microtime, "
        "5 leaseTransitions:int?, 6 strategy?, 7 preferredHolder?"
    )
)
_CONDITION = message("1 type, 2 reason, 3 message, 4 lastUpdateTime:time, 5 lastTransitionTime:time, 6 status")
_CERTIFICATE_SIGNING_REQUEST = _object(
    "2 spec:spec, 3 status:status",
    spec=message(
        "1 request:bytes, 2 username, 3 uid, 4 groups[], 5 usages[], 6 extra:list{}, 7 signerName, 8 expirationSeconds:int?"
    ),
    status=message("1 conditions:condition[], 2 certificate:bytes", condition=_CONDITION),
)
_EVENT_PARTS = {"reference": _REFERENCE, "source": _SOURCE, "series": _SERIES}
_CORE_EVENT = _object(
    "2 involvedObject:reference, 3 reason, 4 message, 5 source:source, 6 firstTimestamp:time, 7 lastTimestamp:time, "
    "8 count:int, 9 type, 10 eventTime:microtime, 11 series:series, 12 action, 13 related:reference, 14 reportingComponent, "
    "15 reportingInstance",
    **_EVENT_PARTS,
)
_EVENT = _object(
    "2 eventTime:microtime, 3 series:series, 4 reportingController, 5 reportingInstance, 6 action, 7 reason, "
    "8 regarding:reference, 9 related:reference, 10 note, 11 type, 12 deprecatedSource:source, "
    "13 deprecatedFirstTimestamp:time, 14 deprecatedLastTimestamp:time, 15 deprecatedCount:int",
    **_EVENT_PARTS,
)
_DELETE_OPTIONS = message(
    "1 gracePeriodSeconds:int?, 2 preconditions:preconditions, 3 orphanDependents:bool?, 4 propagationPolicy?, 5 dryRun[]",
    preconditions=message("1 uid?, 2 resourceVersion?"),
)

MESSAGES: Mapping[tuple[str, str], Message] = {
    ("authentication.k8s.io/v1", "SelfSubjectReview"): _object(),
    ("authentication.k8s.io/v1", "TokenRequest"): _TOKEN_REQUEST,
    ("authentication.k8s.io/v1", "TokenReview"): _TOKEN_REVIEW,
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): _ACCESS_REVIEW,
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): _SELF_ACCESS_REVIEW,
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): _RULES_REVIEW,
    ("authorization.k8s.io/v1", "SubjectAccessReview"): _ACCESS_REVIEW,
    ("certificates.k8s.io/v1", "CertificateSigningRequest"): _CERTIFICATE_SIGNING_REQUEST,
    ("coordination.k8s.io/v1", "Lease"): _LEASE,
    ("events.k8s.io/v1", "Event"): _EVENT,
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _CLUSTER_ROLE,
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _BINDING,
    ("rbac.authorization.k8s.io/v1", "Role"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _BINDING,
    ("v1", "ConfigMap"): _CONFIG_MAP,
    (ANY_VERSION, "DeleteOptions"): _DELETE_OPTIONS,
    ("v1", "Event"): _CORE_EVENT,
    ("v1", "Namespace"): _NAMESPACE,
    ("v1", "Secret"): _SECRET,
    ("v1", "ServiceAccount"): _SERVICE_ACCOUNT,
}
"""Tables by apiVersion and kind."""
