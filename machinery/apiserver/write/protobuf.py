"""Decoder for request bodies in Kubernetes' protobuf encoding.

Kubernetes' typed clients send protobuf for built-in kinds, and accept JSON responses. A body consists of four magic bytes and a
`runtime.Unknown` with the name of the kind and the message. The server decodes only few messages and encodes none. So it uses
tables of fields (`messages.yaml`) instead of generated code. It skips unknown fields, as protobuf requires.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from machinery.errors import BadRequestError
from machinery.meta import bounded_yaml
from machinery.meta.timestamps import format_micro_time, format_time

MAGIC = b"k8s\x00"
ANY_VERSION = "*"
"""In a table of messages, matches every apiVersion, because clients send options in the version of the object's kind."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
MOST_FIELDS = 5_000
"""Largest number of fields of a body, including nested and unknown fields. Decoding a field takes a few microseconds."""
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
    """One field. `pointer`: a zero value is kept, because the client has set it. Other fields are omitted if they are empty."""

    name: str
    kind: FieldKind = FieldKind.TEXT
    message: Message | None = None
    repeated: bool = False
    pointer: bool = False


_FIELD = re.compile(r"(\d+) (\w+)(?::(\w+))?(\?|\[\]|\{\})?")


def message(fields: str, known: Mapping[str, Message] = MappingProxyType({})) -> Message:
    """Parse a table of fields in the form of `messages.yaml`. `known`: messages to which it may refer. Raises ValueError."""
    table: dict[int, MessageField] = {}
    for text in fields.split(", "):
        found = _FIELD.fullmatch(text)
        if found is None:
            raise ValueError(f"no field of a message: {text}")
        number, name, kind, mark = found.groups()
        inner = known.get(kind)
        is_kind = FieldKind.MESSAGE if inner is not None else FieldKind(kind or "text")
        if mark == "{}":
            entry = {1: MessageField("key"), 2: MessageField("value", is_kind)}
            table[int(number)] = MessageField(name, FieldKind.MAP, entry)
        else:
            table[int(number)] = MessageField(name, is_kind, inner, repeated=mark == "[]", pointer=mark == "?")
    return table


_ENVELOPE = message("1 typeMeta:type, 2 raw:raw", {"type": message("1 apiVersion, 2 kind")})
_MOMENT = message("1 seconds:int, 2 nanos:int")


_UNREADABLE = "the protobuf body of the request cannot be read"


class _MalformedError(Exception):
    """The bytes are not a valid message."""


def decode(body: bytes, messages: Mapping[tuple[str, str], Message]) -> dict[str, Any] | None:
    """Decode `body` by the table for its apiVersion and kind; None if there is no such table.

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
        """Yield numbers and raw values of a message's fields, in wire order. Fixed-width fields are skipped."""
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


def _messages() -> dict[tuple[str, str], Message]:
    tables = bounded_yaml.load(Path(__file__).with_name("messages.yaml").read_bytes())
    known: dict[str, Message] = {}
    for name, fields in tables["messages"].items():
        known[name] = message(fields, known)
    return {
        (version, kind): message(fields, known) for version, kinds in tables["kinds"].items() for kind, fields in kinds.items()
    }


MESSAGES: Mapping[tuple[str, str], Message] = _messages()
