"""Mutations of certificate signing requests."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import timedelta
from random import Random

from bench.csrs.drafts import (
    COMMON_NAME,
    NULL,
    OCTETS,
    OID,
    ORGANIZATION,
    PRINTABLE,
    SEQUENCE,
    SET,
    UNIT,
    UTF8,
    Draft,
    Node,
    bits,
    dns_names,
    extension,
    integer,
    length_of,
    nested,
    oid,
    pem_of,
    rdns_of,
    seq,
    sets,
    text,
)

STRING_TAGS = (UTF8, PRINTABLE, 0x14, 0x16, 0x1C, 0x1E, OCTETS, NULL, 0x1A, 0x1B, 0x80)
ATTRIBUTE_OIDS = (COMMON_NAME, ORGANIZATION, UNIT, "2.5.4.6", "2.5.4.5", "1.2.840.113549.1.9.1", "1.3.6.1.4.1.99999.7")
EXTENSION_OIDS = (*(f"2.5.29.{each}" for each in (15, 19, 37, 14, 35, 30, 32, 31)), "1.3.6.1.5.5.7.1.1", "1.3.6.1.4.1.99999.8")
EC_KEY, RSA_KEY, P256 = "1.2.840.10045.2.1", "1.2.840.113549.1.1.1", "1.2.840.10045.3.1.7"
TEXTS = (
    *("", " ", "\0", "a\0b", "é", "😀", "\u202e", "A" * 65, "x" * 2000),
    *("system:masters", "*", "%s%n", "../..", "\n", "e\u0301"),
)


def broken_spki(spki: bytes, random: Random) -> bytes:
    """Return a variant of `spki` that is invalid, or that contains another key than it seems to."""
    point, moduli = spki[-64:], (0, -(1 << 2048), 1 << 4096 | 1, random.getrandbits(40_000) | 1)
    points = (b"\x04" + point[:32] + random.randbytes(32), b"\x04" + b"\0" * 64, b"", bytes([2 + point[-1] % 2]) + point[:32])
    numbers = seq(integer(random.choice(moduli)), integer(random.choice((0, 1, 65_537, 2**64 + 1, -3)))).encoded()
    return random.choice(
        (
            seq(seq(oid(EC_KEY), oid(P256)), bits(random.choice(points))),
            seq(seq(oid(EC_KEY), random.choice((Node(NULL), oid("1.2.3.4")))), bits(b"\x04" + point)),
            seq(seq(oid(RSA_KEY), Node(NULL)), bits(numbers)),
            seq(),
        )
    ).encoded()


def mutate_subject(draft: Draft) -> None:
    """Change the subject: another identity, or values that are added, removed, repeated, or encoded or grouped differently."""
    random, rdns = draft.random, draft.rdns
    match random.randrange(7):
        case 0 | 1:
            draft.rdns = rdns_of(random.choice(draft.foreign))
        case 2:
            rdns.append([(ORGANIZATION, text("system:masters"))])
        case 3:
            entry = (random.choice(ATTRIBUTE_OIDS), text(random.choice(TEXTS), random.choice(STRING_TAGS)))
            random.choice(rdns).append(entry) if rdns and random.random() < 0.5 else rdns.append([entry])
        case 4 if rdns:
            rdns.append(list(random.choice(rdns))) if random.random() < 0.5 else rdns.remove(random.choice(rdns))
        case 5:
            spell = random.choice((str, str.upper, "{} ".format, "{}\0".format, lambda words: words.replace("e", "\u0435")))
            draft.rdns = [
                [(kind, text(spell(value.content.decode("latin-1")), random.choice(STRING_TAGS))) for kind, value in rdn]
                for rdn in rdns
            ]
        case _:
            entries = [entry for rdn in rdns for entry in rdn]
            entries += [(UNIT, text(f"g{number}")) for number in range(random.choice((0, 10, 400)))]
            draft.rdns = [[entry] for entry in entries] if random.random() < 0.5 else [entries]


def mutate_extensions(draft: Draft) -> None:
    """Request extensions: of a CA or a server certificate, with foreign names, repeated, or malformed."""
    random = draft.random
    powers = (
        extension("2.5.29.19", seq(Node(0x01, b"\xff")).encoded()),
        extension("2.5.29.15", bits(b"\xff\x80", 7).encoded(), critical=True),
        extension("2.5.29.37", seq(oid("2.5.29.37.0"), oid("1.3.6.1.5.5.7.3.1")).encoded()),
    )
    names = ("hub.example", "localhost", "*.example", "work.addon.open-cluster-management.io", "a" * 300, "", "é", "a\0b")
    other_name = Node(random.choice((0x81, 0x86, 0x87, 0xA0, 0xA4, 0x89)), random.choice((b"a@b.example", b"\x7f\0\0\1", b"")))
    content = random.choice((b"", b"\x05\x00", random.randbytes(random.randrange(40)), nested(30).encoded()))
    match random.randrange(5):
        case 0:
            draft.extensions += random.sample(powers, random.randint(1, 3))
        case 1:
            draft.extensions.append(extension(random.choice(EXTENSION_OIDS), content, critical=random.random() < 0.3))
        case 2:
            draft.extensions.append(dns_names(*random.sample(names, random.randint(1, 4))))
        case 3:
            draft.extensions.append(extension("2.5.29.17", seq(other_name).encoded()))
        case _:
            draft.extensions += deepcopy(draft.extensions or [dns_names("a.example")] * 2)


def mutate_attributes(draft: Draft) -> None:
    random = draft.random
    large = Node(OCTETS, b"\0" * random.choice((1000, 12_000, 16_000, 70_000)))
    content = sets(random.choice((large, large, text("secret"), nested(20))))
    draft.attributes.append(seq(oid(random.choice(("1.2.840.113549.1.9.14", "1.3.6.1.4.1.99999.9"))), content))


def mutate_key(draft: Draft) -> None:
    """Use a key that the hub refuses, that belongs to another requester, or that is invalid."""
    random, keys = draft.random, draft.keys
    match random.randrange(4):
        case 0:
            draft.key = random.choice(keys.useless)
        case 1:
            draft.key = random.choice((keys.revoked, keys.credentials))
        case 2:
            draft.key, draft.signer = keys.victims, draft.key
        case _:
            draft.signer, draft.spki = draft.signer or draft.key, broken_spki(draft.key.spki, random)


def mutate_signature(draft: Draft) -> None:
    """Use another signer, digest or algorithm, no signature, or a victim's own request with changed text."""
    random = draft.random
    zero, huge = integer(0), integer(1 << 300)
    contents = (b"", b"\0", seq(zero, zero).encoded(), seq(huge, huge).encoded(), random.randbytes(70))
    false_bits = bits(random.choice(contents), random.choice((0, 0, 7, 8, 255)))
    kinds = ("1.2.840.10045.4.3.3", "1.2.840.113549.1.1.11", "1.2.840.113549.1.1.10", "1.3.101.112", "1.2.3")
    algorithm = seq(oid(random.choice(kinds)), *random.choice(((), (Node(NULL),), (seq(),), (text("x"),))))
    match random.randrange(5):
        case 0:
            draft.signer = random.choice([pair for pair in draft.keys.own if pair is not draft.key])
        case 1:
            draft.digest = random.choice(("md5", "sha1", "sha384", "sha512"))
        case 2:
            draft.after_signature.append(lambda signed: _put(signed, 2, false_bits))
        case 3:
            draft.after_signature.append(lambda signed: _put(signed, 1, algorithm))
        case _:
            name = seq(*(sets(*(seq(oid(kind), value) for kind, value in rdn)) for rdn in draft.rdns))
            draft.key, draft.signer, draft.rdns = draft.keys.victims, None, rdns_of(draft.foreign[0])
            if random.random() < 0.5:
                draft.after_signature.append(lambda signed: _put(signed.parts[0], 1, name) if signed.parts else None)


def _put(node: Node, index: int, part: Node) -> None:
    """Replace a part, unless another mutation has removed it."""
    if index < len(node.parts):
        node.parts[index] = part


def mutate_tree(draft: Draft) -> None:
    """Drop, double, exchange or cut one to three DER nodes, or change their tag or length, before or after the signature."""

    def change(tree: Node) -> None:
        random = draft.random
        for _ in range(random.randint(1, 3)):
            nodes = list(tree.walk())
            node, other = random.choice(nodes), deepcopy(random.choice(nodes))
            match random.randrange(8):
                case 0 if node.parts:
                    node.parts.pop(random.randrange(len(node.parts)))
                case 1 | 2 if node.parts:
                    node.parts.insert(random.randrange(len(node.parts)), deepcopy(random.choice(node.parts)))
                case 3:
                    node.tag = random.choice((random.randrange(256), SEQUENCE, SET, NULL, OID, 0x1F, 0xFF))
                case 4:
                    node.length = random.choice(
                        (b"\x80", b"\x81\x01", b"\x84\xff\xff\xff\xff", b"\xff", b"\0", b"\x88" + b"\x7f" * 8)
                    )
                case 5:
                    node.content = random.choice((b"", b"\x80" * 20, random.randbytes(60), node.content * 2, node.content[:-1]))
                case 6:
                    node.parts = [*node.parts, nested(random.choice((1, 10, 60)))]
                case _:
                    node.tag, node.content, node.parts, node.length = other.tag, other.content, other.parts, other.length

    if draft.random.random() < 0.2:
        draft.version = draft.random.choice((integer(1), integer(-1), integer(1 << 70), text("0"), bits(b"")))
    draft.random.choice((draft.before_signature, draft.after_signature)).append(change)


def mutate_bytes(draft: Draft) -> None:
    """Flip bits, and insert, remove or overwrite bytes, in the DER or in the PEM."""

    def change(raw: bytes) -> bytes:
        random, out = draft.random, bytearray(raw)
        for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
            at = random.randrange(len(out) + 1)
            match random.randrange(4):
                case 0 if out:
                    out[at % len(out)] ^= 1 << random.randrange(8)
                case 1:
                    out[at:at] = random.randbytes(random.choice((1, 2, 50)))
                case 2:
                    del out[at : at + random.choice((1, 2, 100))]
                case _:
                    out[at : at + 4] = random.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x30\x80\0\0", b"\r\n\r\n"))
        return bytes(out)

    draft.random.choice((draft.on_bytes, draft.on_pem)).append(change)


def mutate_pem(draft: Draft) -> None:
    """Change the PEM: line ends, labels, headers, encoding, several blocks, half a block, or 3,000 levels of nesting."""
    deep = b""
    for _ in range(3000):
        deep = bytes([SEQUENCE]) + length_of(len(deep)) + deep
    label, end = b"CERTIFICATE REQUEST", b"-----\n"
    changes: tuple[Callable[[bytes], bytes], ...] = (
        *(lambda pem: pem * 2, lambda pem: b"junk\n" + pem, lambda pem: pem + b"junk", lambda pem: pem[: len(pem) // 2]),
        *(lambda pem: pem.replace(b"\n", b"\r\n"), lambda pem: pem.replace(b"\n", b""), lambda pem: b" \n\t" + pem + b"\n"),
        *(lambda pem: pem.replace(label, b"NEW " + label), lambda pem: pem.replace(label, b"CERTIFICATE"), lambda _: b""),
        *(lambda pem: pem.replace(end, end + b"Proc-Type: 4,ENCRYPTED\n\n", 1), lambda pem: pem.replace(b"\n", b"\n" * 500)),
        *(lambda pem: pem.decode("latin-1").encode("utf-16"), lambda pem: b"\xef\xbb\xbf" + pem),
        *(lambda pem: pem.replace(b"=", b""), lambda _: pem_of(deep), lambda _: pem_of(b"\x30\x80" * 4000)),
    )
    draft.on_pem.append(draft.random.choice(changes))


def requested_duration(random: Random) -> timedelta:
    return timedelta(seconds=random.choice((-1, 0, 1, 599, 600, 3600, 86_400 * 365, 2**31 - 1, 2**31, 10**12)))


MUTATIONS: Sequence[Callable[[Draft], None]] = (
    *(mutate_subject, mutate_extensions, mutate_attributes, mutate_key, mutate_signature),
    *(mutate_tree, mutate_bytes, mutate_pem),
)
