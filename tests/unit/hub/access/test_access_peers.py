"""Certificates, bootstrap tokens and attestations: who is believed, for how long, and at which priority level."""

import asyncio
import json
from collections.abc import Callable, Mapping, Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from hub.access.attestations import AttestationPolicy, Attestor, KnownIssuer, flaws
from hub.access.limits import AccessLimits, level_of
from hub.access.peers import BLIND, KEPT_FOR, TIDY, Peers
from hub.access.revocation_poller import AFRESH, NOTIFICATION_DELAY, POLL, RARELY, RevocationPoller
from hub.access.tokens import BootstrapTokens
from hub.api import bootstrapcredentials as rules
from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord, Phase
from hub.api.certificates import CertificateRecord, Lifetimes, Purpose
from hub.extensions.settings import load
from hub.https_door.callers.authentication import end_with_revocations
from hub.issuer.local import make_authority
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from machinery import pki
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.authn.issuer_keys import APART, JsonDocuments
from machinery.apiserver.storage import Actor
from machinery.errors import DenialCause, InvalidError, TooManyRequestsError, UnauthorizedError, UnavailableError
from machinery.identity import CertificateSubject, ClusterName, CredentialId, HubId, SerialNumber
from machinery.meta.urls import AllowedUrls
from machinery.pki import TokenKeys, generate_key
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, awaited_refusal, check_refusal_of, check_results, present
from tests.fakes.identity import encoded
from tests.fakes.inline_store import Bell, InlineStore, put_certificate
from tests.fakes.registration import EDGE, Newcomer
from tests.fakes.virtual_time import in_virtual_time

TABLES = yaml.safe_load((CASE_FILES / "attestation.yaml").read_text())

AUTHORITY = AuthorityRecord(AuthorityId("a" * 16), b"", Phase.ISSUING, ManualClock().now(), ManualClock().now())
TERMS = CredentialTerms(ClusterName("edge1"), 1, timedelta(hours=1))
OTHER_TOKENS = ("", "guess", "a.b", "eyJhbGciOiJFUzI1NiJ9.e30.c2ln", "0123456789abcdef.SHORT", f"0123456789abcdeX.{'a' * 32}")
ADMIN = Actor("admin", ("system:masters", "system:authenticated"))
USER = Actor("bob", ("system:authenticated",))
AGENT = Actor("system:open-cluster-management:edge:a", ("system:open-cluster-management:managed-clusters",))
TOKEN = Actor("system:bootstrap:abcdef", ("system:bootstrappers", "system:authenticated"))
CREDENTIAL = Actor("system:bootstrap:1234", ("system:bootstrappers:managedcluster",))
ISSUER = "https://edge.example.org"
SUBJECT = "system:serviceaccount:agents:spoke"
HUB = HubId("b2f1d5a0-0000-4000-8000-000000000001")
AUDIENCE = f"urn:uuid:{HUB}"


@dataclass
class Stage:
    clock: ManualClock
    store: InlineStore
    peers: Peers
    certificate: bytes
    serial: SerialNumber
    ends: datetime
    recorded: list[AbstractSet[SerialNumber] | None] = field(default_factory=list)  # the revocations that were reported

    def __post_init__(self) -> None:
        self.peers.listen(self.recorded.append)

    async def revoke(self) -> None:
        await self.store.run(lambda tx: tx.certificates.revoke([self.serial], tx.now, "test"))


@pytest.fixture
async def stage() -> Stage:
    clock = ManualClock()
    store, now, key = InlineStore(clock), clock.now(), pki.generate_key()
    plan = pki.Plan(CertificateSubject("cn"), pki.public_key_of(key), pki.random_serial(), now, now + timedelta(hours=1))
    key_hash = pki.key_hash(plan.public_key)
    record = CertificateRecord(plan.serial, Purpose.AGENT, "cn", (), plan.not_before, plan.not_after, key_hash, now)
    await store.run(lambda tx: tx.certificates.add(record))
    return Stage(clock, store, Peers(store, clock), make_authority(Lifetimes(), now)[0].sign(plan), plan.serial, plan.not_after)


async def test_certificates_of_a_retiring_or_retired_ca_are_refused(stage: Stage) -> None:
    state = stage.store.state
    others = replace(AUTHORITY, id=AuthorityId("b" * 16), created_at=AUTHORITY.created_at - timedelta(days=1))
    for phase, purpose, accepted in (
        *((Phase.ISSUING, Purpose.AGENT, True), (Phase.OUTGOING, Purpose.AGENT, True)),
        *((Phase.RETIRING, Purpose.AGENT, False), (Phase.RETIRING, Purpose.OPERATOR, False)),
        *((Phase.RETIRING, Purpose.RECOVERY, True), (Phase.RETIRED, Purpose.RECOVERY, False)),
    ):
        recorded = replace(state.certificates[stage.serial], purpose=purpose, signed_by=AUTHORITY.signer)
        stage.store.transact(put_certificate, recorded)
        peers = Peers(stage.store, stage.clock, signers=partial(tuple, (others, replace(AUTHORITY, phase=phase))))
        refused = await awaited_refusal(UnauthorizedError, peers.identify(stage.certificate))
        assert (refused is None) == accepted, (phase, purpose)
        assert refused is None or (phase.value in str(refused) and refused.denial_cause is DenialCause.AUTHORITY_RETIRED)


async def test_a_revocation_is_seen_after_one_poll_and_reported_once(stage: Stage) -> None:
    await stage.peers.poll()
    await stage.peers.identify(stage.certificate)
    await stage.revoke()
    assert (await stage.peers.identify(stage.certificate)).user == "cn"
    await stage.peers.poll()
    await check_refusal_of(UnauthorizedError, stage.peers.identify(stage.certificate), match="revoked")
    await stage.peers.poll()
    assert stage.recorded == [{stage.serial}]
    many, revoked = [SerialNumber(each) for each in range(1_000)], stage.store.state.certificates[stage.serial]
    stage.store.transact(lambda tx: [*map(tx.certificates.add, (replace(revoked, serial=each) for each in many))])
    await stage.peers.poll()
    assert stage.recorded[1:] == [{*many}], "a listener may walk through thousands of sessions: one call for all"


async def test_read_that_began_before_a_revocation_lets_nobody_in(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.peers.poll()
    read, begun, opened = stage.store.read, asyncio.Event(), asyncio.Event()

    async def late(query: Any, *args: Any) -> Any:
        found = await read(query, *args)
        begun.set()
        await opened.wait()
        return found

    with monkeypatch.context() as slowed:
        slowed.setattr(stage.store, "read", late)
        asking = asyncio.create_task(stage.peers.identify(stage.certificate))
        await begun.wait()
    await stage.revoke()
    await stage.peers.poll()
    opened.set()
    await check_refusal_of(UnauthorizedError, asking, match="revoked")
    await check_refusal_of(UnauthorizedError, stage.peers.identify(stage.certificate), match="revoked")


async def test_a_revocation_whose_commit_waited_for_hours_is_found_by_a_look_far_back_alone(stage: Stage) -> None:
    """It became visible only now: the commit waited for the standby."""
    await stage.peers.poll()
    stage.clock.advance(timedelta(days=1) - timedelta(minutes=1))
    await stage.peers.poll()
    await stage.store.run(lambda tx: tx.certificates.revoke([stage.serial], tx.now - timedelta(hours=20), "test"))
    for far, expected in ((False, []), (False, []), (True, [{stage.serial}]), (True, [{stage.serial}])):
        await stage.peers.poll(far=far)
        assert stage.recorded == expected


async def test_without_polls_nothing_old_is_believed(stage: Stage) -> None:
    await stage.peers.identify(stage.certificate)
    await stage.revoke()
    stage.clock.advance(timedelta(seconds=3))
    await check_refusal_of(UnauthorizedError, stage.peers.identify(stage.certificate), match="revoked")


async def test_a_certificate_is_its_record_within_its_validity_and_is_forgotten_when_unused(stage: Stage) -> None:
    await check_refusal_of(UnauthorizedError, stage.peers.identify(b"junk"))
    for serial in (pki.random_serial(), stage.serial):
        now = stage.clock.now()
        plan = pki.Plan(CertificateSubject("cn"), pki.public_key_of(pki.generate_key()), serial, now, now + timedelta(days=1))
        unknown = make_authority(Lifetimes(), now)[0].sign(plan)
        await check_refusal_of(UnauthorizedError, stage.peers.identify(unknown), match="not known")
        stage.store.failure = UnavailableError("nobody may ask it")
        await check_refusal_of(UnauthorizedError, stage.peers.identify(unknown), match="not known")
        stage.store.failure = None
    for _ in range(3):
        await stage.peers.identify(stage.certificate)
        stage.clock.advance(KEPT_FOR - timedelta(seconds=1))
        await stage.peers.poll()
        assert len(stage.peers) == 1
    stage.clock.advance(TIDY)
    await stage.peers.poll()
    assert (len(stage.peers), (await stage.peers.identify(stage.certificate)).user) == (0, "cn")
    stage.clock.advance(stage.ends - stage.clock.now() + timedelta(seconds=1))
    await check_refusal_of(UnauthorizedError, stage.peers.identify(stage.certificate), match="valid from")


async def look(stage: Stage) -> None:
    """As the poller looks."""
    try:
        await stage.peers.poll()
    except UnavailableError:
        stage.peers._notify_if_blind()


async def test_a_replica_that_cannot_read_revocations_for_a_minute_says_that_nobody_is_known(stage: Stage) -> None:
    await stage.peers.identify(stage.certificate)
    await look(stage)
    stage.store.failure = UnavailableError("the database is away")
    stage.clock.advance(BLIND)
    await look(stage)
    assert stage.recorded == []
    stage.clock.advance(timedelta(seconds=1))
    await look(stage)
    assert stage.recorded == [None]
    await check_refusal_of(UnavailableError, stage.peers.identify(stage.certificate))
    stage.store.failure = None
    await look(stage)
    assert ((await stage.peers.identify(stage.certificate)).serial, stage.recorded) == (stage.serial, [None])
    stage.store.failure = UnavailableError("the database is away from here")
    stage.clock.advance(BLIND / 2)
    await look(stage)
    stage.store.failure = None
    await stage.revoke()
    stage.clock.advance(BLIND / 4)
    await look(stage)
    assert stage.recorded == [None, {stage.serial}], "what was revoked meanwhile is reported at the first look after"
    assert stage.peers.refusal(stage.serial).denial_cause is DenialCause.CERTIFICATE_REVOKED


def test_whatever_is_open_at_the_https_door_ends_when_nobody_is_known() -> None:
    ended: list[str] = []

    class Noted(Presence):
        def end(self, mark: str) -> None:
            ended.append(mark)

        def end_all(self) -> None:
            ended.append("all")

    listeners: list[Callable[[frozenset[SerialNumber] | None], None]] = []
    end_with_revocations(Noted(ManualClock()), listeners.append, None)
    for serials in (frozenset((SerialNumber(5), SerialNumber(6))), None):
        listeners[0](serials)
    assert (sorted(ended[:-1]), ended[-1]) == (["certificate/5", "certificate/6"], "all")


async def test_other_and_ended_tokens_are_not_accepted(store: InlineStore, clock: ManualClock) -> None:
    tokens, made = BootstrapTokens(store), await store.run(credentials.create_token, TERMS, "ann")
    found = {token: (await tokens.identify(token), rules.token_id(token)) for token in OTHER_TOKENS}
    assert found == dict.fromkeys(OTHER_TOKENS, (None, None)), "they are left to others"
    record = rules.CredentialRecord(CredentialId("0123456789abcdef"), None, None, clock.now(), clock.now(), "ann")
    await store.run(lambda tx: tx.credentials.add(record))
    token = rules.token_of(record.id, "a" * 32)
    await check_refusal_of(UnauthorizedError, tokens.identify(token), match=r"^invalid bearer token$")
    clock.advance(TERMS.lifetime - timedelta(microseconds=1))
    assert await tokens.identify(made[1]) == made[0]
    clock.advance(timedelta(microseconds=1))
    await check_refusal_of(UnauthorizedError, tokens.identify(made[1]), match="expired at 2026-01-01T01:00:00Z")
    for terms in (CredentialTerms(None, 0, timedelta(hours=1)), CredentialTerms(None, 1, timedelta())):
        await check_refusal_of(InvalidError, store.run(credentials.create_token, terms, "ann"))


@dataclass
class CoalescedReads:
    failing: bool = False
    at: list[tuple[float, bool]] = field(default_factory=list)

    async def look(self, *, far: bool) -> None:
        self.at.append((asyncio.get_running_loop().time(), far))
        if self.failing:
            raise UnavailableError("away")

    @property
    def far(self) -> list[float]:
        return [at for at, far in self.at if far]


def looks_of(bell: Bell, looks: CoalescedReads, *, rings: tuple[float, ...] = (), until: float) -> CoalescedReads:
    async def looked() -> None:
        looking = asyncio.create_task(RevocationPoller(bell, "cannot be read").run(looks.look))
        for at in rings:
            await asyncio.sleep(at - asyncio.get_running_loop().time())
            bell.ring()
        await asyncio.sleep(until - asyncio.get_running_loop().time())
        looking.cancel()

    in_virtual_time(looked())
    return looks


def test_looks_are_regular_or_follow_announcements_and_some_are_far_back() -> None:
    for announced, period in ((True, RARELY), (False, POLL)):
        looks = looks_of(Bell(announced=announced), CoalescedReads(), until=20)
        assert abs(len(looks.at) - 20 / period.total_seconds()) <= 2, announced
        assert looks.far == [0.0], "the first look is one far back, the others are not"
    looks = looks_of(Bell(), CoalescedReads(), rings=(7.0,), until=9)
    assert next((at, far) for at, far in looks.at if at >= 7.0) == (7.0, False)
    assert 7.0 < looks.far[1] <= 7.0 + NOTIFICATION_DELAY.total_seconds()
    many = looks_of(Bell(), CoalescedReads(), rings=tuple(6 + number / 100 for number in range(300)), until=10)
    assert 5 <= len([at for at in many.far if at >= 6]) <= 8, "many have one look far back each half second"
    looks = looks_of(Bell(announced=False), CoalescedReads(), until=5 * AFRESH.total_seconds() + 1)
    assert len(looks.far) == 6
    failing = looks_of(Bell(), CoalescedReads(failing=True), until=5)
    assert len(failing.far) == len(failing.at) >= 5 / POLL.total_seconds()


def asked(verb: str, what: str) -> Attributes:
    if what.startswith("/"):
        return Attributes(verb, what)
    plain, _, group = what.partition(".")
    resource, _, part = plain.partition("/")
    return Attributes(verb, f"/apis/{group}/v1/{resource}", group, "v1", resource, part, name="x")


ACTORS = {"admin": ADMIN, "anonymous": ANONYMOUS, "user": USER, "agent": AGENT, "credential": CREDENTIAL, "token": TOKEN}
LEVELS = yaml.safe_load((CASE_FILES / "levels.yaml").read_text())


def test_each_request_has_its_level() -> None:
    check_results(lambda who, what: level_of(ACTORS[who], asked(*what.split())), LEVELS)
    crowds = {name for name, pool in AccessLimits(ManualClock(), load({}, None, {})).pools.items() if pool.level.yields}
    assert crowds == {"registrations", "sessions", "status-reports"}, "and no level of heartbeats or operators waits for these"


async def test_rates_are_limited_per_flow_and_never_for_operators() -> None:
    limits = AccessLimits(ManualClock(), load({"identity_rate": 1, "identity_burst": 1}, None, {}))
    reading, joining = asked("get", "managedclusters.cluster"), asked("create", "managedclusters.cluster")
    for _ in range(5):
        async with limits.seat(ADMIN, reading):
            pass
    async with limits.seat(USER, reading), limits.seat(CREDENTIAL, joining, flow="a" * 253):
        pass
    async with limits.seat(AGENT, joining, flow="edge"):
        pass
    for caller in (USER, AGENT):  # a flow of their choice changes nothing
        with pytest.raises(TooManyRequestsError):
            async with limits.seat(caller, reading, flow="other"):
                pass
    with pytest.raises(TooManyRequestsError):  # of a flow's name only as much counts as a name may have
        async with limits.seat(CREDENTIAL, joining, flow="a" * 1_000_000):
            pass


class Published(JsonDocuments):
    """What an issuer serves; `keys` None: it is unreachable."""

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
class Prover:
    store: InlineStore
    clock: ManualClock
    keys: TokenKeys

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(self.clock.now().timestamp())
        payload = {"iss": ISSUER, "aud": [AUDIENCE], "sub": SUBJECT, "exp": now + 600, "nbf": now, "iat": now, **changed}
        return {name: value for name, value in payload.items() if value is not None}

    def token(self, **changed: Any) -> str:
        return self.keys.sign(self.claims(**changed))

    def demand(self, **changed: Any) -> rules.AttestationRequirement:
        return rules.AttestationRequirement(**{"issuer": ISSUER, "keys": json.dumps(self.keys.key_set()), **changed})

    def requester(self, demanded: rules.AttestationRequirement | None) -> CertificateRecord:
        return Newcomer(self.store).bootstrap(bounds=rules.CredentialBounds(attestation=demanded))

    def attestor(self, published: JsonDocuments | None = None, policy: AttestationPolicy | None = None) -> Attestor:
        policy = policy or AttestationPolicy(allowed=AllowedUrls((ISSUER,)))
        return Attestor(self.store, HUB, lambda _authority: published or Published(None), self.clock, policy)

    async def refused(self, token: str, record: CertificateRecord | None = None) -> rules.AttestationError | None:
        """By the issuer's own keys, unless the record demands something else."""
        asked = self.attestor().attested(record or self.requester(self.demand()), EDGE, token)
        return await awaited_refusal(rules.AttestationError, asked)


@pytest.fixture
def prover(store: InlineStore, clock: ManualClock) -> Prover:
    return Prover(store, clock, TokenKeys([generate_key()]))


async def test_a_token_of_the_issuer_for_this_hub_proves_the_cluster(prover: Prover) -> None:
    record = prover.requester(prover.demand())
    proven = await prover.attestor().attested(record, EDGE, prover.token())
    (key,) = prover.keys.key_set()["keys"]
    assert proven == rules.Attested(ISSUER, SUBJECT, key["kid"], frozenset((key["kid"],)))
    assert await prover.attestor().audience(record) == AUDIENCE
    any_of_agents = prover.requester(prover.demand(subject="system:serviceaccount:agents:*"))
    assert await prover.refused(prover.token(), any_of_agents) is None
    assert await prover.refused(prover.token(sub="system:serviceaccount:default:default"), any_of_agents)


async def test_a_token_with_wrong_claims_proves_nothing_and_the_reason_is_not_for_its_sender(prover: Prover) -> None:
    for changed, why in TABLES["claims"]:
        refused = await prover.refused(prover.token(**changed))
        assert refused is not None, changed
        assert (why in refused.why, refused.message) == (True, rules.FAILED), refused.why


async def test_a_token_ends_to_the_second_and_clocks_may_be_off_by_a_minute(prover: Prover) -> None:
    record = prover.requester(prover.demand())
    token = prover.token(nbf=int((prover.clock.now() + timedelta(seconds=60)).timestamp()))
    assert await prover.refused(token, record) is None
    prover.clock.advance(timedelta(minutes=10) - timedelta(seconds=1))
    assert await prover.refused(token, record) is None
    prover.clock.advance(timedelta(seconds=1))
    assert await prover.refused(token, record)


async def test_a_token_that_the_issuer_has_not_signed_proves_nothing(prover: Prover) -> None:
    """Their author has the issuer's public keys and none of its private ones."""
    body, key_set, signed = (encoded(prover.claims()), prover.keys.key_set(), prover.token().split("."))
    hmac_signed = f"{encoded({'alg': 'HS256', 'kid': key_set['keys'][0]['kid']})}.{body}"
    mac = hmac.HMAC(json.dumps(key_set).encode(), hashes.SHA256())
    mac.update(hmac_signed.encode())
    forged = {
        "algorithm none": f"{encoded({'alg': 'none'})}.{body}.",
        "no token": "",
        "no signature": f"{signed[0]}.{signed[1]}",
        "public key as a secret": f"{hmac_signed}.{encoded(mac.finalize())}",
        "another key": TokenKeys([generate_key()]).sign(prover.claims()),
        "other claims": f"{signed[0]}.{encoded(prover.claims(sub='system:serviceaccount:agents:other'))}.{signed[2]}",
    }
    assert {kind: str(await prover.refused(token)) for kind, token in forged.items()} == dict.fromkeys(forged, rules.FAILED)


async def test_an_rsa_key_of_the_issuer_signs_by_rs256_alone(prover: Prover) -> None:
    key = rsa.generate_private_key(65537, 2048)
    numbers = key.public_key().public_numbers()
    jwk = {"kty": "RSA", "n": encoded(numbers.n.to_bytes(256)), "e": encoded(numbers.e.to_bytes(3)), "kid": "r"}
    record = prover.requester(prover.demand(keys=json.dumps({"keys": [jwk]})))
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    signatures: tuple[tuple[str, padding.AsymmetricPadding], ...] = (("RS256", padding.PKCS1v15()), ("PS256", pss))
    text = []
    for algorithm, how in signatures:
        signed = f"{encoded({'alg': algorithm, 'kid': 'r'})}.{encoded(prover.claims())}"
        text.append(await prover.refused(f"{signed}.{encoded(key.sign(signed.encode(), how, hashes.SHA256()))}", record))
    assert text[0] is None
    assert text[1] is not None
    assert "with an accepted algorithm" in text[1].why


async def test_keys_of_discovery_are_kept_and_follow_a_rotation(prover: Prover) -> None:
    published = Published(prover.keys)
    asked, record = prover.attestor(published), prover.requester(rules.AttestationRequirement(ISSUER))
    for _ in range(5):
        assert await asked.attested(record, EDGE, prover.token())
    assert published.asked == 2, "the configuration and the keys, once"
    published.keys = TokenKeys([generate_key()])
    prover.clock.advance(APART)
    assert await asked.attested(record, EDGE, published.keys.sign(prover.claims()))
    await check_refusal_of(rules.AttestationError, asked.attested(record, EDGE, prover.token()))
    published.keys = None
    caught = present(
        await awaited_refusal(rules.AttestationError, prover.attestor(published).attested(record, EDGE, prover.token()))
    )
    assert "no route to host" in caught.why


async def test_keys_are_fetched_from_allowed_urls_alone(prover: Prover) -> None:
    """A credential's issuer needs an entry, an issuer of the hub's own list does not; neither sends the hub elsewhere."""
    named, keys_host = prover.requester(rules.AttestationRequirement(ISSUER)), "https://keys.example.net"
    listed = AttestationPolicy(required=True, issuers=lambda: (KnownIssuer(rules.AttestationRequirement(ISSUER)),))
    both = AttestationPolicy(allowed=AllowedUrls((ISSUER, keys_host)))
    rows = (
        (named, AttestationPolicy(), ISSUER, "does not list it", 0),
        (prover.requester(prover.demand()), AttestationPolicy(), ISSUER, "", 0),
        (named, AttestationPolicy(allowed=AllowedUrls((ISSUER,))), keys_host, "is at another host", 1),
        *((named, both, keys_host, "", 2), (prover.requester(None), listed, ISSUER, "", 2)),
        (prover.requester(None), listed, keys_host, "is at another host", 1),
    )
    for record, policy, host, why, asked in rows:
        published = Published(prover.keys, host)
        refused = await awaited_refusal(
            rules.AttestationError, prover.attestor(published, policy).attested(record, EDGE, prover.token())
        )
        assert (why in (refused.why if refused else ""), bool(refused), published.asked) == (True, bool(why), asked), (
            host,
            policy,
        )


def test_allow_list_has_whole_urls_hosts_and_subdomains() -> None:
    assert [
        (entry, url) for entry, urls, so in TABLES["urls"] for url in urls.split() if AllowedUrls((entry,)).allow(url) != so
    ] == []
    assert not AllowedUrls().allow(ISSUER)


async def test_a_token_is_demanded_of_credentials_by_bounds_or_policy_and_never_of_agents(prover: Prover) -> None:
    agent = Newcomer(prover.store).registered()
    asked = prover.attestor(policy=AttestationPolicy(required=True))
    assert (agent.purpose, await asked.audience(agent), await asked.attested(agent, EDGE, "")) == (Purpose.AGENT, "", None)
    free = prover.requester(None)
    assert (await prover.attestor().audience(free), await prover.attestor().attested(free, EDGE, "x")) == ("", None)


def test_a_demand_that_cannot_be_met_is_refused_when_it_is_made(prover: Prover) -> None:
    wrong = TABLES["demands"]
    assert [[name for name, _ in flaws(prover.demand(**changed))] for changed, _ in wrong] == [[field] for _, field in wrong]
    assert list(flaws(prover.demand())) == []
