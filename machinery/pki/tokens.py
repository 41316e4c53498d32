"""JSON web tokens: this program signs with ES256 only, and verifies tokens with the public keys of any issuer (JWKS).

As in Kubernetes, the key id is the hash of the public key. Several keys may be valid at the same time, so that a key can be
replaced while tokens of older keys are in use.

Verification (RFC 7517) supports only RS, PS and ES, each with SHA-256, -384 and -512. It does not support `none`, and not the
HMAC family, because an attacker could then use a public key as an HMAC secret. It ignores keys inside a token. A key with the
field `alg` is used only for this algorithm, a key without it for all RSA algorithms, or for the algorithm of its curve.
"""

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from machinery.errors import InvalidError
from machinery.pki.keys import MAX_RSA_BITS, MIN_RSA_BITS, encode_public_key, load_key

ALGORITHM = "ES256"
MAX_TOKEN = 16 * 1024
_HALF = 32
"""Size in bytes of each half of a P-256 signature."""
MAX_KEYS = 100
"""Largest number of keys of an issuer. A document with more keys is refused."""
MAX_EXPONENT_BITS = 32
"""Largest size of an exponent. With a larger exponent, verification is as expensive as signing."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Parameters of a signature algorithm. `curve`: the curve of an ECDSA key; None: RSA. `pss`: RSA with PSS padding."""

    digest: hashes.HashAlgorithm
    curve: type[ec.EllipticCurve] | None = None
    pss: bool = False


_DIGESTS: Mapping[str, hashes.HashAlgorithm] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
_CURVES: Mapping[str, type[ec.EllipticCurve]] = {"256": ec.SECP256R1, "384": ec.SECP384R1, "512": ec.SECP521R1}
_CURVE_NAMES: Mapping[str, type[ec.EllipticCurve]] = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}
ALGORITHMS: Mapping[str, Algorithm] = {
    **{f"RS{bits}": Algorithm(digest) for bits, digest in _DIGESTS.items()},
    **{f"PS{bits}": Algorithm(digest, pss=True) for bits, digest in _DIGESTS.items()},
    **{f"ES{bits}": Algorithm(digest, _CURVES[bits]) for bits, digest in _DIGESTS.items()},
}


@dataclass(frozen=True, slots=True)
class TokenHeader:
    """The fields of a token's header that concern the signature."""

    algorithm: str
    key_id: str | None


@dataclass(frozen=True, slots=True)
class _Key:
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    key_id: str | None
    algorithm: str | None
    """The only algorithm of the key; None: all algorithms of its family."""

    def fits(self, header: TokenHeader) -> bool:
        if self.algorithm not in (None, header.algorithm) or (header.key_id is not None and header.key_id != self.key_id):
            return False
        curve = ALGORITHMS[header.algorithm].curve
        if curve is None:
            return isinstance(self.key, rsa.RSAPublicKey)
        return isinstance(self.key, ec.EllipticCurvePublicKey) and isinstance(self.key.curve, curve)

    def has_signed(self, message: bytes, signature: bytes, algorithm: Algorithm) -> bool:
        try:
            if isinstance(self.key, rsa.RSAPublicKey):
                pss = padding.PSS(padding.MGF1(algorithm.digest), padding.PSS.DIGEST_LENGTH)
                self.key.verify(signature, message, pss if algorithm.pss else padding.PKCS1v15(), algorithm.digest)
                return True
            half = (self.key.curve.key_size + 7) // 8
            if len(signature) != 2 * half:
                return False
            halves = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
            self.key.verify(encode_dss_signature(*halves), message, ec.ECDSA(algorithm.digest))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class KeySet:
    """The public keys that verify an issuer's tokens."""

    _keys: tuple[_Key, ...]

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Parse a JWKS. Ignore keys of other kinds and for other uses. Raises InvalidError if no key remains."""
        listed = document.get("keys")
        if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) > MAX_KEYS:
            raise InvalidError(f"the key set has no list `keys` of at most {MAX_KEYS} keys")
        keys = tuple(key for key in (_read(each) for each in listed) if key is not None)
        if not keys:
            raise InvalidError(
                "the key set has no key for signatures that can be used: RSA from 2048 bits on, or EC P-256 to P-521"
            )
        return cls(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def has_key_for(self, header: TokenHeader) -> bool:
        """Whether a key fits the header's algorithm and key id."""
        return any(key.fits(header) for key in self._keys)

    def verified(self, token: str) -> dict[str, Any] | None:
        """Return the claims; None: no key has signed the token, or its algorithm is not supported."""
        header, claims = read_header(token), unverified_claims(token)
        if header is None or claims is None:
            return None
        signed, _, last = token.rpartition(".")
        signature, algorithm = _decoded_bytes(last), ALGORITHMS[header.algorithm]
        if not signature or not signed.isascii():
            return None
        message = signed.encode("ascii")
        signs = any(key.has_signed(message, signature, algorithm) for key in self._keys if key.fits(header))
        return claims if signs else None


def read_header(token: str) -> TokenHeader | None:
    """Parse a token's header; None if it is no JSON web token, or has an unsupported algorithm or critical extensions."""
    header = _decoded(token, 0)
    if header is None or "crit" in header or header.get("b64") is False:
        return None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or not isinstance(key_id, str | None):
        return None
    return TokenHeader(algorithm, key_id)


def _read(jwk: object) -> _Key | None:
    if not isinstance(jwk, Mapping) or jwk.get("use", "sig") != "sig":
        return None
    operations, algorithm, key_id = jwk.get("key_ops", ["verify"]), jwk.get("alg"), jwk.get("kid")
    if not isinstance(operations, Sequence) or "verify" not in operations or not isinstance(key_id, str | None):
        return None
    if algorithm is not None and algorithm not in ALGORITHMS:
        return None
    try:
        key = _rsa(jwk) if jwk.get("kty") == "RSA" else _ec(jwk) if jwk.get("kty") == "EC" else None
    except (ValueError, UnsupportedAlgorithm):
        return None
    return None if key is None else _Key(key, key_id, algorithm)


def _rsa(jwk: Mapping[str, Any]) -> rsa.RSAPublicKey | None:
    modulus, exponent = _number(jwk.get("n")), _number(jwk.get("e"))
    if modulus is None or exponent is None or exponent.bit_length() > MAX_EXPONENT_BITS:
        return None
    if not MIN_RSA_BITS <= modulus.bit_length() <= MAX_RSA_BITS:
        return None
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def _ec(jwk: Mapping[str, Any]) -> ec.EllipticCurvePublicKey | None:
    curve, first, second = _CURVE_NAMES.get(str(jwk.get("crv"))), _number(jwk.get("x")), _number(jwk.get("y"))
    if curve is None or first is None or second is None:
        return None
    return ec.EllipticCurvePublicNumbers(first, second, curve()).public_key()


def _number(text: object) -> int | None:
    raw = _decoded_bytes(text) if isinstance(text, str) and len(text) <= MAX_RSA_BITS else None
    return int.from_bytes(raw, "big") if raw else None


class TokenKeys:
    """This program's keys for tokens. The first key signs; all verify. The object contains private keys; never display it."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys`: private keys (PEM) of this program, at least one. Raises InvalidError."""
        loaded = {key_id(key): key for key in map(load_key, keys)}
        if not loaded or any(not isinstance(key.curve, ec.SECP256R1) for key in loaded.values()):
            raise InvalidError("tokens are signed with ECDSA P-256 keys, and at least one is needed")
        self._own = loaded
        self._signing_id, self._signing = next(iter(loaded.items()))
        self._public = KeySet(tuple(_Key(key.public_key(), name, ALGORITHM) for name, key in loaded.items()))

    def __repr__(self) -> str:
        return "TokenKeys(...)"

    def key_set(self) -> dict[str, Any]:
        """Return the public keys as a JWKS document."""
        keys = []
        for name, key in self._own.items():
            numbers = key.public_key().public_numbers()
            first, second = (_text(number.to_bytes(_HALF, "big")) for number in (numbers.x, numbers.y))
            common = {"kty": "EC", "crv": "P-256", "use": "sig", "alg": ALGORITHM}
            keys.append({**common, "x": first, "y": second, "kid": name})
        return {"keys": keys}

    def sign(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": ALGORITHM, "kid": self._signing_id}
        signed = f"{_encoded(header)}.{_encoded(claims)}"
        first, second = decode_dss_signature(self._signing.sign(signed.encode("ascii"), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_text(first.to_bytes(_HALF, 'big') + second.to_bytes(_HALF, 'big'))}"

    def verified(self, token: str) -> dict[str, Any] | None:
        """Return the claims; None if it is not a token, or was not signed by the key that it names."""
        header = read_header(token)
        return None if header is None or header.key_id is None else self._public.verified(token)


def key_id(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the key id as in Kubernetes: base64url of the SHA-256 of the public key."""
    return _text(sha256(encode_public_key(key.public_key())).digest())


def unverified_claims(token: str) -> dict[str, Any] | None:
    """Return the claims without verification; None: not a JSON web token."""
    return _decoded(token, 1)


def _decoded(token: str, part: int) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_TOKEN:  # noqa: PLR2004 - header, claims, signature
        return None
    raw = _decoded_bytes(parts[part])
    try:
        value = json.loads(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _encoded(value: Mapping[str, Any]) -> str:
    return _text(json.dumps(value, separators=(",", ":")).encode())


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def _decoded_bytes(text: str) -> bytes | None:
    """Decode base64url; None if `text` is not the canonical encoding. So each token has exactly one spelling."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return raw if _text(raw) == text else None
