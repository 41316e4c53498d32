"""Tokens of ServiceAccounts: whose they are, for whom, until when, and what ends them."""

from datetime import timedelta
from typing import Any

import pytest

from machinery import pki
from machinery.apiserver.authentication import CREDENTIAL_ID, Identity
from machinery.apiserver.authentication.serviceaccounts import Account, Accounts, Issuer, ServiceAccountTokens
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.storage import Actor, Key
from machinery.clock import ManualClock
from machinery.errors import NotFoundError, UnauthorizedError
from machinery.pki import TokenKeys, unverified_claims

ANN = Actor("ann")
HOUR = timedelta(hours=1)
PLACE = Key("edge1", "metrics")


class Stage:
    """One account, its issuer, and who checks its tokens."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage()
        self.accounts = Accounts(self.storage)
        self.issuer = Issuer("urn:uuid:1", ("https://kubernetes.default.svc",), TokenKeys([pki.generate_key()]))
        self.tokens = ServiceAccountTokens(self.issuer, self.accounts, self.clock)

    async def make(self, **metadata: Any) -> Account:
        document = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": PLACE.name, "namespace": PLACE.namespace, **metadata},
        }
        await self.storage.create(SERVICE_ACCOUNT.key, PLACE, document, ANN)
        return await self.accounts.find(PLACE.namespace, PLACE.name)

    async def delete(self) -> None:
        await self.storage.update(SERVICE_ACCOUNT.key, PLACE, lambda _old: None, ANN)

    def token(self, account: Account, *audiences: str, issuer: Issuer | None = None) -> str:
        now = self.clock.now()
        return (issuer or self.issuer).token(account, audiences or self.issuer.audiences, now, now + HOUR)

    async def refused(self, token: str, *audiences: str) -> str:
        with pytest.raises(UnauthorizedError) as told:
            await self.tokens.identify(token, audiences)
        return told.value.message


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_token_is_its_account_in_kubernetes_claims_and_names(stage: Stage) -> None:
    account = await stage.make()
    token = stage.token(account)
    claims = unverified_claims(token) or {}
    assert {**claims, "jti": ""} == {
        "aud": ["https://kubernetes.default.svc"],
        "exp": claims["iat"] + 3600,
        "iat": int(stage.clock.now().timestamp()),
        "iss": "urn:uuid:1",
        "jti": "",
        "kubernetes.io": {"namespace": "edge1", "serviceaccount": {"name": "metrics", "uid": account.uid}},
        "nbf": claims["iat"],
        "sub": "system:serviceaccount:edge1:metrics",
    }
    assert await stage.tokens.identify(token, ()) == Identity(
        Actor(
            "system:serviceaccount:edge1:metrics",
            ("system:serviceaccounts", "system:serviceaccounts:edge1"),
            account.uid,
            {CREDENTIAL_ID: (f"JTI={claims['jti']}",)},
        ),
        f"serviceaccount/{account.uid}",
        stage.clock.now() + HOUR,
        ("https://kubernetes.default.svc",),
    )


async def test_a_token_ends_at_its_time(stage: Stage) -> None:
    token = stage.token(await stage.make())
    stage.clock.advance(HOUR - timedelta(seconds=1))
    assert await stage.tokens.identify(token, ())
    stage.clock.advance(timedelta(seconds=1))
    assert await stage.refused(token) == "service account token has expired"


async def test_a_token_that_begins_later_is_not_good_yet(stage: Stage) -> None:
    token = stage.token(await stage.make())
    stage.clock.advance(timedelta(seconds=-59))
    assert await stage.tokens.identify(token, ())
    stage.clock.advance(timedelta(seconds=-9))
    assert await stage.refused(token) == "service account token is not valid yet"


async def test_a_token_ends_with_its_account_at_once(stage: Stage) -> None:
    token = stage.token(await stage.make())
    await stage.delete()
    assert "not found" in await stage.refused(token)


async def test_a_token_ends_when_its_account_begins_to_go(stage: Stage) -> None:
    token = stage.token(await stage.make())

    def going(old: Any) -> Any:
        return {**old, "metadata": {**old["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}}

    await stage.storage.update(SERVICE_ACCOUNT.key, PLACE, going, ANN)
    assert await stage.refused(token) == "service account edge1/metrics has been deleted"
    with pytest.raises(NotFoundError):
        await stage.accounts.find(PLACE.namespace, PLACE.name)


async def test_another_account_of_the_same_name_is_another(stage: Stage) -> None:
    old = await stage.make()
    token = stage.token(old)
    await stage.delete()
    new = await stage.make()
    assert await stage.refused(token) == f"service account UID ({new.uid}) does not match claim ({old.uid})"
    assert await stage.tokens.identify(stage.token(new), ())


async def test_a_token_is_for_its_audiences_alone(stage: Stage) -> None:
    account = await stage.make()
    vault = stage.token(account, "vault", "backup")
    found = await stage.tokens.identify(vault, ("other", "vault"))
    assert found is not None
    assert found.audiences == ("vault",)
    assert "is invalid for the target audiences ['https://kubernetes.default.svc']" in await stage.refused(vault)
    assert "is invalid for the target audiences ['vault']" in await stage.refused(stage.token(account), "vault")


async def test_who_signs_with_another_key_in_our_name_is_refused(stage: Stage) -> None:
    forger = Issuer(stage.issuer.name, stage.issuer.audiences, TokenKeys([pki.generate_key()]))
    assert await stage.refused(stage.token(await stage.make(), issuer=forger)) == "invalid bearer token"


@pytest.mark.parametrize("token", ["", "guess", "0123456789abcdef.secret", "a.b.c"])
async def test_other_tokens_are_left_to_others(stage: Stage, token: str) -> None:
    assert await stage.tokens.identify(token, ()) is None


async def test_tokens_of_another_issuer_are_left_to_others(stage: Stage) -> None:
    other = Issuer("urn:uuid:2", stage.issuer.audiences, stage.issuer.keys)
    assert await stage.tokens.identify(stage.token(await stage.make(), issuer=other), ()) is None
