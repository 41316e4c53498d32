"""Tokens of ServiceAccounts, and the keys of OIDC issuers."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from machinery import pki
from machinery.apiserver.authn.issuer_keys import APART, CACHE_TTL, STALE, IssuerKeys, JsonDocuments
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.kinds.tokens import Account, ServiceAccountTokenIssuer, ServiceAccountTokens, find_account
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import NotFoundError, UnauthorizedError, UnavailableError
from machinery.meta.objects import Key
from machinery.meta.urls import https_url_error
from machinery.pki import TokenKeys
from machinery.runtime.clock import ManualClock
from tests.checks import awaited_refusal, check_refusal_of, present
from tests.fakes.identity import SigningKey

ANN = Actor("ann")
HOUR = timedelta(hours=1)
PLACE = Key("edge1", "metrics")


class Stage:
    """One account, its issuer, and who checks its tokens."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage()
        self.issuer = ServiceAccountTokenIssuer(
            "urn:uuid:1", ("https://kubernetes.default.svc",), TokenKeys([pki.generate_key()])
        )
        self.tokens = ServiceAccountTokens(self.issuer, self.storage, self.clock)

    async def make(self) -> Account:
        metadata = {"name": PLACE.name, "namespace": PLACE.namespace}
        document = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        await self.storage.create(SERVICE_ACCOUNT.key, PLACE, document, ANN)
        return await find_account(self.storage, PLACE.namespace, PLACE.name)

    async def delete(self) -> None:
        await self.storage.update(SERVICE_ACCOUNT.key, PLACE, lambda _old: None, ANN)

    def token(self, account: Account) -> str:
        now = self.clock.now()
        return self.issuer.token(account, self.issuer.audiences, now, now + HOUR)

    async def refused(self, token: str) -> str:
        return present(await awaited_refusal(UnauthorizedError, self.tokens.identify(token, ()))).message


async def test_token_is_valid_only_within_its_time_and_while_its_account_exists() -> None:
    stage, second = Stage(), timedelta(seconds=1)
    old = await stage.make()
    token = stage.token(old)
    for valid_at, refused_at, why in ((-59 * second, -68 * second, "is not valid yet"), (HOUR - second, HOUR, "has expired")):
        stage.clock.advance(valid_at)
        assert await stage.tokens.identify(token, ())
        stage.clock.advance(refused_at - valid_at)
        assert await stage.refused(token) == f"service account token {why}"
        stage.clock.advance(-refused_at)

    def going(old: Any) -> Any:
        return {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}}

    await stage.storage.update(SERVICE_ACCOUNT.key, PLACE, going, ANN)
    assert await stage.refused(token) == "service account edge1/metrics has been deleted"
    await check_refusal_of(NotFoundError, find_account(stage.storage, PLACE.namespace, PLACE.name))
    await stage.delete()
    assert "not found" in await stage.refused(token)
    new = await stage.make()
    assert await stage.refused(token) == f"service account UID ({new.uid}) does not match claim ({old.uid})"
    assert await stage.tokens.identify(stage.token(new), ())


ISSUER = "https://issuer.example.org/realm"


class Elsewhere(JsonDocuments):
    """The issuer's documents, as they stand."""

    def __init__(self) -> None:
        self.keys: list[SigningKey] = []
        self.asked: list[str] = []
        self.away = False
        self.issuer = ISSUER
        self.jwks_uri = f"{ISSUER}/keys"

    def issuer_keys(self, clock: ManualClock, *keys: SigningKey) -> IssuerKeys:
        self.keys = list(keys)
        return IssuerKeys(ISSUER, self, clock)

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


async def test_keys_are_fetched_once_and_again_for_a_new_key_at_bounded_rate() -> None:
    clock, elsewhere = ManualClock(), Elsewhere()
    old, new, made_up = SigningKey("old"), SigningKey("new"), SigningKey("made-up")
    keys = elsewhere.issuer_keys(clock, old)
    for _ in range(3):
        assert await keys.verified(old.sign({"sub": "ann"})) == {"sub": "ann"}
    assert elsewhere.asked == ["/.well-known/openid-configuration", "/keys"]
    elsewhere.keys = [new]
    for _ in range(5):
        await check_refusal_of(UnauthorizedError, keys.verified(new.sign({})), match="no such key")
    assert keys.fetches == 1
    clock.advance(APART)
    assert await keys.verified(new.sign({"sub": "ann"})) == {"sub": "ann"}
    for _ in range(5):
        await check_refusal_of(UnauthorizedError, keys.verified(made_up.sign({})), match="no such key")
    assert keys.fetches == 2
    await check_refusal_of(UnauthorizedError, keys.verified(old.sign({})), match="no such key")


async def test_withdrawn_key_expires_and_an_outage_is_bridged_for_a_while() -> None:
    clock, elsewhere = ManualClock(), Elsewhere()
    old, new = SigningKey("old"), SigningKey("new")
    keys = elsewhere.issuer_keys(clock, old)
    await keys.verified(old.sign({}))
    elsewhere.keys = [new]
    clock.advance(CACHE_TTL - timedelta(seconds=1))
    await keys.verified(old.sign({}))
    clock.advance(timedelta(seconds=1))
    await check_refusal_of(UnauthorizedError, keys.verified(old.sign({})))

    key, clock, elsewhere = SigningKey(), ManualClock(), Elsewhere()
    keys = elsewhere.issuer_keys(clock, key)
    await keys.verified(key.sign({}))
    elsewhere.away = True
    clock.advance(STALE - timedelta(seconds=1))
    await keys.verified(key.sign({}))
    clock.advance(timedelta(seconds=1))
    await check_refusal_of(UnavailableError, keys.verified(key.sign({})), match="cannot be reached")
    elsewhere.away = False
    clock.advance(APART)
    await keys.verified(key.sign({}))


async def test_concurrent_and_cancelled_callers_share_one_fetch() -> None:
    key = SigningKey()
    keys = Elsewhere().issuer_keys(ManualClock(), key)
    found = await asyncio.gather(*(keys.verified(key.sign({"n": n})) for n in range(10)))
    assert ([claims["n"] for claims in found], keys.fetches) == (list(range(10)), 1)

    for background_task in (True, False):
        elsewhere = Held()
        keys = elsewhere.issuer_keys(ManualClock(), key)
        first = asyncio.create_task(keys.verified(key.sign({"sub": "eve"})))
        await elsewhere.asked_once.wait()
        first.cancel()
        if background_task:
            with pytest.raises(asyncio.CancelledError):
                await first
        second = asyncio.create_task(keys.verified(key.sign({"sub": "ann"})))
        elsewhere.go_on.set()
        assert (await second, await keys.verified(key.sign({"sub": "bob"}))) == ({"sub": "ann"}, {"sub": "bob"})
        assert keys.fetches == 1


async def test_issuer_configuration_must_be_its_own_and_https() -> None:
    for issuer, jwks_uri in (("https://evil.example.org", f"{ISSUER}/keys"), (ISSUER, "http://issuer/keys"), (ISSUER, "")):
        key, elsewhere = SigningKey(), Elsewhere()
        elsewhere.issuer, elsewhere.jwks_uri = issuer, jwks_uri
        await check_refusal_of(UnavailableError, elsewhere.issuer_keys(ManualClock(), key).verified(key.sign({})))
    elsewhere = Elsewhere()
    await check_refusal_of(UnauthorizedError, elsewhere.issuer_keys(ManualClock(), SigningKey()).verified("guess"))
    assert elsewhere.asked == []

    cases = ("https://a", "https://a.example.org:8443/x/y", "https://[::1]:1/x")
    assert [url for url in cases if https_url_error(url) is not None] == []
    wrong = ("", None, "a", "http://a", *(f"https://{rest}" for rest in ("", "u:p@a", "a#x", "a?x=1", "a:99999", "a\n")))
    assert [url for url in wrong if not https_url_error(url)] == []


class Held(Elsewhere):
    """An issuer that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_once, self.go_on = asyncio.Event(), asyncio.Event()

    async def get(self, url: str) -> Mapping[str, Any]:
        self.asked_once.set()
        await self.go_on.wait()
        return await super().get(url)
