"""Public keys that are wrong in themselves."""

from random import Random

from bench.csrs import der

EC, RSA = "1.2.840.10045.2.1", "1.2.840.113549.1.1.1"
P256, FIELD = "1.2.840.10045.3.1.7", 2**256 - 2**224 + 2**192 + 2**96 - 1


def broken_spki(spki: bytes, random: Random) -> bytes:
    """A SubjectPublicKeyInfo like `spki`, or of no key at all."""
    point = spki[-64:]
    ways = (
        lambda: _ec(b"\x04" + point[:32] + random.randbytes(32)),
        lambda: _ec(b"\x04" + b"\0" * 64),
        lambda: _ec(b"\x00"),
        lambda: _ec(b""),
        lambda: _ec(bytes([2 + point[-1] % 2]) + point[:32]),
        lambda: _ec(bytes([6 + point[-1] % 2]) + point),
        lambda: _ec(b"\x04" + FIELD.to_bytes(32, "big") + b"\1" * 32),
        lambda: _ec(b"\x04" + point + b"\0"),
        lambda: _ec(b"\x04" + point, explicit(random)),
        lambda: _ec(b"\x04" + point, der.Node(der.NULL)),
        lambda: _ec(b"\x04" + point, der.oid("1.2.3.4")),
        lambda: _rsa(random.getrandbits(2048) | 1 << 2047, random.choice((0, 1, 2, 3, 65_536, 2**31 + 1, 2**64 + 1, -3))),
        lambda: _rsa(0, 65_537),
        lambda: _rsa(-(1 << 2048), 65_537),
        lambda: _rsa(random.getrandbits(random.choice((8192, 8193, 16_384, 40_000))) | 1, 65_537),
        lambda: _rsa(1 << 4096 | 1, (1 << 4095) | 1),
        lambda: der.sequence(der.sequence(der.oid("1.2.3")), der.bits(random.randbytes(30))).encoded(),
        lambda: der.sequence(der.sequence(der.oid("1.3.101.112")), der.bits(random.randbytes(32), 3)).encoded(),
        lambda: der.sequence().encoded(),
    )
    return random.choice(ways)()


def _ec(point: bytes, parameters: der.Node | None = None) -> bytes:
    algorithm = der.sequence(der.oid(EC), der.oid(P256) if parameters is None else parameters)
    return der.sequence(algorithm, der.bits(point)).encoded()


def _rsa(modulus: int, exponent: int) -> bytes:
    numbers = der.sequence(der.integer(modulus), der.integer(exponent)).encoded()
    return der.sequence(der.sequence(der.oid(RSA), der.Node(der.NULL)), der.bits(numbers)).encoded()


def explicit(random: Random) -> der.Node:
    """Curve parameters in words instead of a name, right or with a generator of one's own (CVE-2020-0601)."""
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    x = 0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296
    y = 0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5
    generator = random.choice((x.to_bytes(32, "big") + y.to_bytes(32, "big"), random.randbytes(64)))
    curve = der.sequence(der.octets((FIELD - 3).to_bytes(32, "big")), der.octets(b.to_bytes(32, "big")))
    field = der.sequence(der.oid("1.2.840.10045.1.1"), der.integer(FIELD))
    return der.sequence(der.integer(1), field, curve, der.octets(b"\x04" + generator), der.integer(order), der.integer(1))
