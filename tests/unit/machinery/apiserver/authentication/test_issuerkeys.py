"""An issuer's keys: when they are fetched, how long they count, and that nobody makes the hub ask at will."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from machinery.apiserver.authentication.asking import Documents, https_flaw
from machinery.apiserver.authentication.issuerkeys import APART, FRESH, STALE, IssuerKeys
from machinery.clock import ManualClock
from machinery.errors import UnauthorizedError, UnavailableError
from tests.fakes.identity import SigningKey

ISSUER = "https://issuer.example.org/realm"


class Elsewhere(Documents):
    """The issuer's documents, as they stand."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.away = False
        self.issuer = ISSUER
        self.jwks_uri = f"{ISSUER}/keys"

    async def get(self, url: str) -> Mapping[str, Any]:
        self.asked.append(url.removeprefix(ISSUER))
        await asyncio.sleep(0)
        if self.away:
            raise UnavailableError("issuer.example.org cannot be reached")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return {"issuer": self.issuer, "jwks_uri": self.jwks_uri}
        return {"keys": [key.jwk for key in self.keys]}

    async def post(self, url: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise NotImplementedError(url, body)

    async def reach(self, url: str) -> None:
        raise NotImplementedError(url)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_keys_are_discovered_once_and_kept(clock: ManualClock) -> None:
    key = SigningKey()
    elsewhere = Elsewhere(key)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    for _ in range(3):
        assert await keys.verified(key.sign({"sub": "ann"})) == {"sub": "ann"}
    assert elsewhere.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_a_key_that_came_since_is_found_and_fetches_have_a_time_between_them(clock: ManualClock) -> None:
    old, new, made_up = SigningKey("old"), SigningKey("new"), SigningKey("made-up")
    elsewhere = Elsewhere(old)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    await keys.verified(old.sign({}))
    elsewhere.keys = [new]
    for _ in range(5):
        with pytest.raises(UnauthorizedError, match="no such key"):
            await keys.verified(new.sign({}))
    assert keys.fetches == 1
    clock.advance(APART)
    assert await keys.verified(new.sign({"sub": "ann"})) == {"sub": "ann"}
    for _ in range(5):
        with pytest.raises(UnauthorizedError, match="no such key"):
            await keys.verified(made_up.sign({}))
    assert keys.fetches == 2
    with pytest.raises(UnauthorizedError, match="no such key"):
        await keys.verified(old.sign({}))


async def test_a_withdrawn_key_is_forgotten_when_the_keys_are_not_fresh(clock: ManualClock) -> None:
    old, new = SigningKey("old"), SigningKey("new")
    elsewhere = Elsewhere(old)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    await keys.verified(old.sign({}))
    elsewhere.keys = [new]
    clock.advance(FRESH - timedelta(seconds=1))
    await keys.verified(old.sign({}))
    clock.advance(timedelta(seconds=1))
    with pytest.raises(UnauthorizedError):
        await keys.verified(old.sign({}))


async def test_an_issuer_that_is_away_locks_nobody_out_for_a_while_and_then_everybody(clock: ManualClock) -> None:
    key = SigningKey()
    elsewhere = Elsewhere(key)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    await keys.verified(key.sign({}))
    elsewhere.away = True
    clock.advance(STALE - timedelta(seconds=1))
    await keys.verified(key.sign({}))
    clock.advance(timedelta(seconds=1))
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await keys.verified(key.sign({}))
    elsewhere.away = False
    clock.advance(APART)
    await keys.verified(key.sign({}))


async def test_who_comes_during_a_fetch_waits_for_it(clock: ManualClock) -> None:
    key = SigningKey()
    keys = IssuerKeys(ISSUER, Elsewhere(key), clock)
    found = await asyncio.gather(*(keys.verified(key.sign({"n": n})) for n in range(10)))
    assert [claims["n"] for claims in found] == list(range(10))
    assert keys.fetches == 1


@pytest.mark.parametrize(
    ("issuer", "jwks_uri"), [("https://evil.example.org", f"{ISSUER}/keys"), (ISSUER, "http://issuer/keys"), (ISSUER, "")]
)
async def test_a_configuration_that_is_anothers_is_not_believed(clock: ManualClock, issuer: str, jwks_uri: str) -> None:
    key = SigningKey()
    elsewhere = Elsewhere(key)
    elsewhere.issuer, elsewhere.jwks_uri = issuer, jwks_uri
    with pytest.raises(UnavailableError):
        await IssuerKeys(ISSUER, elsewhere, clock).verified(key.sign({}))


async def test_what_is_no_signed_token_asks_nobody(clock: ManualClock) -> None:
    elsewhere = Elsewhere(SigningKey())
    with pytest.raises(UnauthorizedError):
        await IssuerKeys(ISSUER, elsewhere, clock).verified("guess")
    assert elsewhere.asked == []


@pytest.mark.parametrize("url", ["https://a", "https://a.example.org:8443/x/y", "https://[::1]:1/x"])
def test_addresses_that_can_be_asked(url: str) -> None:
    assert https_flaw(url) is None


@pytest.mark.parametrize(
    "url",
    ["", None, "http://a", "https://", "https://u:p@a", "https://a#x", "https://a?x=1", "https://a:99999", "https://a\n", "a"],
)
def test_addresses_that_cannot_be_asked(url: object) -> None:
    assert https_flaw(url)


class Held(Elsewhere):
    """An issuer that answers when it is let."""

    def __init__(self, *keys: SigningKey) -> None:
        super().__init__(*keys)
        self.asked_once, self.go_on = asyncio.Event(), asyncio.Event()

    async def get(self, url: str) -> Mapping[str, Any]:
        self.asked_once.set()
        await self.go_on.wait()
        return await super().get(url)


async def test_who_goes_away_during_a_fetch_takes_it_from_nobody(clock: ManualClock) -> None:
    key = SigningKey()
    elsewhere = Held(key)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    first = asyncio.create_task(keys.verified(key.sign({"sub": "eve"})))
    await elsewhere.asked_once.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(keys.verified(key.sign({"sub": "ann"})))
    elsewhere.go_on.set()
    assert await second == {"sub": "ann"}
    assert keys.fetches == 1


async def test_a_fetch_goes_on_when_nobody_waits_for_it(clock: ManualClock) -> None:
    key = SigningKey()
    elsewhere = Held(key)
    keys = IssuerKeys(ISSUER, elsewhere, clock)
    only = asyncio.create_task(keys.verified(key.sign({"sub": "eve"})))
    await elsewhere.asked_once.wait()
    only.cancel()
    elsewhere.go_on.set()
    assert await keys.verified(key.sign({"sub": "ann"})) == {"sub": "ann"}
    assert await keys.verified(key.sign({"sub": "bob"})) == {"sub": "bob"}
    assert keys.fetches == 1
