"""Signed tokens: ours, and those that key sets of others verify."""

import json
from base64 import urlsafe_b64decode
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from machinery import pki
from machinery.errors import InvalidError
from machinery.pki import KeySet, TokenKeys
from machinery.pki.tokens import ALGORITHMS
from tests.checks import check_refusal, check_refusals
from tests.fakes.identity import SigningKey, encoded

CLAIMS = {"sub": "ann"}


def keys(*signing: SigningKey, **changed: Any) -> KeySet:
    return KeySet.parse({"keys": [{**key.jwk, **changed} for key in signing]})


@pytest.fixture(scope="module")
def rsa() -> SigningKey:
    return SigningKey("rsa", "RS256")


@pytest.fixture(scope="module")
def ecdsa() -> SigningKey:
    return SigningKey("ec", "ES256")


def test_each_algorithm_verifies_only_its_own_signatures(rsa: SigningKey) -> None:
    for algorithm in sorted(ALGORITHMS):
        key = SigningKey("k", algorithm)
        token = key.sign(CLAIMS)
        assert keys(key).verified(token) == CLAIMS, algorithm
        head, _body, signature = token.split(".")
        assert keys(key).verified(f"{head}.{encoded({'sub': 'eve'})}.{signature}") is None, algorithm
        assert keys(SigningKey("k", algorithm)).verified(token) is None

    other, signed = SigningKey("k", "ES384"), f"{encoded({'alg': 'ES256', 'kid': 'k'})}.{encoded(CLAIMS)}"
    token = f"{signed}.{encoded(other.signature(signed.encode(), 'ES256'))}"
    assert keys(other, alg=None).verified(token) is None

    bare = f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
    assert keys(rsa).verified(f"{bare}.") is None
    public = rsa.key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
    mac = hmac.HMAC(public, hashes.SHA256())
    mac.update(signed.encode())
    assert keys(rsa).verified(f"{signed}.{encoded(mac.finalize())}") is None


def test_key_is_chosen_by_id_algorithm_and_family(rsa: SigningKey, ecdsa: SigningKey) -> None:
    other = rsa.sign(CLAIMS, alg="PS256")
    assert (keys(rsa).verified(other), keys(rsa, alg=None).verified(other)) == (None, CLAIMS)
    assert keys(rsa, ecdsa).verified(ecdsa.sign(CLAIMS, kid="rsa")) is None
    assert keys(rsa, ecdsa).verified(ecdsa.sign(CLAIMS, kid=None)) == CLAIMS
    assert keys(rsa).verified(ecdsa.sign(CLAIMS, kid=None)) is None
    own = SigningKey("ec", "ES256")
    assert keys(ecdsa).verified(own.sign(CLAIMS, jwk=own.jwk)) is None
    assert keys(ecdsa).verified(own.sign(CLAIMS, jku="https://evil.example.org")) is None


def test_malformed_tokens_and_headers_are_rejected(ecdsa: SigningKey) -> None:
    def signed(header: dict[str, Any], claims: Any) -> str:
        text = f"{encoded({'alg': 'ES256', 'kid': 'ec', **header})}.{encoded(claims)}"
        return f"{text}.{encoded(ecdsa.signature(text.encode(), 'ES256'))}"

    rows: list[dict[str, Any]] = [{"crit": ["exp"]}, {"b64": False}, {"alg": 5}, {"kid": 5}, {"alg": "es256"}]
    assert [header for header in rows if keys(ecdsa).verified(signed(header, CLAIMS)) is not None] == []
    assert keys(ecdsa).verified(signed({}, CLAIMS)) == CLAIMS
    assert keys(ecdsa).verified(signed({}, json.dumps(["x"]).encode())) is None

    for token in ("", "a.b", "a.b.c", "e30.e30.", "....", "\ud800.e30.e30", "é.e30.AAAA"):
        assert keys(ecdsa).verified(token) is None, token
        assert pki.read_header(token) is None, token

    token = ecdsa.sign(CLAIMS)
    head, _, signature = token.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    wider = f"{head}.{encoded(raw[:32] + bytes(2) + raw[32:])}"
    for changed in (f"{token}=", token[:-2], f"{token}AA", wider):
        assert keys(ecdsa).verified(changed) is None


def test_unusable_keys_are_passed_over_and_malformed_sets_refused(rsa: SigningKey, ecdsa: SigningKey) -> None:
    rows: list[dict[str, Any]] = [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "RSA-OAEP"}, {"kty": "oct"}]
    rows += [{"n": encoded(b"\x01" * 128)}, {"n": "?"}, {"e": encoded(b"\xff" * 9)}, {"kid": 7}]
    for changed in rows:
        assert len(KeySet.parse({"keys": [{**rsa.jwk, **changed}, ecdsa.jwk]})) == 1, changed
        check_refusal(InvalidError, keys, rsa, **changed, match="no key for signatures")

    documents: list[dict[str, Any]] = [{}, {"keys": "x"}, {"keys": [{}] * 101}, {"keys": None}]
    check_refusals(InvalidError, KeySet.parse, [(document, "") for document in documents])
    check_refusal(InvalidError, keys, ecdsa, x=encoded(b"\x01" * 32))


KEY, OTHER = pki.generate_key(), pki.generate_key()
PRIVATE = cast("ec.EllipticCurvePrivateKey", serialization.load_pem_private_key(KEY, None))


def header_of(token: str) -> dict[str, Any]:
    part = token.split(".", maxsplit=1)[0]
    return dict(json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def test_token_round_trips_in_the_form_of_the_standard() -> None:
    token = TokenKeys([KEY]).sign(CLAIMS)
    assert (TokenKeys([KEY]).verified(token), set(header_of(token))) == (CLAIMS, {"alg", "kid"})
    exchanged = TokenKeys([OTHER, KEY])
    assert exchanged.verified(token) == CLAIMS
    assert header_of(exchanged.sign(CLAIMS)) != header_of(token)
    assert TokenKeys([OTHER]).verified(token) is None

    signed, _, signature = token.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    halves = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    PRIVATE.public_key().verify(encode_dss_signature(*halves), signed.encode(), ec.ECDSA(hashes.SHA256()))


def forged() -> list[str]:
    token = TokenKeys([KEY]).sign(CLAIMS)
    head, claims, signature = token.split(".")
    kid, other = header_of(token)["kid"], TokenKeys([OTHER]).sign(CLAIMS).split(".")
    return [
        *("", "a.b", "...", "x" * 20_000, f"{token}=", f"{token}.x", f"{head}.{claims}.", f"{head}.{claims}é.{signature}"),
        f"{head}.{encoded({**CLAIMS, 'sub': 'bob'})}.{signature}",
        f"{encoded({'alg': 'none', 'kid': kid})}.{claims}.",
        f"{encoded({'alg': 'HS256', 'kid': kid})}.{claims}.{signature}",
        f"{encoded({'alg': 'ES256'})}.{claims}.{signature}",
        f"{head}.{claims}.{other[2]}",
        f"{other[0]}.{claims}.{other[2]}",
        f"{head}.{claims}.{encoded(b'0' * 64)}",
        f"{head}.{claims}.{encoded(b'')}",
        token[:-1] + chr(ord(token[-1]) + 1),
        f"{head}.{encoded([1])}.{signature}",
    ]


def test_only_the_exact_signed_bytes_verify() -> None:
    assert [token for token in forged() if TokenKeys([KEY]).verified(token) is not None] == []

    token = TokenKeys([KEY]).sign(CLAIMS)
    signed = f"{encoded({**header_of(token), 'alg': 'RS256'})}.{token.split('.')[1]}"
    halves = decode_dss_signature(PRIVATE.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    signature = b"".join(half.to_bytes(32, "big") for half in halves)
    assert TokenKeys([KEY]).verified(f"{signed}.{encoded(signature)}") is None

    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        assert TokenKeys([KEY]).verified(changed) is None, place

    large = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    check_refusals(InvalidError, TokenKeys, [(unusable, "") for unusable in ([], [large], [KEY, large], [b"no key"])])
    assert repr(TokenKeys([KEY])) == "TokenKeys(...)"
