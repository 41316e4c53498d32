"""JSON web tokens signed with ES256 only.

There is one algorithm and one form, so that forms that a verifier must refuse (`none`, keys of another kind, embedded keys,
encrypted tokens) cannot be expressed. The key id is the hash of the public key, as in Kubernetes. Several keys may be valid at
once, so that keys can be replaced while tokens of older ones are in use.
"""

import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from machinery.errors import InvalidError
from machinery.pki.keys import encode_public_key, load_key

ALGORITHM = "ES256"
MAX_TOKEN = 16 * 1024
_HALF = 32
"""Bytes of each half of a P-256 signature."""
_SIGNATURE = ec.ECDSA(hashes.SHA256())


class TokenKeys:
    """Keys of an issuer: the first signs, all verify. Contains private keys, which must never be displayed."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys`: own private keys in PEM, at least one. Raises InvalidError."""
        loaded = [load_key(pem) for pem in keys]
        if not loaded or any(not isinstance(key.curve, ec.SECP256R1) for key in loaded):
            raise InvalidError("tokens are signed with ECDSA P-256 keys, and at least one is needed")
        self._signing = loaded[0]
        self._signing_id = key_id(loaded[0])
        self._verifying = {key_id(key): key.public_key() for key in loaded}

    def __repr__(self) -> str:
        return "TokenKeys(...)"

    def key_set(self) -> dict[str, Any]:
        """The public keys as a JWKS document."""
        return {"keys": [_jwk(name, key) for name, key in self._verifying.items()]}

    def sign(self, claims: Mapping[str, Any]) -> str:
        header = {"alg": ALGORITHM, "kid": self._signing_id}
        signed = f"{_encoded(header)}.{_encoded(claims)}"
        first, second = decode_dss_signature(self._signing.sign(signed.encode("ascii"), _SIGNATURE))
        return f"{signed}.{_text(first.to_bytes(_HALF, 'big') + second.to_bytes(_HALF, 'big'))}"

    def verified(self, token: str) -> dict[str, Any] | None:
        """The claims; None: not signed by any of these keys, or not a token."""
        header, claims = decoded_header(token), unverified_claims(token)
        if header is None or claims is None or header.get("alg") != ALGORITHM:
            return None
        key = self._verifying.get(str(header.get("kid")))
        signed, _, signature = token.rpartition(".")
        raw = decoded_bytes(signature)
        if key is None or raw is None or len(raw) != 2 * _HALF:
            return None
        halves = (int.from_bytes(raw[:_HALF], "big"), int.from_bytes(raw[_HALF:], "big"))
        try:
            key.verify(encode_dss_signature(*halves), signed.encode("ascii"), _SIGNATURE)
        except (InvalidSignature, UnicodeEncodeError):
            return None
        return claims


def _jwk(name: str, key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    first, second = (_text(number.to_bytes(_HALF, "big")) for number in (numbers.x, numbers.y))
    return {"kty": "EC", "crv": "P-256", "x": first, "y": second, "kid": name, "use": "sig", "alg": ALGORITHM}


def key_id(key: ec.EllipticCurvePrivateKey) -> str:
    """Key id as in Kubernetes: base64url of the SHA-256 of the public key."""
    return _text(sha256(encode_public_key(key.public_key())).digest())


def unverified_claims(token: str) -> dict[str, Any] | None:
    """The claims without verification; None: not a JSON web token."""
    return _decoded(token, 1)


def decoded_header(token: str) -> dict[str, Any] | None:
    """For this package: the header without verification; None: not a JSON web token."""
    return _decoded(token, 0)


def _decoded(token: str, part: int) -> dict[str, Any] | None:
    parts = token.split(".")
    if len(parts) != 3 or len(token) > MAX_TOKEN:  # noqa: PLR2004 - header, claims, signature
        return None
    raw = decoded_bytes(parts[part])
    try:
        value = json.loads(raw) if raw is not None else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _encoded(value: Mapping[str, Any]) -> str:
    return _text(json.dumps(value, separators=(",", ":")).encode())


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decoded_bytes(text: str) -> bytes | None:
    """For this package: decode base64url. None unless `text` is its canonical encoding, so each token has one spelling."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return raw if _text(raw) == text else None
