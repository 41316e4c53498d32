"""Which tokens prove which cluster it is, and which do not: what is wrong is for the audit log alone."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from hub.access.attestations import AttestationPolicy, Attestor, KnownIssuer, flaws
from hub.api.bootstrapcredentials import FAILED, AttestationError, Attested, CredentialBounds, Demand
from hub.api.certificates import CertificateRecord, Purpose
from machinery.apiserver.authn.issuer_keys import APART, AllowedUrls, JsonDocuments
from machinery.errors import UnavailableError
from machinery.identity import ClusterName, HubId
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of, refusal_of
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer

ISSUER = "https://edge.example.org"
SUBJECT = "system:serviceaccount:agents:spoke"
HUB = HubId("b2f1d5a0-0000-4000-8000-000000000001")
AUDIENCE = f"urn:uuid:{HUB}"
EDGE = ClusterName("edge")
LEFT_OUT = object()


class Published(JsonDocuments):
    """What an issuer tells; `keys` None: it is away."""

    def __init__(self, keys: TokenKeys | None, host: str = ISSUER) -> None:
        self.keys = keys
        self.host = host
        self.asked = 0

    async def get(self, url: str) -> Mapping[str, Any]:
        self.asked += 1
        if self.keys is None:
            raise UnavailableError("edge.example.org cannot be reached: no route to host")
        return self.keys.key_set() if url.endswith("/jwks") else {"issuer": ISSUER, "jwks_uri": f"{self.host}/jwks"}

    async def reach(self, url: str) -> None:
        raise AssertionError(url)

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise AssertionError(url, body)


@dataclass
class Stage:
    store: InlineStore
    clock: ManualClock
    keys: TokenKeys

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(self.clock.now().timestamp())
        told = {"iss": ISSUER, "aud": [AUDIENCE], "sub": SUBJECT, "exp": now + 600, "nbf": now, "iat": now, **changed}
        return {name: value for name, value in told.items() if value is not LEFT_OUT}

    def token(self, **changed: Any) -> str:
        return self.keys.sign(self.claims(**changed))

    def demand(self, **changed: Any) -> Demand:
        return demand(self.keys, **changed)

    def requester(self, demanded: Demand | None) -> CertificateRecord:
        return Newcomer(self.store).bootstrap(bounds=CredentialBounds(attestation=demanded))

    def attestor(self, published: JsonDocuments | None = None, policy: AttestationPolicy | None = None) -> Attestor:
        policy = policy or AttestationPolicy(allowed=AllowedUrls((ISSUER,)))
        return Attestor(self.store, HUB, lambda _authority: published or Published(None), self.clock, policy)

    async def refused(self, token: str, record: CertificateRecord | None = None) -> AttestationError | None:
        """By the issuer's own keys, unless the record demands something else."""
        asked = self.attestor().attested(record or self.requester(self.demand()), EDGE, token)
        return await refusal_of(AttestationError, asked)


@pytest.fixture
def stage(store: InlineStore, clock: ManualClock) -> Stage:
    return Stage(store, clock, TokenKeys([generate_key()]))


def demand(issued: TokenKeys, **changed: Any) -> Demand:
    return Demand(**{"issuer": ISSUER, "keys": json.dumps(issued.key_set()), **changed})


def encoded(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


async def test_a_token_of_the_issuer_for_this_hub_proves_the_cluster(stage: Stage) -> None:
    record = stage.requester(stage.demand())
    proven = await stage.attestor().attested(record, EDGE, stage.token())
    (key,) = stage.keys.key_set()["keys"]
    assert proven == Attested(ISSUER, SUBJECT, key["kid"], frozenset((key["kid"],)))
    assert await stage.attestor().audience(record) == AUDIENCE
    any_of_agents = stage.requester(stage.demand(subject="system:serviceaccount:agents:*"))
    assert await stage.refused(stage.token(), any_of_agents) is None
    assert await stage.refused(stage.token(sub="system:serviceaccount:default:default"), any_of_agents)


WRONG_CLAIMS: tuple[tuple[dict[str, Any], str], ...] = (
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
)


async def test_a_token_with_wrong_claims_proves_nothing_and_the_reason_is_not_for_its_sender(stage: Stage) -> None:
    for changed, why in WRONG_CLAIMS:
        refused = await stage.refused(stage.token(**changed))
        assert refused is not None, changed
        assert (why in refused.why, refused.message) == (True, FAILED), refused.why


async def test_a_token_ends_to_the_second_and_clocks_may_be_off_by_a_minute(stage: Stage) -> None:
    record = stage.requester(stage.demand())
    token = stage.token(nbf=int((stage.clock.now() + timedelta(seconds=60)).timestamp()))
    assert await stage.refused(token, record) is None
    stage.clock.advance(timedelta(minutes=10) - timedelta(seconds=1))
    assert await stage.refused(token, record) is None
    stage.clock.advance(timedelta(seconds=1))
    assert await stage.refused(token, record)


async def test_a_token_that_the_issuer_has_not_signed_proves_nothing(stage: Stage) -> None:
    """Whoever makes them has the issuer's public keys and none of its private ones."""
    body, key_set, signed = encoded(stage.claims()), stage.keys.key_set(), stage.token().split(".")
    hmac_signed = f"{encoded({'alg': 'HS256', 'kid': key_set['keys'][0]['kid']})}.{body}"
    mac = hmac.HMAC(json.dumps(key_set).encode(), hashes.SHA256())
    mac.update(hmac_signed.encode())
    forged = {
        "algorithm none": f"{encoded({'alg': 'none'})}.{body}.",
        "no token": "",
        "no signature": f"{signed[0]}.{signed[1]}",
        "public key as a secret": f"{hmac_signed}.{encoded(mac.finalize())}",
        "another key": TokenKeys([generate_key()]).sign(stage.claims()),
        "other claims": f"{signed[0]}.{encoded(stage.claims(sub='system:serviceaccount:agents:other'))}.{signed[2]}",
    }
    said = {kind: str(await stage.refused(token)) for kind, token in forged.items()}
    assert said == dict.fromkeys(forged, FAILED)


async def test_an_rsa_key_of_the_issuer_signs_by_rs256_alone(stage: Stage) -> None:
    key = rsa.generate_private_key(65537, 2048)
    numbers = key.public_key().public_numbers()
    jwk = {"kty": "RSA", "n": encoded(numbers.n.to_bytes(256)), "e": encoded(numbers.e.to_bytes(3)), "kid": "r"}
    record = stage.requester(stage.demand(keys=json.dumps({"keys": [jwk]})))
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    signatures: tuple[tuple[str, padding.AsymmetricPadding], ...] = (("RS256", padding.PKCS1v15()), ("PS256", pss))
    said = []
    for algorithm, how in signatures:
        signed = f"{encoded({'alg': algorithm, 'kid': 'r'})}.{encoded(stage.claims())}"
        said.append(await stage.refused(f"{signed}.{encoded(key.sign(signed.encode(), how, hashes.SHA256()))}", record))
    assert said[0] is None
    assert said[1] is not None
    assert "of an algorithm that is accepted" in said[1].why


async def test_keys_of_discovery_are_kept_and_follow_a_rotation(stage: Stage) -> None:
    published = Published(stage.keys)
    asked, record = stage.attestor(published), stage.requester(Demand(ISSUER))
    for _ in range(5):
        assert await asked.attested(record, EDGE, stage.token())
    assert published.asked == 2, "the configuration and the keys, once"
    published.keys = TokenKeys([generate_key()])
    stage.clock.advance(APART)
    assert await asked.attested(record, EDGE, published.keys.sign(stage.claims()))
    await check_refusal_of(AttestationError, asked.attested(record, EDGE, stage.token()))
    published.keys = None
    with pytest.raises(AttestationError) as caught:
        await stage.attestor(published).attested(record, EDGE, stage.token())
    assert "no route to host" in caught.value.why


async def test_keys_are_fetched_from_allowed_urls_alone(stage: Stage) -> None:
    """A credential's issuer needs an entry, an issuer of the hub's own list does not; neither sends the hub elsewhere."""
    named, keys_host = stage.requester(Demand(ISSUER)), "https://keys.example.net"
    listed = AttestationPolicy(required=True, issuers=lambda: (KnownIssuer(Demand(ISSUER)),))
    both = AttestationPolicy(allowed=AllowedUrls((ISSUER, keys_host)))
    rows = (
        (named, AttestationPolicy(), ISSUER, "does not list it", 0),
        (stage.requester(stage.demand()), AttestationPolicy(), ISSUER, "", 0),
        (named, AttestationPolicy(allowed=AllowedUrls((ISSUER,))), keys_host, "is at another host", 1),
        (named, both, keys_host, "", 2),
        (stage.requester(None), listed, ISSUER, "", 2),
        (stage.requester(None), listed, keys_host, "is at another host", 1),
    )
    for record, policy, host, why, asked in rows:
        published = Published(stage.keys, host)
        refused = await refusal_of(AttestationError, stage.attestor(published, policy).attested(record, EDGE, stage.token()))
        assert (why in (refused.why if refused else ""), bool(refused), published.asked) == (True, bool(why), asked), (
            host,
            policy,
        )


def test_allow_list_has_whole_urls_hosts_and_subdomains() -> None:
    cases = (
        ("https://a.org/x", "https://a.org/x", True),
        ("https://a.org/x", "https://a.org/x/y https://a.org https://a.org/xy http://a.org/x", False),
        ("https://a.org", "https://a.org https://a.org/x https://A.org:443/y", True),
        ("https://a.org", "https://a.org.b.org https://b.a.org https://a.org:444 http://a.org https://a.org@b.org", False),
        ("https://*.a.org", "https://b.a.org/x https://c.b.a.org", True),
        (
            "https://*.a.org",
            "https://a.org https://ba.org https://b.org\\.a.org https://b.org%2f.a.org https://x:y.a.org",
            False,
        ),
        ("https://[::1]:8", "https://[::1]:8/x", True),
    )
    assert [(entry, url) for entry, urls, so in cases for url in urls.split() if AllowedUrls((entry,)).allow(url) != so] == []
    assert not AllowedUrls().allow(ISSUER)


async def test_a_token_is_demanded_of_credentials_by_bounds_or_policy_and_never_of_agents(stage: Stage) -> None:
    agent = Newcomer(stage.store).registered()
    asked = stage.attestor(policy=AttestationPolicy(required=True))
    assert (agent.purpose, await asked.audience(agent), await asked.attested(agent, EDGE, "")) == (Purpose.AGENT, "", None)
    free = stage.requester(None)
    assert (await stage.attestor().audience(free), await stage.attestor().attested(free, EDGE, "x")) == ("", None)


def test_a_demand_that_cannot_be_met_is_refused_when_it_is_made(stage: Stage) -> None:
    wrong: tuple[tuple[dict[str, str], str], ...] = (
        ({"issuer": "http://edge.example.org", "keys": ""}, "issuer"),
        ({"issuer": ""}, "issuer"),
        ({"keys": "{}"}, "keys"),
        ({"keys": "[]"}, "keys"),
        ({"keys": "no"}, "keys"),
        ({"keys": '{"keys": [{"kty": "oct", "k": "AAAA"}]}'}, "keys"),
        ({"authority": "no"}, "authority"),
        ({"subject": "*"}, "subject"),
    )
    found = [[name for name, _ in flaws(stage.demand(**changed))] for changed, _ in wrong]
    assert found == [[field] for _, field in wrong]
    assert list(flaws(stage.demand())) == []
