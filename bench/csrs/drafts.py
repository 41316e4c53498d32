"""Certificate signing requests before their encoding: DER values that can be encoded wrongly, keys of all kinds, drafts."""

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, x25519

from machinery.identity import CertificateSubject

SEQUENCE, SET, INTEGER, BITS, OCTETS, NULL, OID, UTF8, PRINTABLE = 0x30, 0x31, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0C, 0x13
ENCODINGS = {0x1C: "utf-32-be", 0x1E: "utf-16-be", 0x14: "latin-1", 0x16: "latin-1", PRINTABLE: "latin-1"}
"""Encodings of the string types, by tag. Other tags have UTF-8."""
COMMON_NAME, ORGANIZATION, UNIT = "2.5.4.3", "2.5.4.10", "2.5.4.11"
ECDSA = {"sha1": "4.1", "sha256": "4.3.2", "sha384": "4.3.3", "sha512": "4.3.4"}
RSA = {"md5": 4, "sha1": 5, "sha256": 11, "sha384": 12, "sha512": 13}
DIGESTS: Mapping[str, Any] = {name: getattr(hashes, name.upper()) for name in RSA}


@dataclass
class Node:
    """One DER value, with its content or its parts. `length`: wrong length octets to write instead of the right ones."""

    tag: int
    content: bytes = b""
    parts: list["Node"] = field(default_factory=list)
    length: bytes | None = None

    def encoded(self) -> bytes:
        body = self.content + b"".join(part.encoded() for part in self.parts)
        return bytes([self.tag & 0xFF]) + (length_of(len(body)) if self.length is None else self.length) + body

    def walk(self) -> Iterator["Node"]:
        yield self
        for part in self.parts:
            yield from part.walk()


def length_of(size: int) -> bytes:
    if size < 0x80:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(octets)]) + octets


def parse_der(raw: bytes) -> list[Node]:
    """Parse the values in `raw`, which must be valid. The contents of BIT STRING and OCTET STRING are not parsed."""
    nodes, at = [], 0
    while at < len(raw):
        tag, size, at = raw[at], raw[at + 1], at + 2
        if size & 0x80:
            octets = size & 0x7F
            size, at = int.from_bytes(raw[at : at + octets], "big"), at + octets
        body, at = raw[at : at + size], at + size
        nodes.append(Node(tag, parts=parse_der(body)) if tag & 0x20 else Node(tag, body))
    return nodes


def seq(*parts: Node) -> Node:
    return Node(SEQUENCE, parts=list(parts))


def sets(*parts: Node) -> Node:
    return Node(SET, parts=sorted(parts, key=Node.encoded))


def integer(number: int) -> Node:
    return Node(INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


def bits(content: bytes, unused: int = 0) -> Node:
    return Node(BITS, bytes([unused]) + content)


def oid(dotted: str) -> Node:
    first, second, *rest = (int(part) for part in dotted.split("."))
    encoded = b""
    for number in (first * 40 + second, *rest):
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.insert(0, 0x80 | number & 0x7F)
        encoded += bytes(septets)
    return Node(OID, encoded)


def text(value: str, tag: int = UTF8) -> Node:
    return Node(tag, value.encode(ENCODINGS.get(tag, "utf-8"), "replace"))


def nested(depth: int) -> Node:
    node = Node(NULL)
    for _ in range(depth):
        node = seq(node)
    return node


def extension(dotted: str, value: bytes, *, critical: bool = False) -> Node:
    return seq(oid(dotted), *([Node(0x01, b"\xff")] if critical else []), Node(OCTETS, value))


def dns_names(*values: str) -> Node:
    return extension("2.5.29.17", seq(*(Node(0x82, value.encode()) for value in values)).encoded())


def pem_of(raw: bytes) -> bytes:
    return ssl.DER_cert_to_PEM_cert(raw).replace("CERTIFICATE-----", "CERTIFICATE REQUEST-----").encode()


class Pair:
    """A private key, with the public key in DER."""

    def __init__(self, private: Any) -> None:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.private = private
        self.spki: bytes = private.public_key().public_bytes(serialization.Encoding.DER, form)

    @property
    def pem(self) -> bytes:
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return bytes(self.private.private_bytes(serialization.Encoding.PEM, pkcs8, plain))

    def sign(self, content: bytes, digest: str) -> tuple[Node, bytes]:
        """Return AlgorithmIdentifier and signature for this kind of key. If it cannot sign, the signature is empty."""
        match self.private:
            case ec.EllipticCurvePrivateKey():
                known = digest if digest in ECDSA else "sha256"
                return seq(oid(f"1.2.840.10045.{ECDSA[known]}")), self.private.sign(content, ec.ECDSA(DIGESTS[known]()))
            case rsa.RSAPrivateKey():
                algorithm = seq(oid(f"1.2.840.113549.1.1.{RSA[digest]}"), Node(NULL))
                return algorithm, self.private.sign(content, padding.PKCS1v15(), DIGESTS[digest]())
            case ed25519.Ed25519PrivateKey():
                return seq(oid("1.3.101.112")), self.private.sign(content)
            case _:
                return seq(oid("1.2.840.10045.4.3.2")), b""


class Keys:
    """Keys for requests. `own`: kinds that the hub certifies, the most common first. `useless`: kinds that it refuses."""

    def __init__(self) -> None:
        p256 = [Pair(ec.generate_private_key(ec.SECP256R1())) for _ in range(7)]
        rsa_keys = [rsa.generate_private_key(exponent, 2048) for exponent in (65537, 3)]
        self.own = [*p256[:4], *map(Pair, (ec.generate_private_key(ec.SECP384R1()), *rsa_keys))]
        curves = (ec.SECP521R1(), ec.SECP224R1(), ec.SECP256K1(), ec.BrainpoolP256R1())
        weak = [rsa.generate_private_key(65537, size) for size in (1024, 2047)]
        others = [kind.generate() for kind in (ed25519.Ed25519PrivateKey, x25519.X25519PrivateKey)]
        useless: list[Any] = [*map(ec.generate_private_key, curves), *weak, *others]
        self.useless = [Pair(each) for each in useless]
        self.victims, self.revoked, self.credentials = p256[4:]
        """The key of another cluster's agent (its request is known, but not its private key), the key of a revoked certificate,
        and the key of a bootstrap credential.
        """


Rdns = list[list[tuple[str, Node]]]


def rdns_of(subject: CertificateSubject) -> Rdns:
    organizations = [(ORGANIZATION, text(value, PRINTABLE)) for value in sorted(subject.organizations)]
    return [*([organizations] if organizations else []), [(COMMON_NAME, text(subject.common_name, PRINTABLE))]]


@dataclass
class Draft:
    """A request before it is encoded and signed. `foreign`: subjects that its requester must not get."""

    random: Random
    keys: Keys
    key: Pair
    rdns: Rdns
    foreign: Sequence[CertificateSubject]
    extensions: list[Node] = field(default_factory=list)
    attributes: list[Node] = field(default_factory=list)
    version: Node = field(default_factory=lambda: integer(0))
    digest: str = "sha256"
    signer: Pair | None = None
    spki: bytes | None = None
    before_signature: list[Callable[[Node], None]] = field(default_factory=list)
    after_signature: list[Callable[[Node], None]] = field(default_factory=list)
    on_bytes: list[Callable[[bytes], bytes]] = field(default_factory=list)
    on_pem: list[Callable[[bytes], bytes]] = field(default_factory=list)

    def pem(self) -> bytes:
        attributes = deepcopy(self.attributes)
        if self.extensions:
            attributes.append(seq(oid("1.2.840.113549.1.9.14"), sets(seq(*self.extensions))))
        name = seq(*(sets(*(seq(oid(kind), value) for kind, value in rdn)) for rdn in self.rdns))
        (key,) = parse_der(self.spki or self.key.spki)
        unsigned = seq(self.version, name, key, Node(0xA0, parts=attributes))
        for change in self.before_signature:
            change(unsigned)
        algorithm, signature = (self.signer or self.key).sign(unsigned.encoded(), self.digest)
        signed = seq(unsigned, algorithm, bits(signature))
        for change in self.after_signature:
            change(signed)
        raw = signed.encoded()
        for alter in self.on_bytes:
            raw = alter(raw)
        pem = pem_of(raw)
        for alter in self.on_pem:
            pem = alter(pem)
        return pem
