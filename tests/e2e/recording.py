"""The recorded OCM agent: what it sent, with our names and keys in place of its own."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDING = Path(__file__).parents[1] / "golden" / "ocm-agent.jsonl"
MAGIC = b"k8s\x00"
RAW = 2
"""The field of `runtime.Unknown` that holds the object."""
METADATA, UID, RESOURCE_VERSION = 1, 5, 6
SPEC, REQUEST = 2, 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange: the request as it was sent, and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int
    answer: Any

    def with_version(self, uid: str, resource_version: str) -> bytes:
        """The body, made from another object of the same kind."""
        if isinstance(self.body, dict) and "base64" in self.body:
            found = base64.b64decode(self.body["base64"])
            found = replaced(found, (METADATA, UID), uid.encode())
            return replaced(found, (METADATA, RESOURCE_VERSION), resource_version.encode())
        metadata = {**self.body["metadata"], "uid": uid, "resourceVersion": resource_version}
        return json.dumps({**self.body, "metadata": metadata}).encode()

    def with_request(self, pem: bytes) -> bytes:
        """The body of a CertificateSigningRequest, over another key."""
        return replaced(base64.b64decode(self.body["base64"]), (SPEC, REQUEST), pem)

    @property
    def sent(self) -> bytes | None:
        """The body as it was recorded."""
        if self.body is None:
            return None
        if "base64" in self.body:
            return base64.b64decode(self.body["base64"])
        return json.dumps(self.body).encode()


def recording() -> dict[int, Recorded]:
    """Every exchange by its number."""
    found = {}
    for line in RECORDING.read_text().splitlines():
        entry = json.loads(line)
        asked, told = entry["request"], entry["response"]
        query = f"?{asked['query']}" if asked.get("query") else ""
        found[entry["n"]] = Recorded(
            asked["method"], asked["path"] + query, asked["headers"], asked["body"], told["status"], told.get("body")
        )
    return found


def replaced(body: bytes, path: tuple[int, int], value: bytes) -> bytes:
    """A protobuf body of Kubernetes with other bytes in one field of one part of its object."""
    assert body.startswith(MAGIC)
    return MAGIC + _replaced(body.removeprefix(MAGIC), (RAW, *path), value)


def _replaced(message: bytes, path: tuple[int, ...], value: bytes) -> bytes:
    out, found = b"", False
    for number, wire, content in _fields(message):
        chosen = content
        if number == path[0] and not found:
            found = True
            chosen = value if len(path) == 1 else _replaced(content, path[1:], value)
        out += _varint(number << 3 | wire) + (_varint(len(chosen)) if wire == 2 else b"") + chosen
    assert found, f"there is no field {path[0]}"
    return out


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        start = position
        if tag & 7 == 2:
            length, start = _read_varint(message, position)
            position = start + length
        else:
            assert tag & 7 == 0, "these messages hold texts and numbers only"
            _, position = _read_varint(message, position)
        yield tag >> 3, tag & 7, message[start:position]


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


def _varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))
