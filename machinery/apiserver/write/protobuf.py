"""Decoder for request bodies in Kubernetes' protobuf, driven by tables of fields.

Kubernetes' typed clients send protobuf for built-in kinds and accept JSON responses. A body is four magic bytes and a
`runtime.Unknown`, which holds the kind's name and the message. The server reads few messages and writes none, so it uses tables
(`machinery.apiserver.write.protobuf_messages`) instead of generated code. Unknown fields are skipped, as protobuf requires.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
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
    TEXT = auto()
    BYTES = auto()
    INTEGER = auto()
    BOOLEAN = auto()
    TIME = auto()
    MICRO_TIME = auto()
    MESSAGE = auto()
    MAP = auto()
    """Entries of key 1 and value 2; `message` is the entry's table."""
    LIST = auto()
    """A message with only a repeated field 1, which is a plain list in JSON."""


@dataclass(frozen=True, slots=True)
class MessageField:
    """One field. `pointer`: a zero value was set explicitly and is kept; other fields are omitted when empty, as in JSON."""

    name: str
    kind: FieldKind = FieldKind.TEXT
    message: Message | None = None
    repeated: bool = False
    pointer: bool = False


_TYPE = {1: MessageField("apiVersion"), 2: MessageField("kind")}
_TYPE_META, _RAW = 1, 2
"""Fields of the envelope, a `runtime.Unknown`."""
_MOMENT = {1: MessageField("seconds", FieldKind.INTEGER), 2: MessageField("nanos", FieldKind.INTEGER)}


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
