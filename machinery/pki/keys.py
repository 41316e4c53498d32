"""This program's own private keys (ECDSA P-256, PKCS#8 PEM), and the kinds of public keys that it accepts from peers.

The accepted kinds are those that gRPC's TLS supports for client certificates: ECDSA P-256 and P-384, and RSA from 2048 bits.
With other keys (Ed25519, P-521, ...) the TLS handshake fails with NO_COMMON_SIGNATURE_ALGORITHMS.
"""

from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

from machinery.errors import InvalidError

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Largest RSA key. Larger keys are expensive to verify, and unauthenticated callers could send them."""
MIN_RSA_EXPONENT = 65537
"""With smaller exponents, errors in the padding of a signature are exploitable (FIPS 186-5, 5.4)."""
MAX_RSA_EXPONENT = 2**32 - 1


def generate_key() -> bytes:
    """Generate a private key: ECDSA P-256, PKCS#8 PEM, not encrypted."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Load a private key of this program. Raises InvalidError, which contains no part of the key."""
    key = _load(pem, "PKCS#8 PEM block")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidError("the private key is of another kind than ours: expected ECDSA P-256")
    return key


def load_signing_key(pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """Load the private key of a CA, the hub's own or an external one: ECDSA, or RSA, which Kubernetes' tools create.

    Raises InvalidError, which contains no part of the key.
    """
    key = _load(pem, "PEM block")
    if isinstance(key, ec.EllipticCurvePrivateKey) or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= MIN_RSA_BITS):
        return key
    raise InvalidError(f"a CA's key must be ECDSA, or RSA with {MIN_RSA_BITS} bits or more")


def _load(pem: bytes, expected: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidError(f"the private key cannot be read: expected an unencrypted {expected}") from None


def public_key_of(private_key: bytes) -> bytes:
    """Return the public key (DER SubjectPublicKeyInfo) of a private key (PEM). Raises InvalidError."""
    return encode_public_key(load_key(private_key).public_key())


def key_hash(public_key: bytes) -> str:
    """Return the hex SHA-256 of a DER SubjectPublicKeyInfo, which identifies the key in records."""
    return sha256(public_key).hexdigest()


def encode_public_key(key: PublicKeyTypes) -> bytes:
    """Encode a public key as DER SubjectPublicKeyInfo."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


@lru_cache(maxsize=64)
def load_public_key(der: bytes) -> PublicKeyTypes:
    """Load a public key of any kind from DER SubjectPublicKeyInfo; cached. Raises InvalidError."""
    try:
        return serialization.load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidError("the public key cannot be read") from None


def kind_of(key: PublicKeyTypes) -> str:
    """Return the kind of the key for display: `ECDSA P-256`, `RSA 2048`, `Ed25519`."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return {"secp256r1": "ECDSA P-256", "secp384r1": "ECDSA P-384", "secp521r1": "ECDSA P-521"}.get(
            key.curve.name, f"ECDSA {key.curve.name}"
        )
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.removesuffix("PublicKey")


def key_refusal(key: PublicKeyTypes) -> str | None:
    """Return why peers could not use a certificate with this key; None if the key is usable."""
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return None
    if isinstance(key, rsa.RSAPublicKey):
        if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
            return f"an RSA key must have {MIN_RSA_BITS} to {MAX_RSA_BITS} bits, this one has {key.key_size}"
        exponent = key.public_numbers().e
        if not MIN_RSA_EXPONENT <= exponent <= MAX_RSA_EXPONENT:
            return f"an RSA key must have an exponent from {MIN_RSA_EXPONENT} on, and below 2^32: make a key with the usual one"
        return None
    return f"gRPC's TLS cannot use {kind_of(key)} keys: use ECDSA P-256 or P-384, or RSA from {MIN_RSA_BITS} bits on"
