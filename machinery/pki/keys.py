"""Private keys of our own (ECDSA P-256, PKCS#8 PEM) and what we accept of others' public keys.

Accepted are the kinds that gRPC's TLS can use for a client certificate: ECDSA P-256 and P-384, RSA from 2048 bits on. With any
other (Ed25519, P-521, ...) the handshake fails with NO_COMMON_SIGNATURE_ALGORITHMS, so a certificate for one would be useless.
"""

from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from machinery.errors import InvalidError

MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Verifying a signature by a larger key costs too much to do it for strangers."""
MIN_RSA_EXPONENT = 65537
"""Smaller ones make mistakes in a signature's padding exploitable (FIPS 186-5, 5.4)."""
MAX_RSA_EXPONENT = 2**32 - 1


def generate_key() -> bytes:
    """A new private key: ECDSA P-256, PKCS#8 PEM, not encrypted."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """A private key of our own. Raises InvalidError, which never holds a part of the key."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidError("the private key cannot be read: expected an unencrypted PKCS#8 PEM block") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidError("the private key is of another kind than ours: expected ECDSA P-256")
    return key


def load_signing_key(pem: bytes) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """The private key of a CA, ours or another's: ECDSA, or RSA as Kubernetes' own tools make it.

    Raises InvalidError, which never holds a part of the key.
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidError("the private key cannot be read: expected an unencrypted PEM block") from None
    if isinstance(key, ec.EllipticCurvePrivateKey) or (isinstance(key, rsa.RSAPrivateKey) and key.key_size >= MIN_RSA_BITS):
        return key
    raise InvalidError(f"a CA's key must be ECDSA, or RSA with {MIN_RSA_BITS} bits or more")


def public_key_of(private_key: bytes) -> bytes:
    """The public key (DER SubjectPublicKeyInfo) of a private key in PEM. Raises InvalidError."""
    return encode_public_key(load_key(private_key).public_key())


def key_hash(public_key: bytes) -> str:
    """Hex SHA-256 of a DER SubjectPublicKeyInfo: how records name a key."""
    return sha256(public_key).hexdigest()


def encode_public_key(key: PublicKeyTypes) -> bytes:
    """DER SubjectPublicKeyInfo."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


@lru_cache(maxsize=64)
def load_public_key(der: bytes) -> PublicKeyTypes:
    """A public key in DER SubjectPublicKeyInfo, of whatever kind; one is asked for several times. Raises InvalidError."""
    try:
        return serialization.load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidError("the public key cannot be read") from None


def kind_of(key: PublicKeyTypes) -> str:
    """The key's kind as people write it: `ECDSA P-256`, `RSA 2048`, `Ed25519`."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return {"secp256r1": "ECDSA P-256", "secp384r1": "ECDSA P-384", "secp521r1": "ECDSA P-521"}.get(
            key.curve.name, f"ECDSA {key.curve.name}"
        )
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA {key.key_size}"
    return type(key).__name__.removesuffix("PublicKey")


def refusal_of(key: PublicKeyTypes) -> str | None:
    """Why a certificate over this key would be useless; None: it is fine."""
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
