"""Asking another API server: what is asked, how long an answer counts, and that no answer is a refusal."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from machinery.apiserver.access import Attributes, Authorizer, Decision
from machinery.apiserver.authentication.delegated import DelegatedAuthorizer, DelegatedTokens
from machinery.apiserver.authentication.frontproxy import Origin
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import UnauthorizedError, UnavailableError

ANN = Actor("ann", ("dev",), "u-1", {"scopes": ("view",)}, holder=Origin.DELEGATED)
LIST = Attributes("list", "/api/v1/nodes", "", "v1", "nodes")


class Elsewhere:
    """The other API server: says what it is told, and remembers what it was asked."""

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


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


KNOWN = {"authenticated": True, "user": {"username": "ann", "uid": "u-1", "groups": ["dev"], "extra": {"scopes": ["view"]}}}


async def test_a_token_is_who_the_other_server_says(clock: ManualClock) -> None:
    elsewhere = Elsewhere(**KNOWN, audiences=["api"])
    found = await DelegatedTokens(elsewhere.review, clock).identify("secret", ("api", "x"))
    assert found is not None
    assert (found.actor, found.actor.holder, found.audiences) == (ANN, Origin.DELEGATED, ("api",))
    assert elsewhere.asked == [("TokenReview", {"token": "secret", "audiences": ["api", "x"]})]


async def test_what_was_said_of_a_token_counts_for_ten_seconds(clock: ManualClock) -> None:
    elsewhere = Elsewhere(**KNOWN)
    tokens = DelegatedTokens(elsewhere.review, clock)
    for _ in range(3):
        assert await tokens.identify("secret", ())
    await tokens.identify("secret", ("other",))
    assert len(elsewhere.asked) == 2
    elsewhere.status = {"authenticated": False}
    clock.advance(timedelta(seconds=9.9))
    assert await tokens.identify("secret", ())
    clock.advance(timedelta(seconds=0.1))
    with pytest.raises(UnauthorizedError):
        await tokens.identify("secret", ())


async def test_tokens_are_kept_as_hashes(clock: ManualClock) -> None:
    tokens = DelegatedTokens(Elsewhere(**KNOWN).review, clock)
    await tokens.identify("canary", ())
    assert "canary" not in repr(vars(tokens._kept))


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {"error": "expired"},
        {"authenticated": True, "user": {}},
        {"authenticated": True, "user": {"username": "system:bootstrap:0123456789abcdef"}},
        {"authenticated": True, "user": {"username": "a", "groups": ["system:open-cluster-management:edge1"]}},
    ],
)
async def test_whom_the_other_server_does_not_know_or_may_not_name_is_refused(clock: ManualClock, status: Any) -> None:
    elsewhere = Elsewhere(**status)
    tokens = DelegatedTokens(elsewhere.review, clock)
    for _ in range(2):
        with pytest.raises(UnauthorizedError):
            await tokens.identify("secret", ())
    assert len(elsewhere.asked) == 1


async def test_while_nobody_answers_nobody_is_known(clock: ManualClock) -> None:
    elsewhere = Elsewhere(**KNOWN)
    tokens = DelegatedTokens(elsewhere.review, clock)
    elsewhere.away = True
    with pytest.raises(UnavailableError):
        await tokens.identify("secret", ())
    elsewhere.away = False
    assert await tokens.identify("secret", ())


async def test_rights_are_asked_for_in_full(clock: ManualClock) -> None:
    elsewhere = Elsewhere(allowed=True, reason="a role")
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
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


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_decision_counts_for_ten_seconds(clock: ManualClock, allowed: bool) -> None:  # noqa: FBT001 - both outcomes
    elsewhere = Elsewhere(allowed=allowed)
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
    for _ in range(3):
        assert (await authorizer.authorize(ANN, LIST)).allowed is allowed
    assert len(elsewhere.asked) == 1
    elsewhere.status = {"allowed": not allowed}
    clock.advance(timedelta(seconds=10))
    assert (await authorizer.authorize(ANN, LIST)).allowed is not allowed


async def test_each_question_and_each_asker_has_an_answer_of_its_own(clock: ManualClock) -> None:
    elsewhere = Elsewhere(allowed=True)
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
    bob = Actor("bob", ("dev",), "u-1", {"scopes": ("view",)}, holder=Origin.DELEGATED)
    more = Actor("ann", ("dev", "ops"), "u-1", {"scopes": ("view",)}, holder=Origin.DELEGATED)
    for actor in (ANN, bob, more):
        for verb in ("list", "watch"):
            await authorizer.authorize(actor, Attributes(verb, "/api/v1/nodes", "", "v1", "nodes"))
    assert len(elsewhere.asked) == 6


async def test_denied_wins_and_while_nobody_answers_nothing_is_allowed(clock: ManualClock) -> None:
    elsewhere = Elsewhere(allowed=True, denied=True)
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
    assert not (await authorizer.authorize(ANN, LIST)).allowed
    clock.advance(timedelta(seconds=10))
    elsewhere.away, elsewhere.status = True, {"allowed": True}
    assert not (await authorizer.authorize(ANN, LIST)).allowed
    elsewhere.away = False
    assert (await authorizer.authorize(ANN, LIST)).allowed, "that nobody answered is not kept"


async def test_who_is_known_here_is_never_asked_about_elsewhere(clock: ManualClock) -> None:
    elsewhere = Elsewhere(allowed=False)
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
    assert (await authorizer.authorize(Actor("ann", ("dev",)), LIST)).reason == "own"
    assert elsewhere.asked == []


async def test_masters_and_open_paths_need_no_question(clock: ManualClock) -> None:
    elsewhere = Elsewhere(allowed=False)
    authorizer = DelegatedAuthorizer(Own(), elsewhere.review, clock)
    master = Actor("root", ("system:masters",), holder=Origin.DELEGATED)
    assert (await authorizer.authorize(master, LIST)).allowed
    assert (await authorizer.authorize(ANN, Attributes("get", "/readyz"))).allowed
    assert elsewhere.asked == []
