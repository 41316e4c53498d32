"""Others' tokens: which algorithms and keys count, and every way of talking a verifier into something else."""

import json
from base64 import urlsafe_b64decode
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization

from machinery import pki
from machinery.errors import InvalidError
from machinery.pki import KeySet
from machinery.pki.keysets import ALGORITHMS
from tests.fakes.identity import SigningKey, encoded

CLAIMS = {"sub": "ann"}


def keys(*signing: SigningKey, **changed: Any) -> KeySet:
    return KeySet.parse({"keys": [{**key.jwk, **changed} for key in signing]})


@pytest.fixture(scope="module")
def rsa() -> SigningKey:
    return SigningKey("rsa", "RS256")


@pytest.fixture(scope="module")
def ec() -> SigningKey:
    return SigningKey("ec", "ES256")


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_each_algorithm_verifies_its_own_signatures_and_no_changed_ones(algorithm: str) -> None:
    key = SigningKey("k", algorithm)
    token = key.sign(CLAIMS)
    assert keys(key).verified(token) == CLAIMS
    head, _body, signature = token.split(".")
    assert keys(key).verified(f"{head}.{encoded({'sub': 'eve'})}.{signature}") is None
    assert keys(SigningKey("k", algorithm)).verified(token) is None


def test_a_key_is_for_the_algorithm_that_it_names_and_for_its_family(rsa: SigningKey, ec: SigningKey) -> None:
    other = rsa.sign(CLAIMS, alg="PS256")
    assert keys(rsa).verified(other) is None
    assert keys(rsa, alg=None).verified(other) == CLAIMS
    assert keys(rsa, ec).verified(ec.sign(CLAIMS, kid="rsa")) is None


def test_a_token_without_a_key_id_is_tried_with_every_key_that_fits(rsa: SigningKey, ec: SigningKey) -> None:
    assert keys(rsa, ec).verified(ec.sign(CLAIMS, kid=None)) == CLAIMS
    assert keys(rsa).verified(ec.sign(CLAIMS, kid=None)) is None


def test_an_algorithm_is_of_one_curve() -> None:
    other = SigningKey("k", "ES384")
    signed = f"{encoded({'alg': 'ES256', 'kid': 'k'})}.{encoded(CLAIMS)}"
    token = f"{signed}.{encoded(other.signature(signed.encode(), 'ES256'))}"
    assert keys(other, alg=None).verified(token) is None


def test_none_and_hmac_are_no_algorithms(rsa: SigningKey) -> None:
    bare = f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
    assert keys(rsa).verified(f"{bare}.") is None
    public = rsa.key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
    mac = hmac.HMAC(public, hashes.SHA256())
    mac.update(signed.encode())
    assert keys(rsa).verified(f"{signed}.{encoded(mac.finalize())}") is None


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"b64": False}, {"alg": 5}, {"kid": 5}, {"alg": "es256"}])
def test_what_a_header_demands_and_is_not_understood_is_refused(ec: SigningKey, header: dict[str, Any]) -> None:
    signed = f"{encoded({'alg': 'ES256', 'kid': 'ec', **header})}.{encoded(CLAIMS)}"
    assert keys(ec).verified(f"{signed}.{encoded(ec.signature(signed.encode(), 'ES256'))}") is None


def test_a_key_that_comes_with_the_token_does_not_count(ec: SigningKey) -> None:
    own = SigningKey("ec", "ES256")
    assert keys(ec).verified(own.sign(CLAIMS, jwk=own.jwk)) is None
    assert keys(ec).verified(own.sign(CLAIMS, jku="https://evil.example.org")) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"alg": "RSA-OAEP"},
        {"kty": "oct"},
        {"n": encoded(b"\x01" * 128)},
        {"n": "?"},
        {"e": encoded(b"\xff" * 9)},
        {"kid": 7},
    ],
    ids=str,
)
def test_keys_that_cannot_verify_are_passed_over(rsa: SigningKey, ec: SigningKey, changed: dict[str, Any]) -> None:
    assert len(KeySet.parse({"keys": [{**rsa.jwk, **changed}, ec.jwk]})) == 1
    with pytest.raises(InvalidError, match="no key for signatures"):
        keys(rsa, **changed)


@pytest.mark.parametrize(
    "document", [{}, {"keys": "x"}, {"keys": [{}] * 101}, {"keys": None}], ids=["none", "text", "many", "null"]
)
def test_what_is_no_key_set_is_said_so(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        KeySet.parse(document)


def test_a_point_that_is_not_on_the_curve_is_no_key(ec: SigningKey) -> None:
    with pytest.raises(InvalidError):
        keys(ec, x=encoded(b"\x01" * 32))


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "e30.e30.", "....", "\ud800.e30.e30", "é.e30.AAAA"])
def test_what_is_no_token_is_none(ec: SigningKey, token: str) -> None:
    assert keys(ec).verified(token) is None
    assert pki.read_header(token) is None


def test_a_signature_of_another_length_or_with_padding_is_refused(ec: SigningKey) -> None:
    token = ec.sign(CLAIMS)
    head, _, signature = token.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    wider = f"{head}.{encoded(raw[:32] + bytes(2) + raw[32:])}"
    for changed in (f"{token}=", token[:-2], f"{token}AA", wider):
        assert keys(ec).verified(changed) is None


def test_claims_that_are_no_mapping_are_none(ec: SigningKey) -> None:
    signed = f"{encoded({'alg': 'ES256', 'kid': 'ec'})}.{encoded(json.dumps(['x']).encode())}"
    assert keys(ec).verified(f"{signed}.{encoded(ec.signature(signed.encode(), 'ES256'))}") is None
