"""DER as a tree that can be written wrong on purpose. Taken apart is only what was written right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

SEQUENCE, SET, INTEGER, BITS, OCTETS, NULL, OID = 0x30, 0x31, 0x02, 0x03, 0x04, 0x05, 0x06
UTF8, PRINTABLE, TELETEX, IA5, UNIVERSAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1C, 0x1E
ATTRIBUTES, CONSTRUCTED, SHORT, INDEFINITE = 0xA0, 0x20, 0x80, 0x80


@dataclass
class Node:
    """One value: `content` in bytes, or its parts. `length`: the length octets to write instead of the right ones."""

    tag: int
    content: bytes = b""
    parts: list["Node"] = field(default_factory=list)
    length: bytes | None = None

    def encoded(self) -> bytes:
        body = self.content + b"".join(part.encoded() for part in self.parts)
        return bytes([self.tag & 0xFF]) + (length_of(len(body)) if self.length is None else self.length) + body

    def copied(self) -> "Node":
        return Node(self.tag, self.content, [part.copied() for part in self.parts], self.length)

    def walked(self) -> Iterator["Node"]:
        yield self
        for part in self.parts:
            yield from part.walked()


def length_of(size: int) -> bytes:
    if size < SHORT:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([SHORT | len(octets)]) + octets


def parsed(raw: bytes) -> Node:
    """The one value that `raw` is; BIT and OCTET STRINGs are left closed."""
    (node,) = _several(raw)
    return node


def _several(raw: bytes) -> list[Node]:
    nodes, at = [], 0
    while at < len(raw):
        tag, size, at = raw[at], raw[at + 1], at + 2
        if size & SHORT:
            octets = size & ~SHORT
            size, at = int.from_bytes(raw[at : at + octets], "big"), at + octets
        body, at = raw[at : at + size], at + size
        nodes.append(Node(tag, b"", _several(body)) if tag & CONSTRUCTED else Node(tag, body))
    return nodes


def sequence(*parts: Node) -> Node:
    return Node(SEQUENCE, parts=list(parts))


def set_of(*parts: Node) -> Node:
    """In the order that DER wants."""
    return Node(SET, parts=sorted(parts, key=Node.encoded) if len(parts) > 1 else list(parts))


def integer(number: int) -> Node:
    return Node(INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


def bits(content: bytes, unused: int = 0) -> Node:
    return Node(BITS, bytes([unused]) + content)


def octets(content: bytes) -> Node:
    return Node(OCTETS, content)


def oid(dotted: str) -> Node:
    return Node(OID, _oid(dotted))


@lru_cache
def _oid(dotted: str) -> bytes:
    first, second, *rest = (int(part) for part in dotted.split("."))
    return b"".join(_septets(number) for number in (first * 40 + second, *rest))


def _septets(number: int) -> bytes:
    octets = [number & 0x7F]
    while number := number >> 7:
        octets.append(0x80 | number & 0x7F)
    return bytes(reversed(octets))


def text(value: str, tag: int = UTF8) -> Node:
    encodings = {UNIVERSAL: "utf-32-be", BMP: "utf-16-be", TELETEX: "latin-1", IA5: "latin-1", PRINTABLE: "latin-1"}
    return Node(tag, value.encode(encodings.get(tag, "utf-8"), "replace"))


def nested(depth: int) -> Node:
    """A value in so many sequences."""
    node = Node(NULL)
    for _ in range(depth):
        node = sequence(node)
    return node


def deep(depth: int) -> bytes:
    """The same, deeper than this package's own recursion goes."""
    raw = b""
    for _ in range(depth):
        raw = bytes([SEQUENCE]) + length_of(len(raw)) + raw
    return raw


def name(rdns: Sequence[Sequence[tuple[str, Node]]]) -> Node:
    return sequence(*(set_of(*(sequence(oid(kind), value) for kind, value in rdn)) for rdn in rdns))
