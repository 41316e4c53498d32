"""TokenCredentialRequests without a socket: who gets a certificate, and that every failure is one answer at one time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

import pytest

from hub.api.certificates import Lifetimes, Purpose
from hub.api.meta.change import WEBHOOK_AUTHENTICATORS
from hub.extensions.token_login.authenticators import Authenticators
from hub.extensions.token_login.exchange import PAUSE, Exchange, LoginTerms
from hub.issuer import IssuerChain, LocalIssuer
from hub.ports import Issuer
from hub.registry.generic import objects
from machinery import pki
from machinery.apiserver.authn.chain import Identity, TokenAuthenticator
from machinery.apiserver.authn.issuer_keys import JsonDocuments
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.resource import Question
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.layers import Admission
from machinery.errors import ForbiddenError, InvalidError, TooManyRequestsError, UnauthorizedError, UnavailableError
from machinery.identity import CertificateSubject, SerialNumber
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import present
from tests.fakes.inline_store import InlineStore
from tests.fakes.issuer import WordIssuer

GROUP = "login.open-cluster-management.io"
TOKEN = "a-token-of-bob"  # noqa: S105 - of nobody
FAILED = {"message": "authentication failed"}
START = datetime(2026, 1, 1, tzinfo=UTC)
HOOK = {"apiGroup": GROUP, "kind": "WebhookAuthenticator", "name": "hook"}
USER: dict[str, Any] = {"username": "bob", "groups": ["ops"]}
ACCOUNT = Actor("system:serviceaccount:a:b", ("system:serviceaccounts",), "uid-1")


class Webhook(JsonDocuments):
    """Answers what it is told, after it let some time pass."""

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
    clock: ManualClock = field(default_factory=lambda: ManualClock(START))
    admissions: list[str] = field(default_factory=list)
    """What admission was shown, in words."""
    slept: list[float] = field(default_factory=list)
    refusal: Exception | None = None
    names_people: bool = False
    rate: float = 0
    notes: dict[str, str] = field(default_factory=dict)
    issuer: Issuer | None = None

    def __post_init__(self) -> None:
        self.store = InlineStore(self.clock)
        self.webhook = Webhook(self.clock)
        key = pki.generate_key()
        day = timedelta(days=1)
        authority = pki.create_authority(CertificateSubject("ca"), key, pki.random_serial(), START - day, START + 99 * day)
        self.own = LocalIssuer(authority)
        self.make()
        self.authenticators = Authenticators(self.store, Accounts(), lambda _ca: self.webhook, self.clock)

    def make(self, **spec: Any) -> None:
        document = {"metadata": {"name": "hook"}, "spec": {"endpoint": "https://hook", **spec}}
        old = self.store.transact(lambda tx: tx.objects.get(WEBHOOK_AUTHENTICATORS, Key("", "hook")))
        self.store.transact(objects.put, WEBHOOK_AUTHENTICATORS, document, old, "test", generations=True)

    def _admit(self, write: Admission) -> None:
        self.admissions.append(repr(write))
        if isinstance(write.new, dict):  # no validation can change what is done
            write.new["spec"]["authenticator"]["name"] = "changed"
            write.new["spec"] = {"token": "changed", "authenticator": {}}
        if self.refusal is not None:
            raise self.refusal

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def exchange(self) -> Exchange:
        issuer, rates = self.issuer or self.own, Rates(self.rate, 1, self.clock)
        terms = LoginTerms(issuer, self.own, Lifetimes(), rates, names_people=self.names_people, sleep=self._sleep)
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
        credential = (await self.ask(token, **spec))["credential"]
        return pki.parse_certificate(credential["clientCertificateData"].encode())


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_an_issuer_that_fails_is_the_one_failure_and_leaves_no_record(stage: Stage) -> None:
    broken = WordIssuer()
    broken.failure = UnavailableError("hub: no key")
    stage.issuer = broken
    assert await stage.ask() == FAILED
    assert stage.notes["login.muster/failure"] == "hub: no key"
    stage.issuer = chain = IssuerChain(stage.own)
    assert "credential" in await stage.ask()
    assert chain.signed == {(Purpose.LOGIN, "hub"): 1}


CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
UNUSABLE: tuple[tuple[Any, str], ...] = (
    (None, "invalid bearer token"),
    ({}, "invalid bearer token"),
    ({"username": ""}, "invalid bearer token"),
    ({**USER, "uid": "1"}, "UID"),
    ({**USER, "extra": {"scopes": ["all"]}}, "extra"),
    ({**USER, "extra": {CREDENTIAL_ID: ["1"], "more": ["x"]}}, "extra"),
    ({"username": "system:admin"}, "given by the hub"),
    ({"username": "system:open-cluster-management:edge1:abcde"}, "own records"),
    ({**USER, "groups": ["system:open-cluster-management:managed-clusters"]}, "own records"),
)


async def test_a_user_that_the_hub_cannot_accept_is_the_one_failure() -> None:
    for user, why in UNUSABLE:
        stage = Stage()
        stage.webhook.status = {"authenticated": True, "user": user}
        assert await stage.ask() == FAILED, user
        assert why in stage.notes["login.muster/failure"], user
    stage = Stage()
    stage.webhook.status["user"] = {**USER, "extra": {CREDENTIAL_ID: ["JTI=1"]}}
    assert "credential" in await stage.ask(), "the one extra that says nothing of the user is no failure"


MALFORMED: tuple[dict[str, Any], ...] = (
    {"kind": "Status"},
    {"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "status": {"authenticated": True, "user": USER}},
    {"status": {"authenticated": "yes", "user": USER}},
    {"status": {"authenticated": True, "user": {**USER, "groups": "system:masters"}}},
    {"status": {"authenticated": True, "user": {**USER, "username": 5}}},
    {"status": {"authenticated": True, "user": {**USER, "extra": {"a": "b"}}}},
    {"status": {"authenticated": True, "user": "bob"}},
    {"status": None},
)


async def test_a_malformed_answer_of_a_webhook_lets_nobody_in() -> None:
    for answer in MALFORMED:
        stage = Stage()
        stage.webhook.answer = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", **answer}
        assert await stage.ask() == FAILED, answer


async def test_admission_comes_first_sees_no_token_and_changes_nothing(stage: Stage) -> None:
    stage.refusal = ForbiddenError("not today")
    with pytest.raises(ForbiddenError, match="not today"):
        await stage.ask()
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
    assert stage.notes["login.muster/user"] == "bob"
    assert stage.notes["login.muster/groups"] == "ops, system:authenticated"
    assert stage.notes["login.muster/groups-left-out"] == "system:authenticated"
    assert TOKEN not in json.dumps(stage.notes)


async def test_names_that_the_hub_gives_are_signed_by_its_own_ca_alone(stage: Stage) -> None:
    """Another CA's API server would take them for somebody of its own."""
    stage.issuer = WordIssuer()
    account = {"kind": "ServiceAccount"}
    facts = await stage.certificate("account", authenticator=account)
    assert facts.subject == CertificateSubject(ACCOUNT.user, frozenset(ACCOUNT.groups))
    record = present(stage.store.transact(lambda tx: tx.certificates.by_serial(SerialNumber(facts.serial))))
    assert record.credential == "uid-1"
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
        with pytest.raises(error):
            await exchange.answers(question(peer=peer))


async def test_tokens_are_counted_by_outcome_and_kind_and_never_by_what_a_stranger_writes(stage: Stage) -> None:
    exchange = stage.exchange()
    for reference in (HOOK, {"kind": "made-up"}, {"kind": "more"}):
        document = {"metadata": {}, "spec": {"token": TOKEN, "authenticator": reference}}
        await exchange.answers(Question(document, Actor("x"), stage.clock.now()))
    assert exchange.outcomes == {"WebhookAuthenticator given": 1, "unknown failed": 2}
    assert exchange.snapshot()["rates"]["refused"] == 0
