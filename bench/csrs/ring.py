"""Keys of every kind that a request may come with: those a certificate may be made for, and those it must not be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, padding, rsa, x25519

from bench.csrs import der

ECDSA_OIDS = {
    "sha1": "1.2.840.10045.4.1",
    "sha256": "1.2.840.10045.4.3.2",
    "sha384": "1.2.840.10045.4.3.3",
    "sha512": "1.2.840.10045.4.3.4",
}
RSA_OIDS = {
    "md5": "1.2.840.113549.1.1.4",
    "sha1": "1.2.840.113549.1.1.5",
    "sha256": "1.2.840.113549.1.1.11",
    "sha384": "1.2.840.113549.1.1.12",
    "sha512": "1.2.840.113549.1.1.13",
}
DIGESTS: dict[str, Callable[[], Any]] = {
    "md5": hashes.MD5,
    "sha1": hashes.SHA1,
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}


@dataclass(frozen=True)
class Pair:
    """A key with its public half. `usable`: a certificate may be made for it."""

    kind: str
    private: Any
    spki: bytes
    usable: bool

    @property
    def pem(self) -> bytes:
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return bytes(self.private.private_bytes(serialization.Encoding.PEM, pkcs8, plain))

    def signed(self, content: bytes, digest: str = "sha256") -> tuple[der.Node, bytes]:
        """AlgorithmIdentifier and signature, as this kind of key signs; empty where it cannot."""
        if isinstance(self.private, ec.EllipticCurvePrivateKey):
            known = digest if digest in ECDSA_OIDS else "sha256"
            algorithm = der.sequence(der.oid(ECDSA_OIDS[known]))
            return algorithm, self.private.sign(content, ec.ECDSA(DIGESTS[known]()))
        if isinstance(self.private, rsa.RSAPrivateKey):
            algorithm = der.sequence(der.oid(RSA_OIDS[digest]), der.Node(der.NULL))
            return algorithm, self.private.sign(content, padding.PKCS1v15(), DIGESTS[digest]())
        if isinstance(self.private, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey):
            number = "1.3.101.112" if isinstance(self.private, ed25519.Ed25519PrivateKey) else "1.3.101.113"
            return der.sequence(der.oid(number)), self.private.sign(content)
        if isinstance(self.private, dsa.DSAPrivateKey):
            return der.sequence(der.oid("2.16.840.1.101.3.4.3.2")), self.private.sign(content, hashes.SHA256())
        return der.sequence(der.oid(ECDSA_OIDS["sha256"])), b""


def _pair(kind: str, private: Any, *, usable: bool = False) -> Pair:
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return Pair(kind, private, private.public_key().public_bytes(encoding, form), usable)


def fresh(kind: str = "P-256", *, usable: bool = True) -> Pair:
    return _pair(kind, ec.generate_private_key(ec.SECP256R1()), usable=usable)


class Ring:
    """`own`: keys that may be certified, the most usual first; `useless`: kinds that may not."""

    def __init__(self) -> None:
        self.own = [
            *(fresh() for _ in range(4)),
            _pair("P-384", ec.generate_private_key(ec.SECP384R1()), usable=True),
            _pair("RSA 2048", rsa.generate_private_key(65537, 2048), usable=True),
            _pair("RSA 2048 with 3", rsa.generate_private_key(3, 2048), usable=True),
        ]
        self.useless = [
            _pair("P-521", ec.generate_private_key(ec.SECP521R1())),
            _pair("P-224", ec.generate_private_key(ec.SECP224R1())),
            _pair("secp256k1", ec.generate_private_key(ec.SECP256K1())),
            _pair("brainpool", ec.generate_private_key(ec.BrainpoolP256R1())),
            _pair("RSA 1024", rsa.generate_private_key(65537, 1024)),  # noqa: S505 - that it is weak is the point
            _pair("RSA 2047", rsa.generate_private_key(65537, 2047)),  # noqa: S505 - as above
            _pair("Ed25519", ed25519.Ed25519PrivateKey.generate()),
            _pair("Ed448", ed448.Ed448PrivateKey.generate()),
            _pair("X25519", x25519.X25519PrivateKey.generate()),
            _pair("DSA", dsa.generate_private_key(1024)),  # noqa: S505 - as above
        ]
        self.victims = fresh("a victim's", usable=False)
        """Of another cluster's agent: its private half is never used by who attacks, only its request is known."""
        self.revoked = fresh("of a revoked certificate", usable=False)
        self.credentials = fresh("of a bootstrap credential", usable=False)

    @property
    def allowed(self) -> frozenset[bytes]:
        """Public keys, in DER, that a certificate may be for."""
        return frozenset(pair.spki for pair in self.own)
