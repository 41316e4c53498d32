"""Signed tokens: what was signed is read, and nothing else is."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from machinery import pki
from machinery.errors import InvalidError
from machinery.pki import TokenKeys

KEY, OTHER = pki.generate_key(), pki.generate_key()
CLAIMS = {"sub": "ann", "exp": 7}


def encoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def header_of(token: str) -> dict[str, Any]:
    part = token.split(".", maxsplit=1)[0]
    return dict(json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def test_what_was_signed_is_read_again() -> None:
    token = TokenKeys([KEY]).sign(CLAIMS)
    assert TokenKeys([KEY]).verified(token) == CLAIMS
    assert set(header_of(token)) == {"alg", "kid"}


def test_a_key_that_signs_no_more_still_verifies() -> None:
    token = TokenKeys([KEY]).sign(CLAIMS)
    exchanged = TokenKeys([OTHER, KEY])
    assert exchanged.verified(token) == CLAIMS
    assert header_of(exchanged.sign(CLAIMS)) != header_of(token)
    assert TokenKeys([OTHER]).verified(token) is None


def test_the_form_of_the_signature_is_the_standards() -> None:
    """RFC 7515: both halves of the signature, 32 bytes each, over the two parts as they are sent."""
    signed, _, signature = TokenKeys([KEY]).sign(CLAIMS).rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    key = serialization.load_pem_private_key(KEY, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    halves = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    key.public_key().verify(encode_dss_signature(*halves), signed.encode(), ec.ECDSA(hashes.SHA256()))


def forged() -> list[str]:
    keys = TokenKeys([KEY])
    token = keys.sign(CLAIMS)
    head, claims, signature = token.split(".")
    kid = header_of(token)["kid"]
    other = TokenKeys([OTHER]).sign(CLAIMS).split(".")
    return [
        "",
        "a.b",
        "...",
        f"{head}.{claims}.",
        f"{head}.{encoded({**CLAIMS, 'sub': 'bob'})}.{signature}",
        f"{encoded({'alg': 'none', 'kid': kid})}.{claims}.",
        f"{encoded({'alg': 'HS256', 'kid': kid})}.{claims}.{signature}",
        f"{encoded({'alg': 'ES256'})}.{claims}.{signature}",
        f"{head}.{claims}.{other[2]}",
        f"{other[0]}.{claims}.{other[2]}",
        f"{head}.{claims}.{encoded(b'0' * 64)}",
        f"{head}.{claims}.{encoded(b'')}",
        f"{token}=",
        f"{token}.x",
        token[:-1] + chr(ord(token[-1]) + 1),
        f"{head}.{encoded([1])}.{signature}",
        "x" * 20_000,
        f"{head}.{claims}é.{signature}",
    ]


@pytest.mark.parametrize("token", forged(), ids=range(len(forged())))
def test_nothing_else_is_read(token: str) -> None:
    assert TokenKeys([KEY]).verified(token) is None


def test_another_algorithms_name_is_not_read_even_over_a_good_signature() -> None:
    token = TokenKeys([KEY]).sign(CLAIMS)
    signed = f"{encoded({**header_of(token), 'alg': 'RS256'})}.{token.split('.')[1]}"
    key = serialization.load_pem_private_key(KEY, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    halves = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    signature = b"".join(half.to_bytes(32, "big") for half in halves)
    assert TokenKeys([KEY]).verified(f"{signed}.{encoded(signature)}") is None


def test_the_very_bytes_were_signed() -> None:
    """Every single character counts: of each token there is one spelling."""
    token = TokenKeys([KEY]).sign(CLAIMS)
    keys = TokenKeys([KEY])
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        assert keys.verified(changed) is None, place


def test_keys_that_cannot_sign_are_refused() -> None:
    large = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for keys in ([], [large], [KEY, large], [b"no key"]):
        with pytest.raises(InvalidError):
            TokenKeys(keys)


def test_keys_are_not_shown() -> None:
    assert repr(TokenKeys([KEY])) == "TokenKeys(...)"
