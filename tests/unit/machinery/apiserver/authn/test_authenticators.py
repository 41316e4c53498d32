"""The chain of authenticators, reviews by another API server, client certificates of other CAs, the front proxy."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from machinery import pki
from machinery.apiserver.access import ANONYMOUS, Attributes, Authorizer, Decision
from machinery.apiserver.authn import chain
from machinery.apiserver.authn.aggregation import DelegatedAuthorizer, DelegatedTokens, FrontProxy, Origin, Trust
from machinery.apiserver.authn.authorities import ForeignCertificates, TrustedAuthorities, mark_of_authority
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.storage import Actor
from machinery.client.kubeconfig import Credential
from machinery.errors import InvalidError, TooManyRequestsError, UnauthorizedError, UnavailableError
from machinery.runtime.clock import ManualClock, SystemClock
from tests.checks import check_refusal_of, check_refusals, present
from tests.fakes.authority import OtherCA

GOOD = chain.Identity(Actor("ann", ("ops",)), "mark")


class Says(chain.RequestAuthenticator):
    """Whatever it is asked."""

    def __init__(self, outcome: chain.Identity | Exception | None) -> None:
        self.outcome = outcome
        self.asked = 0

    async def identify(self, request: web.Request) -> chain.Identity | None:  # noqa: ARG002 - the port's signature
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Knows(chain.TokenAuthenticator):
    """A few tokens."""

    def __init__(self, **outcomes: chain.Identity | Exception) -> None:
        self.outcomes = outcomes

    async def identify(self, token: str, audiences: Sequence[str]) -> chain.Identity | None:  # noqa: ARG002 - the port's signature
        outcome = self.outcomes.get(token)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def request_with(authorization: str | None = None) -> web.Request:
    return make_mocked_request("GET", "/", headers={} if authorization is None else {"Authorization": authorization})


async def test_first_authenticator_that_knows_the_credential_decides() -> None:
    assert await chain.Chain(Says(None), Says(None)).authenticate(request_with()) == ANONYMOUS

    second, asked = Says(UnauthorizedError("a bad token beside a good certificate")), request_with()
    actor = await chain.Chain(Says(None), Says(GOOD), second).authenticate(asked)
    assert (actor, second.asked) == (Actor("ann", ("ops", "system:authenticated")), 0)
    assert asked[chain.IDENTITY] is GOOD

    actor = await chain.Chain(Says(UnauthorizedError("revoked")), Says(GOOD)).authenticate(request_with())
    assert actor.user == "ann"

    with pytest.raises(UnauthorizedError, match="revoked"):
        await chain.Chain(Says(UnauthorizedError("revoked")), Says(None)).authenticate(request_with())

    last = Says(GOOD)
    with pytest.raises(UnavailableError):
        await chain.Chain(Says(UnavailableError("database away")), last).authenticate(request_with())
    assert last.asked == 0


TOKENS = Knows(good=GOOD, old=UnauthorizedError("the token ended yesterday"), away=UnavailableError("database away"))


async def test_bearer_tokens_are_parsed_as_kubernetes_does_and_authenticators_asked_in_turn(subtests: pytest.Subtests) -> None:
    cases = ("Bearer good", "bearer good", "  BEARER   good ")
    assert [header for header in cases if await chain.BearerTokens(TOKENS).identify(request_with(header)) is not GOOD] == []
    for header in ("Bearer guess", "Bearer old", "Bearer ", "Bearer", "Basic Z29vZDp4", "good", "Bearer good x"):
        with subtests.test(header=header), pytest.raises(UnauthorizedError, match=r"^Unauthorized$"):
            await chain.BearerTokens(TOKENS).identify(request_with(header))
    assert await chain.BearerTokens(TOKENS).identify(request_with()) is None
    await check_refusal_of(UnavailableError, chain.BearerTokens(TOKENS).identify(request_with("Bearer away")))

    union = chain.TokenUnion(TOKENS, Knows(theirs=GOOD, old=UnauthorizedError("nor here")))
    assert await union.identify("theirs", ()) is GOOD
    assert await union.identify("nobodys", ()) is None
    await check_refusal_of(UnauthorizedError, union.identify("old", ()), match=r"^\[the token ended yesterday, nor here\]$")


BEARER = Actor("ann")


class Connection(asyncio.Transport):
    """A connection that shows a client certificate, or none, and knows whether it was aborted."""

    def __init__(self, credential: Credential | None = None) -> None:
        super().__init__()
        self.aborted = asyncio.Event()
        self._der = None if credential is None else ssl.PEM_cert_to_DER_cert(credential.chain.decode())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" and self._der is not None else default

    def getpeercert(self, *, binary_form: bool) -> bytes | None:
        assert binary_form
        return self._der

    def abort(self) -> None:
        self.aborted.set()


class Open:
    """One request that stays open until it is let go, and whether its connection was aborted."""

    def __init__(self, presence: Presence, identity: chain.Identity | None, *, verb: str = "watch") -> None:
        self.transport = Connection()
        self.go = asyncio.Event()
        request = make_mocked_request("GET", "/", transport=self.transport)
        if identity is not None:
            request[chain.IDENTITY] = identity
        incoming = Incoming(request, "an-id", Attributes(verb, "/", resource="x"), 0.0)

        async def inner(_incoming: Incoming) -> web.StreamResponse:
            await self.go.wait()
            return web.Response()

        self.task = asyncio.ensure_future(presence(incoming, inner))

    @property
    def aborted(self) -> bool:
        return self.transport.aborted.is_set()

    async def end(self) -> None:
        self.go.set()
        await self.task


async def begun(*requests: Open) -> None:
    await asyncio.sleep(0)
    assert not any(each.aborted for each in requests)


async def test_watches_end_with_their_credential() -> None:
    clock = ManualClock()
    presence = Presence(clock)
    mine = [Open(presence, chain.Identity(BEARER, "a")) for _ in range(2)]
    other, anonymous = Open(presence, chain.Identity(BEARER, "b")), Open(presence, None)
    once, short = Open(presence, chain.Identity(BEARER, "b")), Open(presence, chain.Identity(BEARER, "a"), verb="list")
    await begun(*mine, other, anonymous, once, short)
    await once.end()
    presence.end("a")
    found = [each.aborted for each in (*mine, other, anonymous, short)]
    assert found == [True, True, False, False, False], "short requests are left to finish"
    for each in (*mine, anonymous, short):
        await each.end()
    late = Open(presence, chain.Identity(BEARER, "a"))
    await check_refusal_of(UnauthorizedError, late.task)
    presence.end_all()
    assert (other.aborted, once.aborted) == (True, False), "a request that is over has nothing to end"
    await other.end()
    again = Open(presence, chain.Identity(BEARER, "c"))
    await begun(again)
    await again.end()

    presence = Presence(clock)
    soon = Open(presence, chain.Identity(BEARER, "a", clock.now() + timedelta(milliseconds=20)))
    later = Open(presence, chain.Identity(BEARER, "b", clock.now() + timedelta(hours=1)))
    await begun(soon, later)
    await soon.transport.aborted.wait()
    assert not later.aborted
    await soon.end()
    await later.end()


ANN = Actor("ann", ("dev",), "u-1", {"scopes": ("view",)}, holder=Origin.DELEGATED)
LIST = Attributes("list", "/api/v1/nodes", "", "v1", "nodes")


class Elsewhere:
    """The other API server: returns the set answer, and records requests."""

    def __init__(self, **status: Any) -> None:
        self.status = status
        self.away = False
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((kind, spec))
        if self.away:
            raise UnavailableError("not reached")
        return self.status


class Own(Authorizer):
    """The server's own rules: everybody may."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:  # noqa: ARG002 - the port's signature
        return Decision(allowed=True, reason="own")


def authorizing(**status: Any) -> tuple[Elsewhere, DelegatedAuthorizer, ManualClock]:
    elsewhere, clock = Elsewhere(**status), ManualClock()
    return elsewhere, DelegatedAuthorizer(Own(), elsewhere.review, clock), clock


def reviewing(**status: Any) -> tuple[Elsewhere, DelegatedTokens, ManualClock]:
    elsewhere, clock = Elsewhere(**status), ManualClock()
    return elsewhere, DelegatedTokens(elsewhere.review, clock), clock


KNOWN = {"authenticated": True, "user": {"username": "ann", "uid": "u-1", "groups": ["dev"], "extra": {"scopes": ["view"]}}}


async def test_token_review_names_the_user_counts_for_ten_seconds_and_refuses_reserved_users() -> None:
    elsewhere, tokens, _ = reviewing(**KNOWN, audiences=["api"])
    found = present(await tokens.identify("secret", ("api", "x")))
    assert (found.actor, found.actor.holder, found.audiences) == (ANN, Origin.DELEGATED, ("api",))
    assert elsewhere.asked == [("TokenReview", {"token": "secret", "audiences": ["api", "x"]})]

    elsewhere, tokens, clock = reviewing(**KNOWN)
    for _ in range(3):
        assert await tokens.identify("secret", ())
    await tokens.identify("secret", ("other",))
    assert len(elsewhere.asked) == 2
    assert "secret" not in repr(vars(tokens._kept))
    elsewhere.status = {"authenticated": False}
    clock.advance(timedelta(seconds=9.9))
    assert await tokens.identify("secret", ())
    clock.advance(timedelta(seconds=0.1))
    await check_refusal_of(UnauthorizedError, tokens.identify("secret", ()))

    users: list[dict[str, Any]] = [{}, {"username": "system:bootstrap:0123456789abcdef"}]
    users += [{"username": "a", "groups": ["system:open-cluster-management:edge1"]}]
    named: list[dict[str, Any]] = [{"authenticated": True, "user": user} for user in users]
    for status in [*named, {"authenticated": False}, {"error": "expired"}]:
        elsewhere, tokens, _ = reviewing(**status)
        for _ in range(2):
            await check_refusal_of(UnauthorizedError, tokens.identify("secret", ()))
        assert len(elsewhere.asked) == 1, status

    elsewhere, tokens, _ = reviewing(**KNOWN)
    elsewhere.away = True
    await check_refusal_of(UnavailableError, tokens.identify("secret", ()))
    elsewhere.away = False
    assert await tokens.identify("secret", ())


async def test_access_review_carries_every_attribute_and_allows_nothing_during_an_outage() -> None:
    elsewhere, authorizer, clock = authorizing(allowed=True, reason="a role")
    asked = Attributes("patch", "/x", "apps", "v1", "things", "status", "ns", "one")
    assert await authorizer.authorize(ANN, asked) == Decision(allowed=True, reason="a role")
    assert await authorizer.authorize(ANN, Attributes("get", "/metrics"))
    who = {"user": "ann", "groups": ["dev"], "uid": "u-1", "extra": {"scopes": ["view"]}}
    what = {"namespace": "ns", "verb": "patch", "group": "apps", "version": "v1"}
    what |= {"resource": "things", "subresource": "status", "name": "one"}
    assert elsewhere.asked == [
        ("SubjectAccessReview", {**who, "resourceAttributes": what}),
        ("SubjectAccessReview", {**who, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
    ]

    for allowed in (True, False):
        elsewhere, authorizer, clock = authorizing(allowed=allowed)
        for _ in range(3):
            assert (await authorizer.authorize(ANN, LIST)).allowed is allowed, allowed
        assert len(elsewhere.asked) == 1, allowed
        elsewhere.status = {"allowed": not allowed}
        clock.advance(timedelta(seconds=10))
        assert (await authorizer.authorize(ANN, LIST)).allowed is not allowed, allowed

    elsewhere, authorizer, clock = authorizing(allowed=True)
    for actor in (ANN, replace(ANN, user="bob"), replace(ANN, groups=("dev", "ops"))):
        for asked in (LIST, replace(LIST, verb="watch")):
            await authorizer.authorize(actor, asked)
    assert len(elsewhere.asked) == 6

    elsewhere, authorizer, clock = authorizing(allowed=True, denied=True)
    assert not (await authorizer.authorize(ANN, LIST)).allowed
    clock.advance(timedelta(seconds=10))
    elsewhere.away, elsewhere.status = True, {"allowed": True}
    assert not (await authorizer.authorize(ANN, LIST)).allowed
    elsewhere.away = False
    assert (await authorizer.authorize(ANN, LIST)).allowed, "that nobody answered is not kept"

    elsewhere, authorizer, _ = authorizing(allowed=False)
    assert (await authorizer.authorize(Actor("ann", ("dev",)), LIST)).reason == "own"
    assert (await authorizer.authorize(Actor("root", ("system:masters",), holder=Origin.DELEGATED), LIST)).allowed
    assert (await authorizer.authorize(ANN, Attributes("get", "/readyz"))).allowed
    assert elsewhere.asked == []


CA, OTHER = OtherCA("ca"), OtherCA("other")


def foreign(*groups: str, clock: ManualClock | SystemClock | None = None) -> ForeignCertificates:
    return ForeignCertificates(TrustedAuthorities(CA.certificate), groups, clock or SystemClock())


async def test_foreign_certificate_counts_with_its_configured_groups_until_it_expires(subtests: pytest.Subtests) -> None:
    credential = CA.issue("carol", "ops", "dev", "system:masters", "system:authenticated")
    found = present(await foreign("ops", "qa", "system:masters").identify(request(credential)))
    facts = pki.parse_certificate(credential.chain)
    assert (found.actor.user, found.actor.groups, found.until) == ("carol", ("ops",), facts.not_after)
    assert found.actor.extra == {"authentication.kubernetes.io/credential-id": (f"X509SHA256={facts.fingerprint}",)}
    assert found.mark.startswith(mark_of_authority(pki.parse_certificate(CA.certificate).fingerprint))

    for user in ("system:open-cluster-management:edge1:abcde", "system:bootstrap:x", "system:admin"):
        with subtests.test(user=user), pytest.raises(UnauthorizedError):
            await foreign("ops").identify(request(CA.issue(user, "ops", "system:open-cluster-management:edge1")))

    assert await foreign("ops").identify(request(OTHER.issue("carol", "ops"))) is None
    assert await foreign("ops").identify(request(None)) is None

    clock = ManualClock(SystemClock().now())
    authenticator = foreign("ops", clock=clock)
    credential = CA.issue("carol", "ops", lifetime=timedelta(hours=1))
    assert await authenticator.identify(request(credential))
    clock.advance(timedelta(hours=1, seconds=2))
    await check_refusal_of(UnauthorizedError, authenticator.identify(request(credential)))


PROXY_CA, CLIENT_CA = OtherCA("front-proxy-ca"), OtherCA("client-ca")
PROXY = PROXY_CA.issue("front-proxy-client")
ANN_HEADER = ("X-Remote-User", "ann")


def trust(**entries: str) -> Trust:
    """Of a ConfigMap as kube-apiserver writes it."""
    written = {
        "allowed-names": '["front-proxy-client"]',
        "client-ca-file": PROXY_CA.certificate.decode(),
        "extra-headers-prefix": '["X-Remote-Extra-"]',
        "group-headers": '["X-Remote-Group"]',
        "uid-headers": '["X-Remote-Uid"]',
        "username-headers": '["X-Remote-User"]',
        **entries,
    }
    data = {f"requestheader-{name}": value for name, value in written.items()}
    return Trust.of_config_map({"data": {"client-ca-file": CLIENT_CA.certificate.decode(), **data}})


def believing(**entries: str) -> FrontProxy:
    proxy = FrontProxy(SystemClock())
    proxy.set_trust(trust(**entries))
    return proxy


async def test_front_proxy_is_trusted_only_by_its_ca_and_name_and_never_for_agents(subtests: pytest.Subtests) -> None:
    headers = [ANN_HEADER, ("X-Remote-Group", "dev"), ("x-remote-group", "system:authenticated"), ("X-Remote-Uid", "u-1")]
    headers += [("X-Remote-Extra-Acme.com%2Fproject", "some"), ("x-remote-extra-acme.com%2fproject", "other")]
    found = present(await believing().identify(request(PROXY, *headers)))
    assert found.actor == Actor("ann", ("dev", "system:authenticated"), "u-1", {"acme.com/project": ("some", "other")})
    assert (found.actor.holder, await believing().identify(request(PROXY))) == (Origin.DELEGATED, None)
    assert await believing().identify(request(PROXY, ("X-Remote-User", ""))) is None

    proxy, next_ca, mallory = believing(), OtherCA("front-proxy-ca"), PROXY_CA.issue("mallory")
    assert await proxy.identify(request(None, ANN_HEADER)) is None
    assert await proxy.identify(request(CLIENT_CA.issue("front-proxy-client"), ANN_HEADER)) is None
    assert await FrontProxy(SystemClock()).identify(request(PROXY, ANN_HEADER)) is None
    with pytest.raises(UnauthorizedError, match="cn=mallory is not in the allowed list"):
        await proxy.identify(request(mallory, ANN_HEADER))
    assert await believing(**{"allowed-names": "[]"}).identify(request(mallory, ANN_HEADER))
    assert len(proxy.set_trust(trust(**{"client-ca-file": next_ca.certificate.decode()}))) == 1
    assert await proxy.identify(request(PROXY, ANN_HEADER)) is None
    assert await proxy.identify(request(next_ca.issue("front-proxy-client"), ANN_HEADER))

    rows: list[list[tuple[str, str]]] = [
        [("X-Remote-User", "system:open-cluster-management:edge1:abcde")],
        [("X-Remote-User", "system:bootstrap:0123456789abcdef")],
        [ANN_HEADER, ("X-Remote-Group", "system:open-cluster-management:edge1")],
    ]
    for headers in rows:
        with subtests.test(headers=headers), pytest.raises(UnauthorizedError, match="agents connect directly"):
            await believing().identify(request(PROXY, *headers))

    malformed = [("client-ca-file", "", ""), ("allowed-names", '{"a": 1}', ""), ("group-headers", "[1]", "")]
    malformed += [("username-headers", value, "") for value in ("[]", "X-Remote-User")]
    check_refusals(InvalidError, lambda key, value: trust(**{key: value}), malformed)


def request(credential: Credential | None, *headers: tuple[str, str]) -> web.Request:
    return make_mocked_request("GET", "/", headers=CIMultiDict(headers), transport=Connection(credential))


async def test_flood_of_refused_tokens_costs_few_checks_and_no_good_token_is_refused() -> None:
    clock = ManualClock()
    refusals, checked = Rates(5, 3, clock), Counter[str]()
    checks = chain.TokenChecks(refusals, clock)
    here, other, known = "192.0.2.1", "192.0.2.2", "good-known"
    at_once, order = Counter[str](), list[str]()

    async def shown(token: str, address: str = here) -> int:
        """The status of a request with the token, at a server that limits refusals."""
        try:
            async with checks.one(address, token):
                checked[token] += 1
                order.append(token)
                at_once[address] += token != known
                await asyncio.sleep(0)
                assert at_once[address] <= 1
                at_once[address] -= token != known
                if not token.startswith("good"):
                    raise UnauthorizedError("bad")
        except UnauthorizedError:
            with suppress(TooManyRequestsError):
                refusals.check(address)
            return 401
        except TooManyRequestsError:
            return 429
        return 200

    assert (await shown(known), [await shown("guessed") for _ in range(50)]) == (200, [401] * 3 + [429] * 47)
    assert checked["guessed"] == 3
    flood = [shown(f"guessed-{number}") for number in range(20)]
    twice = [shown("guessed-0") for _ in range(20)]
    order.clear()
    found = await asyncio.gather(*flood, *twice, shown("good-new"), shown("good-other", other), shown(known))
    assert found == [401] * 20 + [429] * 20 + [200] * 3
    assert known in order[:3], "it waits for nobody, and another address for one"
    assert "good-other" in order[:3]
    assert max(checked[f"guessed-{number}"] for number in range(20)) == 1
    clock.advance(chain.REFUSED_FOR)
    assert await shown("guessed") == 401, "it may have become good: it is checked again"
