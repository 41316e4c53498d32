"""The chain of authenticators: whose word counts, and what each failure becomes."""

from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.access import ANONYMOUS
from machinery.apiserver.authentication import (
    IDENTITY,
    BearerTokens,
    Chain,
    Identity,
    RequestAuthenticator,
    TokenAuthenticator,
    TokenUnion,
)
from machinery.apiserver.storage import Actor
from machinery.errors import UnauthorizedError, UnavailableError

GOOD = Identity(Actor("ann", ("ops",)), "mark")


class Says(RequestAuthenticator):
    """Whatever it is asked."""

    def __init__(self, outcome: Identity | Exception | None) -> None:
        self.outcome = outcome
        self.asked = 0

    async def identify(self, request: web.Request) -> Identity | None:  # noqa: ARG002 - the port's signature
        self.asked += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Knows(TokenAuthenticator):
    """A few tokens."""

    def __init__(self, **outcomes: Identity | Exception) -> None:
        self.outcomes = outcomes

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:  # noqa: ARG002 - the port's signature
        outcome = self.outcomes.get(token)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def request(authorization: str | None = None) -> web.Request:
    return make_mocked_request("GET", "/", headers={} if authorization is None else {"Authorization": authorization})


async def test_without_a_credential_the_asker_is_anonymous() -> None:
    assert await Chain(Says(None), Says(None)).authenticate(request()) == ANONYMOUS


async def test_the_first_that_knows_the_credential_decides() -> None:
    second = Says(UnauthorizedError("a bad token beside a good certificate"))
    asked = request()
    actor = await Chain(Says(None), Says(GOOD), second).authenticate(asked)
    assert actor == Actor("ann", ("ops", "system:authenticated"))
    assert second.asked == 0
    assert asked[IDENTITY] is GOOD


async def test_a_good_credential_makes_up_for_a_bad_one_before_it() -> None:
    actor = await Chain(Says(UnauthorizedError("revoked")), Says(GOOD)).authenticate(request())
    assert actor.user == "ann"


async def test_a_bad_credential_alone_is_refused_and_never_anonymous() -> None:
    with pytest.raises(UnauthorizedError, match="revoked"):
        await Chain(Says(UnauthorizedError("revoked")), Says(None)).authenticate(request())


async def test_what_cannot_be_found_out_now_is_no_refusal_and_no_other_identity() -> None:
    last = Says(GOOD)
    with pytest.raises(UnavailableError):
        await Chain(Says(UnavailableError("database away")), last).authenticate(request())
    assert last.asked == 0


TOKENS = Knows(good=GOOD, old=UnauthorizedError("the token ended yesterday"), away=UnavailableError("database away"))


@pytest.mark.parametrize("header", ["Bearer good", "bearer good", "  BEARER   good "])
async def test_a_bearer_token_is_read_as_kubernetes_reads_it(header: str) -> None:
    assert await BearerTokens(TOKENS).identify(request(header)) is GOOD


@pytest.mark.parametrize(
    "header", ["Bearer guess", "Bearer old", "Bearer ", "Bearer", "Basic Z29vZDp4", "good", "Bearer good x"]
)
async def test_any_other_authorization_is_refused_in_kubernetes_one_word(header: str) -> None:
    with pytest.raises(UnauthorizedError, match=r"^Unauthorized$"):
        await BearerTokens(TOKENS).identify(request(header))


async def test_no_authorization_is_no_token() -> None:
    assert await BearerTokens(TOKENS).identify(request()) is None


async def test_a_token_whose_store_is_away_is_not_called_bad() -> None:
    with pytest.raises(UnavailableError):
        await BearerTokens(TOKENS).identify(request("Bearer away"))


async def test_kinds_of_tokens_are_asked_in_turn() -> None:
    other = Knows(theirs=GOOD, old=UnauthorizedError("nor here"))
    union = TokenUnion(TOKENS, other)
    assert await union.identify("theirs", ()) is GOOD
    assert await union.identify("nobodys", ()) is None
    with pytest.raises(UnauthorizedError, match=r"^\[the token ended yesterday, nor here\]$"):
        await union.identify("old", ())
