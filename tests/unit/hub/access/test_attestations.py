"""Which tokens prove which cluster it is, and which do not: what is wrong is for the audit log alone."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from hub.access.attestations import Attestor, KnownIssuer, Policy, flaws
from hub.domain.attestation import FAILED, AttestationError, Attested, Demand
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.credential import Bounds
from machinery.apiserver.authentication.asking import Documents
from machinery.apiserver.authentication.issuerkeys import APART
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import ClusterName, HubId
from machinery.pki import TokenKeys, generate_key
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import Newcomer

ISSUER = "https://edge.example.org"
SUBJECT = "system:serviceaccount:agents:spoke"
HUB = HubId("b2f1d5a0-0000-4000-8000-000000000001")
AUDIENCE = f"urn:uuid:{HUB}"
EDGE = ClusterName("edge")
LEFT_OUT = object()


@pytest.fixture
def keys() -> TokenKeys:
    return TokenKeys([generate_key()])


class Published(Documents):
    """What an issuer tells; `keys` None: it is away."""

    def __init__(self, keys: TokenKeys | None) -> None:
        self.keys = keys
        self.asked = 0

    async def get(self, url: str) -> Mapping[str, Any]:
        self.asked += 1
        if self.keys is None:
            raise UnavailableError("edge.example.org cannot be reached: no route to host")
        return self.keys.key_set() if url.endswith("/jwks") else {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/jwks"}

    async def reach(self, url: str) -> None:
        raise AssertionError(url)

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError(url, body)


def claims(clock: ManualClock, **changed: Any) -> dict[str, Any]:
    now = clock.now()
    told = {
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "sub": SUBJECT,
        "exp": int((now + timedelta(minutes=10)).timestamp()),
        "nbf": int(now.timestamp()),
        "iat": int(now.timestamp()),
        **changed,
    }
    return {name: value for name, value in told.items() if value is not LEFT_OUT}


def demand(issued: TokenKeys, **changed: Any) -> Demand:
    return Demand(**{"issuer": ISSUER, "keys": json.dumps(issued.key_set()), **changed})


def requester(store: MemoryStore, demanded: Demand | None) -> CertificateRecord:
    return Newcomer(store).bootstrap(bounds=Bounds(attestation=demanded))


def attestor(
    store: MemoryStore, clock: ManualClock, published: Documents | None = None, policy: Policy | None = None
) -> Attestor:
    return Attestor(store, HUB, lambda _authority: published or Published(None), clock, policy)


def encoded(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


async def test_a_token_of_the_issuer_for_this_hub_proves_the_cluster(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys
) -> None:
    record = requester(store, demand(keys))
    proven = await attestor(store, clock).attested(record, EDGE, keys.sign(claims(clock)))
    (key,) = keys.key_set()["keys"]
    assert proven == Attested(ISSUER, SUBJECT, key["kid"], frozenset((key["kid"],)))
    assert await attestor(store, clock).audience(record) == AUDIENCE


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"iss": "https://other.example.org"}, "the token is of issuer 'https://other.example.org'"),
        ({"iss": ISSUER + "/"}, "the token is of issuer"),
        ({"iss": LEFT_OUT}, "the token is of issuer 'None'"),
        ({"aud": ["https://kubernetes.default.svc"]}, "and not for 'urn:uuid:"),
        ({"aud": [AUDIENCE.upper()]}, "and not for 'urn:uuid:"),
        ({"aud": f"x{AUDIENCE}"}, "and not for 'urn:uuid:"),
        ({"aud": {AUDIENCE: 1}}, "and not for 'urn:uuid:"),
        ({"aud": LEFT_OUT}, "and not for 'urn:uuid:"),
        ({"exp": 1}, "the token has expired"),
        ({"exp": LEFT_OUT}, "the token has no end"),
        ({"exp": True}, '"exp" of the token is no time'),
        ({"exp": "2030"}, '"exp" of the token is no time'),
        ({"exp": 1e300}, '"exp" of the token is no time'),
        ({"nbf": 4_000_000_000}, "the token is not valid yet"),
        ({"iat": 4_000_000_000}, "the token is not valid yet"),
        ({"sub": "system:node:a"}, "which does not fit"),
        ({"sub": LEFT_OUT}, "which does not fit"),
        ({"sub": ["system:serviceaccount:agents:spoke"]}, "which does not fit"),
    ],
)
async def test_a_token_that_says_something_else_proves_nothing(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys, changed: dict[str, Any], why: str
) -> None:
    token = keys.sign(claims(clock, **changed))
    with pytest.raises(AttestationError) as caught:
        await attestor(store, clock).attested(requester(store, demand(keys)), EDGE, token)
    assert (why in caught.value.why, caught.value.message) == (True, FAILED), caught.value.why


async def test_a_token_ends_to_the_second_and_clocks_may_be_off_by_a_minute(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys
) -> None:
    record, asked = requester(store, demand(keys)), attestor(store, clock)
    token = keys.sign(claims(clock, nbf=int((clock.now() + timedelta(seconds=60)).timestamp())))
    assert await asked.attested(record, EDGE, token)
    clock.advance(timedelta(minutes=10) - timedelta(seconds=1))
    assert await asked.attested(record, EDGE, token)
    clock.advance(timedelta(seconds=1))
    with pytest.raises(AttestationError):
        await asked.attested(record, EDGE, token)


async def test_a_service_account_of_another_name_proves_nothing(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys
) -> None:
    record = requester(store, demand(keys, subject="system:serviceaccount:agents:*"))
    assert await attestor(store, clock).attested(record, EDGE, keys.sign(claims(clock)))
    with pytest.raises(AttestationError):
        await attestor(store, clock).attested(
            record, EDGE, keys.sign(claims(clock, sub="system:serviceaccount:default:default"))
        )


def forged(kind: str, clock: ManualClock, keys: TokenKeys) -> str:
    """Tokens that somebody makes who has the issuer's public keys and none of its private ones."""
    (public,) = keys.key_set()["keys"]
    body = encoded(claims(clock))
    if kind == "none":
        return f"{encoded({'alg': 'none'})}.{body}."
    if kind == "nothing":
        return ""
    if kind == "cut":
        return keys.sign(claims(clock)).rpartition(".")[0]
    if kind == "hmac":
        signed = f"{encoded({'alg': 'HS256', 'kid': public['kid']})}.{body}"
        mac = hmac.HMAC(json.dumps(keys.key_set()).encode(), hashes.SHA256())
        mac.update(signed.encode())
        return f"{signed}.{encoded(mac.finalize())}"
    if kind == "embedded":
        other = TokenKeys([generate_key()])
        header, rest = other.sign(claims(clock)).split(".", 1)
        return f"{header}.{rest}"
    if kind == "other claims":
        header, _, signature = keys.sign(claims(clock)).split(".")
        return f"{header}.{encoded(claims(clock, sub='system:serviceaccount:agents:other'))}.{signature}"
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["none", "nothing", "cut", "hmac", "embedded", "other claims"])
async def test_what_the_issuer_has_not_signed_proves_nothing(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys, kind: str
) -> None:
    with pytest.raises(AttestationError, match=f"^{FAILED}$"):
        await attestor(store, clock).attested(requester(store, demand(keys)), EDGE, forged(kind, clock, keys))


@pytest.mark.parametrize("algorithm", ["RS256", "PS256"])
async def test_an_rsa_key_of_the_issuer_signs_by_rs256_alone(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys, algorithm: str
) -> None:
    key = rsa.generate_private_key(65537, 2048)
    numbers = key.public_key().public_numbers()
    jwk = {"kty": "RSA", "n": encoded(numbers.n.to_bytes(256)), "e": encoded(numbers.e.to_bytes(3)), "kid": "r"}
    record = requester(store, demand(keys, keys=json.dumps({"keys": [jwk]})))
    signed = f"{encoded({'alg': algorithm, 'kid': 'r'})}.{encoded(claims(clock))}"
    if algorithm == "RS256":
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        assert await attestor(store, clock).attested(record, EDGE, f"{signed}.{encoded(signature)}")
        return
    how = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    signature = key.sign(signed.encode(), how, hashes.SHA256())
    with pytest.raises(AttestationError) as caught:
        await attestor(store, clock).attested(record, EDGE, f"{signed}.{encoded(signature)}")
    assert "of an algorithm that is accepted" in caught.value.why


async def test_keys_of_discovery_are_kept_and_follow_a_rotation(
    store: MemoryStore, clock: ManualClock, keys: TokenKeys
) -> None:
    published = Published(keys)
    asked, record = attestor(store, clock, published), requester(store, Demand(ISSUER))
    for _ in range(5):
        assert await asked.attested(record, EDGE, keys.sign(claims(clock)))
    assert published.asked == 2, "the configuration and the keys, once"
    published.keys = TokenKeys([generate_key()])
    clock.advance(APART)
    assert await asked.attested(record, EDGE, published.keys.sign(claims(clock)))
    with pytest.raises(AttestationError):
        await asked.attested(record, EDGE, keys.sign(claims(clock)))
    published.keys = None
    with pytest.raises(AttestationError) as caught:
        await attestor(store, clock, published).attested(record, EDGE, keys.sign(claims(clock)))
    assert "no route to host" in caught.value.why


async def test_nothing_is_asked_of_agents_nor_where_nothing_is_demanded(store: MemoryStore, clock: ManualClock) -> None:
    newcomer = Newcomer(store)
    asked = attestor(store, clock, policy=Policy(required=True))
    agent = newcomer.registered()
    assert (agent.purpose, await asked.audience(agent), await asked.attested(agent, EDGE, "")) == (Purpose.AGENT, "", None)
    free = requester(store, None)
    assert (await attestor(store, clock).audience(free), await attestor(store, clock).attested(free, EDGE, "x")) == ("", None)


async def test_a_hub_that_demands_it_knows_issuers_by_cluster(store: MemoryStore, clock: ManualClock, keys: TokenKeys) -> None:
    other = TokenKeys([generate_key()])
    known = [
        KnownIssuer(demand(other), ("shop-*",)),
        KnownIssuer(demand(keys), ("ed*",)),
        KnownIssuer(demand(other, issuer="https://other.example.org")),
    ]
    asked = attestor(store, clock, policy=Policy(required=True, audience="the-hub", issuers=lambda: known))
    record = requester(store, None)
    assert await asked.audience(record) == "the-hub"
    assert await asked.attested(record, EDGE, keys.sign(claims(clock, aud="the-hub")))
    for cluster, token in (("bank", keys.sign(claims(clock, aud="the-hub"))), ("edge", "")):
        with pytest.raises(AttestationError):
            await asked.attested(record, ClusterName(cluster), token)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"issuer": "http://edge.example.org", "keys": ""}, "issuer"),
        ({"issuer": ""}, "issuer"),
        ({"keys": "{}"}, "keys"),
        ({"keys": "[]"}, "keys"),
        ({"keys": "no"}, "keys"),
        ({"keys": '{"keys": [{"kty": "oct", "k": "AAAA"}]}'}, "keys"),
        ({"authority": "no"}, "authority"),
        ({"subject": "*"}, "subject"),
    ],
)
def test_a_demand_that_cannot_be_met_is_seen_when_it_is_made(keys: TokenKeys, changed: dict[str, str], field: str) -> None:
    assert [name for name, _ in flaws(demand(keys, **changed))] == [field]
    assert list(flaws(demand(keys))) == []
