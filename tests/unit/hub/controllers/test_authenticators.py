"""What an authenticator says of itself: each thing that can be wrong with it, in its own condition, until it is mended."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from hub.access.examining import examine
from hub.controllers.authenticators import AGAIN, SOON, AuthenticatorStatus
from hub.domain import document as doc
from hub.domain.authenticator import JWT, KINDS, WEBHOOK
from hub.domain.change import JWT_AUTHENTICATORS, Document, Key
from hub.services import objects
from machinery.apiserver.authentication.asking import Documents
from machinery.clock import ManualClock
from machinery.errors import InvalidError, UnavailableError
from tests.fakes.identity import SigningKey
from tests.fakes.inline_store import InlineStore

ISSUER = "https://issuer.example.org"
SPECS: dict[str, dict[str, Any]] = {JWT: {"issuer": ISSUER, "audience": "muster"}, WEBHOOK: {"endpoint": "https://hook"}}
TYPES = {
    JWT: ["TLSConfigurationValid", "IssuerURLValid", "DiscoveryURLValid", "JWKSFetchValid", "Ready"],
    WEBHOOK: ["TLSConfigurationValid", "EndpointURLValid", "WebhookConnectionValid", "Ready"],
}


class Elsewhere(Documents):
    """An issuer and a webhook at once."""

    def __init__(self) -> None:
        self.away = False
        self.keys: list[dict[str, Any]] = [SigningKey().jwk]
        self.issuer = ISSUER

    def connect(self, authorities: bytes) -> Documents:
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


def written(kind: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "corp", "generation": 1}, "spec": {**SPECS[kind], **spec}}


async def found(kind: str, elsewhere: Elsewhere, **spec: Any) -> dict[str, str]:
    """Status and reason by type."""
    conditions = await examine(kind, written(kind, **spec), elsewhere.connect)
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
    wanted = AuthenticatorStatus(InlineStore(ManualClock()), lambda *_told: None).wanted(KINDS[JWT])  # type: ignore[arg-type]
    first = {"metadata": {"name": "corp", "uid": "u", "generation": 1}}
    assert [wanted(first), wanted({**first, "status": {"phase": "Ready"}})] == [True, False]
    assert wanted({"metadata": {"name": "corp", "uid": "u", "generation": 2}})
    assert wanted({"metadata": {"name": "corp", "uid": "v", "generation": 2}})
