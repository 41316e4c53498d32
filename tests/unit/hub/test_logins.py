"""Logins: authenticators, names from claims, ServiceAccounts, CredentialIssuers, and TokenCredentialRequests."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from hub.api import credentialissuers as rules, logins as login_rules
from hub.api.certificates import Lifetimes, Purpose
from hub.api.certificatesigningrequests import Requester
from hub.api.credentialissuers import Strategy, merge
from hub.api.logins import (
    JWT,
    KINDS,
    WEBHOOK,
    AuthenticatedUser,
    ClaimRules,
    Login,
    admit_user,
    read_authenticator,
    user_of_claims,
)
from hub.api.meta import document as doc
from hub.api.meta.change import CREDENTIAL_ISSUERS, JWT_AUTHENTICATORS, SERVICE_ACCOUNTS, WEBHOOK_AUTHENTICATORS
from hub.controllers.certificates.authenticators import (
    READY_CHECK_INTERVAL,
    UNREADY_CHECK_INTERVAL,
    AuthenticatorStatus,
    examine,
)
from hub.extensions.token_login.authenticators import Authenticators
from hub.extensions.token_login.exchange import PAUSE, Exchange, LoginTerms
from hub.issuer.local import LocalIssuer, make_authority
from hub.ports import Transaction
from hub.ports.identities import Issuer
from hub.registry import authenticators as logins, core as accounts, revocations as revocation
from hub.registry.generic import objects
from hub.registry.kinds import WRITE_PATHS
from machinery import pki
from machinery.apiserver.authn.chain import Identity, TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import JsonDocuments
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.resource import Question
from machinery.apiserver.storage import Actor, Admission
from machinery.errors import ForbiddenError, InvalidError, TooManyRequestsError, UnauthorizedError, UnavailableError
from machinery.identity import CLUSTER_LABEL, OPERATOR_GROUP, CertificateSubject, ClusterName, SerialNumber
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_refusal_of, check_refusals, check_results, present, refusal
from tests.fakes.authority import WordIssuer, rotating_issuer
from tests.fakes.identity import SigningKey
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store

TABLES = yaml.safe_load((CASE_FILES / "logins.yaml").read_text())

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = int(NOW.timestamp())
RULES = ClaimRules("https://i", "muster")
GOOD: dict[str, Any] = {"iss": "https://i", "aud": "muster", "sub": "ann", "exp": AT + 1}
PATH = WRITE_PATHS[SERVICE_ACCOUNTS]
WHO = Requester("admin", ())
ISSUER = "https://issuer.example.org"
SPECS: dict[str, dict[str, Any]] = {JWT: {"issuer": ISSUER, "audience": "muster"}, WEBHOOK: {"endpoint": "https://hook"}}
TYPES = {
    JWT: ["TLSConfigurationValid", "IssuerURLValid", "DiscoveryURLValid", "JWKSFetchValid", "Ready"],
    WEBHOOK: ["TLSConfigurationValid", "EndpointURLValid", "WebhookConnectionValid", "Ready"],
}
GROUP = "login.open-cluster-management.io"
TOKEN = "a-token-of-bob"  # noqa: S105 - of nobody
FAILED = {"message": "authentication failed"}
HOOK = {"apiGroup": GROUP, "kind": "WebhookAuthenticator", "name": "hook"}
USER: dict[str, Any] = {"username": "bob", "groups": ["ops"]}
ACCOUNT = Actor("system:serviceaccount:a:b", ("system:serviceaccounts",), "uid-1")


def named(rules: ClaimRules = RULES, **claims: Any) -> AuthenticatedUser:
    return user_of_claims({**GOOD, **claims}, rules, NOW)


def test_user_and_groups_come_from_the_claims_of_a_token_that_has_what_it_needs() -> None:
    assert (named(groups=["a", "", "b"]), named(groups="a")) == (
        AuthenticatedUser("ann", ("a", "b")),
        AuthenticatedUser("ann", ("a",)),
    )
    rules = ClaimRules("https://i", "muster", "name", "corp:", "roles", "corp-")
    assert named(rules, name="Ann Lee", roles=["x"], groups=["y"]) == AuthenticatedUser("corp:Ann Lee", ("corp-x",))
    assert (named(aud=["others", "muster"]), named(nbf=AT + 60)) == (AuthenticatedUser("ann"), AuthenticatedUser("ann"))
    check_refusals(UnauthorizedError, lambda claims: named(**claims), TABLES["claims"])
    later = user_of_claims({**GOOD, "exp": AT + 600, "nbf": AT + 61}, RULES, NOW + timedelta(seconds=1))
    assert later.user == "ann", "a token may begin a minute in the future"
    rules = ClaimRules("https://i", "muster", required={"tenant": "one"})
    assert named(rules, tenant="one").user == "ann"
    wrong: tuple[dict[str, Any], ...] = ({}, {"tenant": "two"}, {"tenant": ["one"]}, {"tenant": 1})
    check_refusals(UnauthorizedError, lambda claims: named(rules, **claims), [(claims, "tenant") for claims in wrong])
    mail = ClaimRules("https://i", "muster", username="email")
    assert (named(mail, email="a@x").user, named(mail, email="a@x", email_verified=True).user) == ("a@x", "a@x")
    unverified = [(verified, "not verified") for verified in (False, "true", None, 1)]
    check_refusals(UnauthorizedError, lambda verified: named(mail, email="a@x", email_verified=verified), unverified)


def test_reserved_and_unfit_names_are_refused_or_left_out() -> None:
    rows = (
        *((None, "names no user"), (AuthenticatedUser(""), "empty"), (AuthenticatedUser("ann", uid="1"), "UID")),
        (AuthenticatedUser("ann", extra={"scopes": ("all",)}), "extra"),
        (AuthenticatedUser("system:admin"), "reserved for the hub"),
        (AuthenticatedUser("system:open-cluster-management:c:a"), "reserved for the hub"),
        *((AuthenticatedUser("ann\n"), "unprintable"), (AuthenticatedUser(" ann"), "space")),
        *((AuthenticatedUser("\ud800"), "unprintable"), (AuthenticatedUser("a" * (login_rules.MAX_NAME + 1)), "longer")),
        (AuthenticatedUser("ann", ("b\x00",)), "group"),
        (AuthenticatedUser("ann", ("g",) * (login_rules.MAX_GROUPS + 1)), "groups"),
    )
    check_refusals(UnauthorizedError, admit_user, rows)
    login = admit_user(AuthenticatedUser("ann", ("ops", "system:masters", "system:authenticated", "ops")))
    assert (login.groups, login.left_out) == (("ops",), ("system:masters", "system:authenticated"))
    assert not login.is_our_own_name
    operator = admit_user(AuthenticatedUser("ann", ("ops",)), ("chiefs", "ops"))
    assert operator.groups == ("ops", OPERATOR_GROUP)
    assert operator.is_our_own_name
    assert admit_user(AuthenticatedUser("ann", ("system:masters",)), ("system:masters",)).groups == ()
    login = admit_user(AuthenticatedUser("system:serviceaccount:a:b", ("system:serviceaccounts",), account="uid"))
    assert (login.user, login.groups, login.account) == ("system:serviceaccount:a:b", ("system:serviceaccounts",), "uid")
    assert login.is_our_own_name, "a ServiceAccount of this hub"


WORDS = st.sampled_from(
    ["system:masters", "system:open-cluster-management:managed-clusters", "system:x", "ops", "", "SYSTEM:x", "é"]
)
NAMES = st.one_of(WORDS, st.text(max_size=20), st.text(max_size=20).map(lambda text: f"system:{text}"))
PREFIXES = st.sampled_from(["", "corp:", "sys"])
SHOWN = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
GROUPS = st.one_of(WORDS, SHOWN, SHOWN.map(lambda text: f"system:{text}"), SHOWN.map(lambda text: f"tem:{text}"))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


@given(
    user=NAMES,
    groups=st.lists(GROUPS, max_size=5),
    prefixes=st.tuples(PREFIXES, PREFIXES),
    operators=st.lists(GROUPS, max_size=2),
)
def test_no_token_says_a_reserved_name(user: str, groups: list[str], prefixes: tuple[str, str], operators: list[str]) -> None:
    rules = ClaimRules("https://i", "muster", username_prefix=prefixes[0], groups_prefix=prefixes[1])
    if refusal(UnauthorizedError, admit_user, named(rules, sub=user or "ann")):
        user = "ann"
    login = admit_user(named(rules, sub=user or "ann", groups=groups), operators)
    assert not login.user.startswith("system:")
    reserved = [group for group in login.groups if group.startswith("system:")]
    mapped = {prefixes[1] + group for group in groups} & {group for group in operators if not group.startswith("system:")}
    assert reserved == ([OPERATOR_GROUP] if mapped - {""} else [])
    assert set(login.groups) - {OPERATOR_GROUP} <= {prefixes[1] + group for group in groups}
    for name in (login.user, *login.groups):
        assert name
        assert name.isprintable()
        assert name.encode()


@given(claims=st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "groups", "email", "x"]), ANYTHING))
def test_whatever_a_token_says_it_is_refused_in_words_or_names_somebody(claims: dict[str, Any]) -> None:
    try:
        user = admit_user(named(**claims)).user
    except UnauthorizedError as error:
        user = error.message
    assert user


def test_an_authenticator_is_read_with_its_defaults() -> None:
    spec = {"issuer": "https://i", "audience": "muster"}
    document = {"metadata": {"name": "corp", "uid": "u", "generation": 2}, "spec": spec}
    found = read_authenticator(JWT, document)
    assert (found.claims, found.mark, found.authorities, found.address) == (RULES, ("u", 2), b"", "https://i")
    with pytest.raises(InvalidError, match="base64"):
        read_authenticator(JWT, {**document, "spec": {**spec, "tls": {"certificateAuthorityData": "?"}}})


def account(tx: Transaction, /, name: str, **metadata: Any) -> None:
    fields = {"name": name, "namespace": "edge1", "labels": {CLUSTER_LABEL: "edge1"}, **metadata}
    PATH.put(tx, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": fields}, None, WHO)


def stored(tx: Transaction, name: str) -> StoredObject:
    return present(tx.objects.get(SERVICE_ACCOUNTS, Key("edge1", name)))


@pytest.fixture
def store(clock: ManualClock) -> InlineStore:
    made = fresh_store(clock)
    for name in ("robot", "other"):
        made.transact(account, name)
    return made


def login(store: InlineStore, name: str) -> SerialNumber:
    def given(tx: Transaction) -> SerialNumber:
        who = Login(f"system:serviceaccount:edge1:{name}", account=stored(tx, name).uid)
        return logins.admit(tx, who, b"key", WordIssuer(), Lifetimes()).serial

    return store.transact(given)


def reason(store: InlineStore, serial: SerialNumber) -> str | None:
    return present(store.transact(lambda tx: tx.certificates.by_serial(serial))).revoked_reason


def test_logins_of_an_account_end_with_it_and_those_of_another_stay(store: InlineStore, clock: ManualClock) -> None:
    removals: dict[str, Callable[[Transaction, StoredObject], Any]] = {
        "deleted": lambda tx, old: PATH.remove(tx, old, WHO),
        "its add-on ends": lambda tx, old: accounts.remove_account(tx, old, "hub"),
        "its cluster is revoked": lambda tx, _old: revocation._end_accounts(tx, ClusterName("edge1"), "hub"),
    }
    other = login(store, "other")
    for how, remove in removals.items():
        first, second = login(store, "robot"), login(store, "robot")
        assert reason(store, other) is None
        store.transact(lambda tx, remove: remove(tx, stored(tx, "robot")), remove)
        assert [reason(store, serial) for serial in (first, second)] == [accounts.ACCOUNT_DELETED] * 2, how
        store.transact(account, "robot")
    store.transact(account, "held", finalizers=["example.org/wait"])
    serial = login(store, "held")
    store.transact(lambda tx: PATH.remove(tx, stored(tx, "held"), WHO))
    assert store.transact(lambda tx: stored(tx, "held")) is not None
    assert reason(store, serial) == accounts.ACCOUNT_DELETED, "an account that only waits for its finalizers"
    serial = login(store, "robot")
    clock.advance(Lifetimes().login + timedelta(seconds=1))
    store.transact(lambda tx: PATH.remove(tx, stored(tx, "robot"), WHO))
    assert reason(store, serial) is None, "a login that has expired is not revoked"


def strategy_entry(kind: str = "KubeClusterSigningCertificate", time: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": "Success", "reason": "r", "message": "m", "lastUpdateTime": time, **more}


def test_strategy_replaces_its_own_where_more_than_the_time_differs_and_all_are_in_one_order() -> None:
    others = [strategy_entry("Zebra"), strategy_entry("ImpersonationProxy")]
    rows: tuple[tuple[Any, Any, Any], ...] = (
        ([], strategy_entry(), [strategy_entry()]),
        ([strategy_entry(message="old")], strategy_entry(time="t2"), [strategy_entry(time="t2")]),
        ([strategy_entry()], strategy_entry(time="t2"), [strategy_entry()]),
        (others, strategy_entry(), [strategy_entry(), strategy_entry("ImpersonationProxy"), strategy_entry("Zebra")]),
    )
    check_results(merge, rows)
    kinds = ("KubeClusterSigningCertificate", "ImpersonationProxy", "Aardvark", "Bee", "Zebra")
    strategies, random = [strategy_entry(kind) for kind in kinds], Random(7)
    for _ in range(200):
        new, *others = random.sample(strategies, len(strategies))
        assert merge(others, new) == strategies


async def test_the_issuer_is_made_and_then_written_only_where_it_is_news(store: InlineStore, clock: ManualClock) -> None:
    fetched = Strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "done", "https://k", "Q0E=", "kubernetes/x")

    async def tell(strategy: Strategy) -> bool:
        return await store.run(logins.record_strategy, strategy, "hub.example.com/v1alpha1", "tester")

    assert await tell(fetched) is True
    clock.advance(timedelta(minutes=3))
    assert await tell(fetched) is False, "the time does not move by itself"
    assert await tell(Strategy("KubeClusterSigningCertificate", "Error", "CouldNotFetchKey", "no")) is True
    stored = present(await store.read(lambda tx: tx.objects.get(CREDENTIAL_ISSUERS, Key("", rules.NAME))))
    [strategy] = stored.document["status"]["strategies"]
    assert (strategy["status"], strategy["reason"], "frontend" in strategy) == ("Error", "CouldNotFetchKey", False)
    assert fetched.as_document(clock.now())["frontend"] == {
        "type": "TokenCredentialRequestAPI",
        "tokenCredentialRequestInfo": {"server": "https://k", "certificateAuthorityData": "Q0E="},
    }


class Elsewhere(JsonDocuments):
    def __init__(self) -> None:
        self.away = False
        self.keys: list[dict[str, Any]] = [SigningKey().jwk]
        self.issuer = ISSUER

    def connect(self, authorities: bytes) -> JsonDocuments:
        if authorities == b"bad":
            raise InvalidError("the trusted certificates cannot be read: expected PEM")
        return self

    async def get(self, url: str) -> Mapping[str, Any]:
        await self.reach(url)
        return {"keys": self.keys} if url.endswith("/keys") else {"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys"}

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError(url, body)

    async def reach(self, url: str) -> None:
        if self.away:
            raise UnavailableError(f"{url} cannot be reached")


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


async def found(kind: str, elsewhere: Elsewhere, **spec: Any) -> dict[str, str]:
    document = {"metadata": {"name": "corp", "generation": 1}, "spec": {**SPECS[kind], **spec}}
    conditions = await examine(kind, document, elsewhere.connect)
    assert [each.type for each in conditions] == TYPES[kind]
    return {each.type: f"{each.status} {each.reason}" for each in conditions}


async def test_working_authenticator_is_ready_and_unreadable_cas_end_its_examination(elsewhere: Elsewhere) -> None:
    for kind in (JWT, WEBHOOK):
        assert set((await found(kind, elsewhere)).values()) == {"True Success"}
        for data in (b64encode(b"bad").decode(), "?"):
            conditions = await found(kind, elsewhere, tls={"certificateAuthorityData": data})
            assert conditions.pop("TLSConfigurationValid") == "False InvalidTLSConfig"
            assert (conditions.pop("Ready"), set(conditions.values())) == ("False NotReady", {"Unknown UnableToValidate"})


async def test_each_thing_that_is_wrong_has_its_condition(elsewhere: Elsewhere) -> None:
    assert (await found(JWT, elsewhere, issuer="http://x"))["IssuerURLValid"] == "False InvalidIssuerURL"
    assert (await found(WEBHOOK, elsewhere, endpoint="x"))["EndpointURLValid"] == "False InvalidEndpointURL"
    elsewhere.keys = []
    assert (await found(JWT, elsewhere))["JWKSFetchValid"] == "False InvalidCouldNotFetchJWKS"
    elsewhere.issuer = "https://other"
    assert (await found(JWT, elsewhere))["DiscoveryURLValid"] == "False InvalidDiscovery"
    elsewhere.away = True
    assert (await found(JWT, elsewhere))["DiscoveryURLValid"] == "False InvalidDiscovery"
    assert (await found(WEBHOOK, elsewhere))["WebhookConnectionValid"] == "False UnableToDialServer"


def status(store: InlineStore) -> Mapping[str, Any]:
    stored = present(store.transact(lambda tx: tx.objects.get(JWT_AUTHENTICATORS, Key("", "corp"))))
    return doc.mapping(stored.document, "status")


async def test_the_status_follows_what_is_found_and_is_written_when_it_is_news(elsewhere: Elsewhere) -> None:
    store = InlineStore(ManualClock())
    controller = AuthenticatorStatus(store, lambda kind, document: examine(kind, document, elsewhere.connect))
    document = {"metadata": {"name": "corp"}, "spec": SPECS[JWT]}
    store.transact(objects.put, JWT_AUTHENTICATORS, document, None, "test", generations=True)
    key = (KINDS[JWT], "corp")
    assert await controller.reconcile(key) == READY_CHECK_INTERVAL
    assert (status(store)["phase"], status(store)["observedGeneration"]) == ("Ready", 1)
    revision = store.transact(lambda tx: tx.changes.newest())
    await controller.reconcile(key)
    assert store.transact(lambda tx: tx.changes.newest()) == revision
    elsewhere.away = True
    assert (await controller.reconcile(key), status(store)["phase"]) == (UNREADY_CHECK_INTERVAL, "Error")
    assert await controller.reconcile((KINDS[JWT], "gone")) is None


def test_what_the_controller_writes_itself_is_no_reason_to_look_again() -> None:
    wanted = AuthenticatorStatus(InlineStore(ManualClock()), lambda *_told: None).wanted[KINDS[JWT]]  # type: ignore[arg-type]
    first = {"metadata": {"name": "corp", "uid": "u", "generation": 1}}
    assert [wanted(first), wanted({**first, "status": {"phase": "Ready"}})] == [True, False]
    assert wanted({"metadata": {"name": "corp", "uid": "u", "generation": 2}})
    assert wanted({"metadata": {"name": "corp", "uid": "v", "generation": 2}})


class Webhook(JsonDocuments):
    """Returns the set answer after some time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.takes = timedelta()
        self.status: dict[str, Any] = {"authenticated": True, "user": USER}
        self.answer: dict[str, Any] | None = None
        self.asked: list[Mapping[str, Any]] = []

    async def get(self, url: str) -> Mapping[str, Any]:
        raise NotImplementedError(url)

    async def reach(self, url: str) -> None:
        raise NotImplementedError(url)

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert url == "https://hook"
        self.clock.advance(self.takes)
        self.asked.append(body)
        return self.answer or {"apiVersion": body["apiVersion"], "kind": body["kind"], "status": self.status}


class Accounts(TokenAuthenticator):
    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        assert not audiences
        if token.startswith("bad"):
            raise UnauthorizedError("service account token has expired")
        return Identity(ACCOUNT) if token.startswith("account") else None


@dataclass
class Stage:
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    admissions: list[str] = field(default_factory=list)  # what admission was shown, in words
    slept: list[float] = field(default_factory=list)
    refusal: Exception | None = None
    names_people: bool = False
    rate: float = 0
    notes: dict[str, str] = field(default_factory=dict)
    issuer: Issuer | None = None

    def __post_init__(self) -> None:
        self.store = InlineStore(self.clock)
        self.webhook = Webhook(self.clock)
        self.own = LocalIssuer(make_authority(Lifetimes(), NOW)[0])
        self.make()
        self.authenticators = Authenticators(self.store, Accounts(), lambda _ca: self.webhook, self.clock)

    def make(self, **spec: Any) -> None:
        document = {"metadata": {"name": "hook"}, "spec": {"endpoint": "https://hook", **spec}}
        old = self.store.transact(lambda tx: tx.objects.get(WEBHOOK_AUTHENTICATORS, Key("", "hook")))
        self.store.transact(objects.put, WEBHOOK_AUTHENTICATORS, document, old, "test", generations=True)

    def _admit(self, write: Admission) -> Document:
        self.admissions.append(repr(write))
        if isinstance(write.new, dict):  # no validation can change what is done
            write.new["spec"]["authenticator"]["name"] = "changed"
            write.new["spec"] = {"token": "changed", "authenticator": {}}
        if self.refusal is not None:
            raise self.refusal
        return write.new

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def exchange(self) -> Exchange:
        issuer, rates = self.issuer or self.own, Rates(self.rate, 1, self.clock)
        terms = LoginTerms(issuer, lambda: self.own, Lifetimes(), rates, names_people=self.names_people, sleep=self._sleep)
        suffix = GROUP.removeprefix("login.")
        return Exchange(self.store, self.authenticators, self._admit, terms, clock=self.clock, group_suffix=suffix)

    async def ask(self, token: str = TOKEN, **spec: Any) -> dict[str, Any]:
        document = {"metadata": {}, "spec": {"token": token, "authenticator": HOOK, **spec}}
        exchange, self.notes = self.exchange(), {}
        question = Question(document, Actor("x"), self.clock.now(), peer="10.0.0.1", annotations=self.notes)
        answer = await exchange.answers(question)
        assert token not in json.dumps(answer)
        assert answer["spec"] == {"authenticator": {}}
        return dict(answer["status"])

    async def certificate(self, token: str = TOKEN, **spec: Any) -> pki.CertificateFacts:
        return pki.parse_certificate((await self.ask(token, **spec))["credential"]["clientCertificateData"].encode())


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_an_issuer_that_fails_is_the_one_failure_and_leaves_no_record(stage: Stage) -> None:
    broken = WordIssuer()
    broken.failure = UnavailableError("hub: no key")
    stage.issuer = broken
    assert (await stage.ask(), stage.notes["login.muster/failure"]) == (FAILED, "hub: no key")
    stage.issuer = issuer = rotating_issuer(stage.own)
    assert "credential" in await stage.ask()
    assert issuer.signed == {(Purpose.LOGIN, "hub"): 1}


CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


async def test_a_user_that_the_hub_cannot_accept_is_the_one_failure() -> None:
    for user, why in TABLES["unusable"]:
        stage = Stage()
        stage.webhook.status = {"authenticated": True, "user": user}
        assert await stage.ask() == FAILED, user
        assert why in stage.notes["login.muster/failure"], user
    stage = Stage()
    stage.webhook.status["user"] = {**USER, "extra": {CREDENTIAL_ID: ["JTI=1"]}}
    assert "credential" in await stage.ask(), "the one extra that says nothing of the user is no failure"


async def test_a_malformed_answer_of_a_webhook_lets_nobody_in() -> None:
    for answer in TABLES["malformed"]:
        stage = Stage()
        stage.webhook.answer = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", **answer}
        assert await stage.ask() == FAILED, answer


async def test_admission_comes_first_sees_no_token_and_changes_nothing(stage: Stage) -> None:
    stage.refusal = ForbiddenError("not today")
    await check_refusal_of(ForbiddenError, stage.ask(), match="not today")
    assert stage.webhook.asked == []
    stage.refusal = None
    assert "credential" in await stage.ask()
    assert stage.webhook.asked[0]["spec"] == {"token": TOKEN}
    assert TOKEN not in repr(stage.admissions)
    for seen in stage.admissions:
        assert "Actor(user='x'" in seen
        assert "'name': 'hook'" in seen


async def test_failures_are_answered_at_the_end_of_the_span_in_which_they_are_known(stage: Stage) -> None:
    stage.webhook.status = {"authenticated": False}
    span = PAUSE.total_seconds()
    for takes, left in ((0.0, span), (0.1, span - 0.1), (0.3, 2 * span - 0.3)):
        stage.webhook.takes = timedelta(seconds=takes)
        assert await stage.ask(f"token-{takes}") == FAILED
        assert stage.slept.pop() == pytest.approx(left)


async def test_the_hash_is_noted_and_people_are_named_where_that_was_chosen(stage: Stage) -> None:
    stage.webhook.status["user"] = {"username": "bob", "groups": ["ops", "system:authenticated"]}
    await stage.ask()
    assert stage.notes["authentication.kubernetes.io/token-hash"] == f"SHA256={sha256(TOKEN.encode()).hexdigest()}"
    assert "bob" not in json.dumps(stage.notes)
    stage.names_people = True
    await stage.ask()
    assert (stage.notes["login.muster/user"], stage.notes["login.muster/groups"]) == ("bob", "ops, system:authenticated")
    assert stage.notes["login.muster/groups-left-out"] == "system:authenticated"
    assert TOKEN not in json.dumps(stage.notes)


async def test_names_that_the_hub_gives_are_signed_by_its_own_ca_alone(stage: Stage) -> None:
    """Another CA's API server would take them for somebody of its own."""
    stage.issuer = WordIssuer()
    account = {"kind": "ServiceAccount"}
    facts = await stage.certificate("account", authenticator=account)
    assert facts.subject == CertificateSubject(ACCOUNT.user, frozenset(ACCOUNT.groups))
    assert present(stage.store.transact(lambda tx: tx.certificates.by_serial(SerialNumber(facts.serial)))).credential == "uid-1"
    for token in ("bad", "other"):
        assert await stage.ask(token, authenticator=account) == FAILED
    stage.make(operatorGroups=["ops"])
    assert (await stage.certificate()).subject.organizations == {"ops", "system:masters"}
    assert stage.issuer.issued == []


async def test_one_address_asks_only_so_fast(stage: Stage) -> None:
    stage.rate = 1
    exchange = stage.exchange()
    question = partial(Question, {"metadata": {}, "spec": {}}, Actor("x"), stage.clock.now())
    for peer, error in (("10.0.0.1", InvalidError), ("10.0.0.1", TooManyRequestsError), ("10.0.0.2", InvalidError)):
        await check_refusal_of(error, exchange.answers(question(peer=peer)))


async def test_tokens_are_counted_by_outcome_and_kind_and_never_by_what_a_stranger_writes(stage: Stage) -> None:
    exchange = stage.exchange()
    for reference in (HOOK, {"kind": "made-up"}, {"kind": "more"}):
        document = {"metadata": {}, "spec": {"token": TOKEN, "authenticator": reference}}
        await exchange.answers(Question(document, Actor("x"), stage.clock.now()))
    assert exchange.outcomes == {"WebhookAuthenticator given": 1, "unknown failed": 2}
    assert exchange.snapshot()["rates"]["refused"] == 0
