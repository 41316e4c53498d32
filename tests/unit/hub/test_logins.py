"""Logins: authenticators and their status, names from claims, ServiceAccounts, strategies of the CredentialIssuer."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.api import credentialissuers as rules
from hub.api.certificates import Lifetimes
from hub.api.certificatesigningrequests.request import Requester
from hub.api.credentialissuers import Strategy, in_order, merge
from hub.api.logins import (
    JWT,
    KINDS,
    MAX_GROUPS,
    MAX_NAME,
    WEBHOOK,
    ClaimRules,
    Login,
    Named,
    admitted,
    named_by_claims,
    read_authenticator,
)
from hub.api.meta import document as doc
from hub.api.meta.change import CREDENTIAL_ISSUERS, JWT_AUTHENTICATORS, SERVICE_ACCOUNTS
from hub.controllers.certificates.authenticators import AGAIN, SOON, AuthenticatorStatus, examine
from hub.ports import Transaction
from hub.registry import core as accounts
from hub.registry import logins
from hub.registry import revocations as revocation
from hub.registry.generic import objects
from hub.registry.kinds import WRITE_PATHS
from hub.registry.managedclusteraddons.tokens import _remove_part
from machinery.apiserver.authn.issuer_keys import JsonDocuments
from machinery.errors import InvalidError, UnauthorizedError, UnavailableError
from machinery.identity import CLUSTER_LABEL, OPERATOR_GROUP, ClusterName, SerialNumber
from machinery.meta.objects import Document, Key, StoredObject
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusals, check_results, present, refusal
from tests.fakes.identity import SigningKey
from tests.fakes.inline_store import InlineStore
from tests.fakes.issuer import WordIssuer
from tests.fakes.registration import fresh_store

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = int(NOW.timestamp())
RULES = ClaimRules("https://i", "muster")
GOOD: dict[str, Any] = {"iss": "https://i", "aud": "muster", "sub": "ann", "exp": AT + 1}


def named(rules: ClaimRules = RULES, **claims: Any) -> Named:
    return named_by_claims({**GOOD, **claims}, rules, NOW)


def test_user_and_groups_come_from_the_claims_of_a_token_that_has_what_it_needs() -> None:
    assert named(groups=["a", "", "b"]) == Named("ann", ("a", "b"))
    assert named(groups="a") == Named("ann", ("a",))
    rules = ClaimRules("https://i", "muster", "name", "corp:", "roles", "corp-")
    assert named(rules, name="Ann Lee", roles=["x"], groups=["y"]) == Named("corp:Ann Lee", ("corp-x",))
    assert named(aud=["others", "muster"]) == Named("ann")
    assert named(nbf=AT + 60) == Named("ann")
    rows: tuple[tuple[dict[str, Any], str], ...] = (
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": "https://i/"}, "another issuer"),
        ({"aud": "Muster"}, "not meant"),
        ({"aud": []}, "not meant"),
        ({"aud": None}, "not meant"),
        ({"aud": {"muster": 1}}, "neither"),
        ({"exp": AT}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": "soon"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": float("nan")}, "no time"),
        ({"exp": 10**30}, "no time"),
        ({"nbf": AT + 61}, "not valid yet"),
        ({"sub": None}, "no claim"),
        ({"sub": 5}, "no claim"),
        ({"sub": ""}, "no claim"),
        ({"groups": {"a": 1}}, "neither"),
        ({"groups": ["a", 1]}, "neither"),
    )
    check_refusals(UnauthorizedError, lambda claims: named(**claims), rows)
    later = named_by_claims({**GOOD, "exp": AT + 600, "nbf": AT + 61}, RULES, NOW + timedelta(seconds=1))
    assert later.user == "ann", "a token may begin a minute in the future"
    rules = ClaimRules("https://i", "muster", required={"tenant": "one"})
    assert named(rules, tenant="one").user == "ann"
    wrong: tuple[dict[str, Any], ...] = ({}, {"tenant": "two"}, {"tenant": ["one"]}, {"tenant": 1})
    check_refusals(UnauthorizedError, lambda claims: named(rules, **claims), [(claims, "tenant") for claims in wrong])
    mail = ClaimRules("https://i", "muster", username="email")
    assert named(mail, email="a@x").user == "a@x"
    assert named(mail, email="a@x", email_verified=True).user == "a@x"
    unverified = [(verified, "not verified") for verified in (False, "true", None, 1)]
    check_refusals(UnauthorizedError, lambda verified: named(mail, email="a@x", email_verified=verified), unverified)


def test_reserved_and_unfit_names_are_refused_or_left_out() -> None:
    rows = (
        (None, "names no user"),
        (Named(""), "empty"),
        (Named("ann", uid="1"), "UID"),
        (Named("ann", extra={"scopes": ("all",)}), "extra"),
        (Named("system:admin"), "given by the hub"),
        (Named("system:open-cluster-management:c:a"), "given by the hub"),
        (Named("ann\n"), "not shown"),
        (Named(" ann"), "space"),
        (Named("\ud800"), "not shown"),
        (Named("a" * (MAX_NAME + 1)), "longer"),
        (Named("ann", ("b\x00",)), "group"),
        (Named("ann", ("g",) * (MAX_GROUPS + 1)), "groups"),
    )
    check_refusals(UnauthorizedError, admitted, rows)
    login = admitted(Named("ann", ("ops", "system:masters", "system:authenticated", "ops")))
    assert (login.groups, login.left_out) == (("ops",), ("system:masters", "system:authenticated"))
    assert not login.is_our_own_name
    operator = admitted(Named("ann", ("ops",)), ("chiefs", "ops"))
    assert operator.groups == ("ops", OPERATOR_GROUP)
    assert operator.is_our_own_name
    assert admitted(Named("ann", ("system:masters",)), ("system:masters",)).groups == ()
    login = admitted(Named("system:serviceaccount:a:b", ("system:serviceaccounts",), account="uid"))
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
    if refusal(UnauthorizedError, admitted, named(rules, sub=user or "ann")):
        user = "ann"
    login = admitted(named(rules, sub=user or "ann", groups=groups), operators)
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
        user = admitted(named(**claims)).user
    except UnauthorizedError as error:
        user = error.message
    assert user


def test_an_authenticator_is_read_with_its_defaults() -> None:
    spec = {"issuer": "https://i", "audience": "muster"}
    document = {"metadata": {"name": "corp", "uid": "u", "generation": 2}, "spec": spec}
    found = read_authenticator(JWT, document)
    assert (found.claims, found.mark, found.authorities) == (RULES, ("u", 2), b"")
    assert found.address == "https://i"
    with pytest.raises(InvalidError, match="base64"):
        read_authenticator(JWT, {**document, "spec": {**spec, "tls": {"certificateAuthorityData": "?"}}})


PATH = WRITE_PATHS[SERVICE_ACCOUNTS]
WHO = Requester("admin", ())
Remove = Callable[[Transaction, StoredObject], Any]


def account(tx: Transaction, /, name: str, **metadata: Any) -> None:
    told = {"name": name, "namespace": "edge1", "labels": {CLUSTER_LABEL: "edge1"}, **metadata}
    PATH.put(tx, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": told}, None, WHO)


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
    record = present(store.transact(lambda tx: tx.certificates.by_serial(serial)))
    return record.revoked_reason


def test_logins_of_an_account_end_with_it_and_those_of_another_stay(store: InlineStore, clock: ManualClock) -> None:
    removals: dict[str, Remove] = {
        "deleted": lambda tx, old: PATH.remove(tx, old, WHO),
        "its add-on ends": lambda tx, old: _remove_part(tx, SERVICE_ACCOUNTS, old, "hub"),
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


API = "hub.example.com/v1alpha1"


def told(kind: str = "KubeClusterSigningCertificate", time: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": "Success", "reason": "r", "message": "m", "lastUpdateTime": time, **more}


def test_strategy_replaces_its_own_where_more_than_the_time_differs_and_all_are_in_one_order() -> None:
    others = [told("Zebra"), told("ImpersonationProxy")]
    rows: tuple[tuple[Any, Any, Any], ...] = (
        ([], told(), [told()]),
        ([told(message="old")], told(time="t2"), [told(time="t2")]),
        ([told()], told(time="t2"), [told()]),
        (others, told(), [told(), told("ImpersonationProxy"), told("Zebra")]),
    )
    check_results(merge, rows)
    kinds = ("KubeClusterSigningCertificate", "ImpersonationProxy", "Aardvark", "Bee", "Zebra")
    strategies, random = [told(kind) for kind in kinds], Random(7)
    assert all(in_order(random.sample(strategies, len(strategies))) == strategies for _ in range(200))


async def test_the_issuer_is_made_and_then_written_only_where_it_is_news(store: InlineStore, clock: ManualClock) -> None:
    fetched = Strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "done", "https://k", "Q0E=", "kubernetes/x")

    async def tell(strategy: Strategy) -> bool:
        return await store.run(logins.record_strategy, strategy, API, "tester")

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


ISSUER = "https://issuer.example.org"
SPECS: dict[str, dict[str, Any]] = {JWT: {"issuer": ISSUER, "audience": "muster"}, WEBHOOK: {"endpoint": "https://hook"}}
TYPES = {
    JWT: ["TLSConfigurationValid", "IssuerURLValid", "DiscoveryURLValid", "JWKSFetchValid", "Ready"],
    WEBHOOK: ["TLSConfigurationValid", "EndpointURLValid", "WebhookConnectionValid", "Ready"],
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
            assert conditions.pop("Ready") == "False NotReady"
            assert set(conditions.values()) == {"Unknown UnableToValidate"}


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
    stored = store.transact(lambda tx: tx.objects.get(JWT_AUTHENTICATORS, Key("", "corp")))
    assert stored is not None
    return doc.mapping(stored.document, "status")


async def test_the_status_follows_what_is_found_and_is_written_when_it_is_news(elsewhere: Elsewhere) -> None:
    store = InlineStore(ManualClock())

    async def look(kind: str, document: Document) -> list[Any]:
        return await examine(kind, document, elsewhere.connect)

    controller = AuthenticatorStatus(store, look)
    document = {"metadata": {"name": "corp"}, "spec": SPECS[JWT]}
    store.transact(objects.put, JWT_AUTHENTICATORS, document, None, "test", generations=True)
    key = (KINDS[JWT], "corp")
    assert await controller.reconcile(key) == AGAIN
    assert (status(store)["phase"], status(store)["observedGeneration"]) == ("Ready", 1)
    revision = store.transact(lambda tx: tx.changes.newest())
    await controller.reconcile(key)
    assert store.transact(lambda tx: tx.changes.newest()) == revision
    elsewhere.away = True
    assert await controller.reconcile(key) == SOON
    assert status(store)["phase"] == "Error"
    assert await controller.reconcile((KINDS[JWT], "gone")) is None


def test_what_the_controller_writes_itself_is_no_reason_to_look_again() -> None:
    wanted = AuthenticatorStatus(InlineStore(ManualClock()), lambda *_told: None).wanted[KINDS[JWT]]  # type: ignore[arg-type]
    first = {"metadata": {"name": "corp", "uid": "u", "generation": 1}}
    assert [wanted(first), wanted({**first, "status": {"phase": "Ready"}})] == [True, False]
    assert wanted({"metadata": {"name": "corp", "uid": "u", "generation": 2}})
    assert wanted({"metadata": {"name": "corp", "uid": "v", "generation": 2}})
