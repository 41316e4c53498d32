"""Tokens of ServiceAccounts at the HTTPS door: requested, used, reviewed, ended; and open watches end with their credential."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hub.apiserver.storage import ServiceStorage
from hub.domain.change import ADDONS, MANAGED_CLUSTERS, SERVICE_ACCOUNTS, Key
from hub.ports import Transaction
from hub.services import addon_tokens, credentials
from hub.services.credentials import Terms
from machinery import logs
from machinery.apiserver.access import AllowEverything
from machinery.apiserver.filters import Filters
from machinery.apiserver.kinds.core import SERVICE_ACCOUNT
from machinery.apiserver.resource import Group
from machinery.apiserver.server import ApiServer
from machinery.apiserver.serving import serve
from machinery.clock import SystemClock
from machinery.pki import unverified_claims
from machinery.product import GROUP_SUFFIX
from tests.fakes.fleetwork import addon, cluster, put, remove
from tests.integration.door.conftest import ACCOUNTS, CLUSTERS, HubUnderTest, Visitor, Watch, admin_of, holder, nobody
from tests.integration.door.test_bootstrap_credentials import get

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
USER = "system:serviceaccount:default:metrics"


@pytest.fixture
async def admin(hub: HubUnderTest) -> Visitor:
    return await admin_of(hub)


async def make(admin: Visitor) -> str:
    """The account's uid."""
    document = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "metrics"}}
    status, made = await admin.ask("POST", ACCOUNTS, document)
    assert status == 201
    return str(made["metadata"]["uid"])


async def ask_token(admin: Visitor, spec: Any = None, **metadata: str) -> tuple[int, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": metadata, "spec": spec or {}}
    return await admin.ask("POST", f"{ACCOUNTS}/metrics/token", body)


async def token_of(admin: Visitor, **spec: Any) -> str:
    status, answer = await ask_token(admin, spec)
    assert status == 201, answer
    return str(answer["status"]["token"])


async def review(admin: Visitor, token: str, *audiences: str) -> Any:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    if audiences:
        body["spec"]["audiences"] = list(audiences)  # type: ignore[index]
    status, answer = await admin.ask("POST", REVIEWS, body)
    assert status == 201, answer
    return answer["status"]


async def test_a_token_request_is_answered_as_kubernetes_answers(hub: HubUnderTest, admin: Visitor) -> None:
    uid = await make(admin)
    status, answer = await ask_token(admin)
    assert (status, answer["kind"], answer["metadata"]["name"]) == (201, "TokenRequest", "metrics")
    assert answer["spec"] == {
        "audiences": ["https://kubernetes.default.svc"],
        "expirationSeconds": 3600,
        "boundObjectRef": None,
    }
    claims = unverified_claims(answer["status"]["token"]) or {}
    assert claims["kubernetes.io"]["serviceaccount"] == {"name": "metrics", "uid": uid}
    status, answer = await get(nobody(hub), CLUSTERS, answer["status"]["token"])
    assert (status, f'User "{USER}" cannot list' in answer["message"]) == (403, True)

    claims = unverified_claims(await token_of(admin, expirationSeconds=2**32)) or {}
    assert claims["exp"] - claims["iat"] == 366 * 24 * 3600

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token?dryRun=All", body)
    assert (status, answer["status"]["token"]) == (201, "")


async def test_a_token_request_that_cannot_be_granted_is_refused_with_the_reason(
    admin: Visitor, subtests: pytest.Subtests
) -> None:
    assert (await ask_token(admin))[0] == 404
    await make(admin)
    assert (await ask_token(admin, name="other"))[0] == 400
    assert (await admin.get(f"{ACCOUNTS}/metrics/token"))[0] == 405

    for spec, code, words in (
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": 2**32 + 1}, 422, "may not specify a duration larger than 2^32 seconds"),
        ({"audiences": [""]}, 422, "spec.audiences"),
        (
            {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}},
            400,
            "cannot bind token to object of type v1, Kind=Pod",
        ),
        ({"expirationSeconds": "soon"}, 400, "expirationSeconds"),
    ):
        with subtests.test(words=words):
            status, answer = await ask_token(admin, spec)
            assert (status, words in answer["message"]) == (code, True), answer

    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token", asked)
    assert (status, "spec" in answer["message"]) == (422, True), answer


async def test_a_token_review_says_whose_a_token_is_and_why_one_is_refused(admin: Visitor) -> None:
    uid = await make(admin)
    status = await review(admin, await token_of(admin))
    assert status["authenticated"] is True
    assert status["audiences"] == ["https://kubernetes.default.svc"]
    extra = status["user"].pop("extra")
    assert extra["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert status["user"] == {"username": USER, "uid": uid, "groups": groups}

    vault = await token_of(admin, audiences=["vault"])
    assert (await review(admin, vault, "vault", "other"))["audiences"] == ["vault"]
    refused = await review(admin, vault)
    assert (refused.get("authenticated"), refused["user"]) == (None, {})
    assert "is invalid for the target audiences" in refused["error"]

    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}}
    status, answer = await admin.ask("POST", REVIEWS, body)
    assert (status, answer["message"]) == (400, "token is required for TokenReview in authentication")

    token = await token_of(admin)
    assert (await review(admin, "guess"))["error"] == "invalid bearer token"
    assert (await review(admin, token[:-4] + "AAAA"))["error"] == "invalid bearer token"
    await admin.ask("DELETE", f"{ACCOUNTS}/metrics")
    assert (await review(admin, token))["error"] == 'serviceaccounts "metrics" not found'


async def test_deleting_an_account_ends_its_tokens_at_once(hub: HubUnderTest, admin: Visitor) -> None:
    await make(admin)
    token = await token_of(admin)
    assert (await get(nobody(hub), "/version", token))[0] == 200
    await admin.ask("DELETE", f"{ACCOUNTS}/metrics")
    status, answer = await get(nobody(hub), "/version", token)
    assert (status, answer["message"]) == (401, "Unauthorized")
    await make(admin)
    assert (await get(nobody(hub), "/version", token))[0] == 401, "the next account of this name is another one"


@pytest.mark.kubectl
async def test_kubectl_makes_and_uses_a_token(hub: HubUnderTest) -> None:
    assert (await hub.kubectl("create", "serviceaccount", "metrics")).code == 0
    made = await hub.kubectl("create", "token", "metrics", "--duration=20m", "--audience=https://kubernetes.default.svc")
    assert made.code == 0, made.err
    token = made.out.strip()
    claims = unverified_claims(token) or {}
    assert claims["exp"] - claims["iat"] == 1200
    whole = json.loads((await hub.kubectl("create", "token", "metrics", "-o", "json")).out)
    assert whole["kind"] == "TokenRequest"
    ended = await hub.kubectl("get", "managedclusters", path=hub.token_kubeconfig("metrics", token))
    assert f'User "{USER}" cannot list resource "managedclusters"' in ended.err, ended


async def test_no_token_stays_in_log_records_or_database(hub: HubUnderTest, admin: Visitor, tmp_path: Path) -> None:
    """The canary: a token and its signature, looked for in all that the hub has said and written."""
    said = io.StringIO()
    logs.configure("debug", stream=said)
    await make(admin)
    token = await token_of(admin)
    await review(admin, token)
    await review(admin, token, "vault")
    await get(nobody(hub), CLUSTERS, token)
    await get(nobody(hub), CLUSTERS, token[:-4] + "AAAA")
    await admin.ask("DELETE", f"{ACCOUNTS}/metrics")
    await get(nobody(hub), CLUSTERS, token)
    await hub.stop()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "hub.db", tmp_path / "hub.db-wal") if path.exists())
    text = said.getvalue()
    for canary in token.split("."):
        assert canary not in text
        assert canary.encode() not in stored
    assert "bearer token refused" in text


@pytest.fixture
async def open_to_all(hub: HubUnderTest) -> AsyncIterator[str]:
    """A server that allows everything to whoever comes through the hub's entrance."""
    entrance = hub.operators.door.entrance
    server = ApiServer(
        (Group("", (SERVICE_ACCOUNT,)),),
        ServiceStorage(hub.store, hub.operators.door.feed, GROUP_SUFFIX),
        authenticator=entrance.authenticator,
        authorizer=AllowEverything(),
        clock=SystemClock(),
        version={},
        filters=Filters(impersonation=(entrance.presence,)),
    )
    listening = await serve(server.application(), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listening.port}"
    await listening.close()


@asynccontextmanager
async def watching(url: str, token: str) -> AsyncIterator[Watch]:
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        headers = {"Authorization": f"Bearer {token}"}
        asked = session.get(f"{url}{ACCOUNTS}?watch=1", headers=headers)
        response = await stack.enter_async_context(asked)
        assert response.status == 200
        yield Watch(response)


async def bootstrap(hub: HubUnderTest, lifetime: timedelta = timedelta(hours=1)) -> tuple[str, Callable[[], Awaitable[None]]]:
    """A bootstrap token, and what revokes it."""
    record, token = await hub.store.run(credentials.create_token, Terms(None, None, lifetime), "ann")

    async def revoke() -> None:
        await hub.store.run(credentials.revoke, record.id)

    return token, revoke


async def test_open_watches_end_with_the_bootstrap_token_that_opened_them(hub: HubUnderTest, open_to_all: str) -> None:
    await make(await admin_of(hub))
    token, _ = await bootstrap(hub, timedelta(seconds=2))
    async with watching(open_to_all, token) as mine:
        assert await mine.type() == "ADDED"
        await mine.broken()

    (token, revoke), (other, _) = await bootstrap(hub), await bootstrap(hub)
    async with watching(open_to_all, token) as mine, watching(open_to_all, other) as theirs:
        assert [await mine.type(), await theirs.type()] == ["ADDED", "ADDED"]
        await revoke()
        await mine.broken()
        assert theirs.is_open


async def test_a_deleted_service_account_ends_its_watches(hub: HubUnderTest, open_to_all: str) -> None:
    admin = await admin_of(hub)
    await make(admin)
    token, (other, _) = await token_of(admin), await bootstrap(hub)
    async with watching(open_to_all, token) as mine, watching(open_to_all, other) as theirs:
        assert [await mine.type(), await theirs.type()] == ["ADDED", "ADDED"]
        assert (await admin.ask("DELETE", f"{ACCOUNTS}/metrics"))[0] == 200
        await mine.broken()
        assert await theirs.type() == "DELETED"


BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
EDGE1, EDGE2 = Key("edge1", "metrics"), Key("edge2", "metrics")


async def asks(visitor: Visitor, namespace: str, account: str) -> int:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, _ = await visitor.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
    return status


async def settled(visitor: Visitor, status: int) -> None:
    """Returns when a request for the add-on's own token is answered so."""
    async with asyncio.timeout(10):
        while await asks(visitor, "edge1", "metrics-agent") != status:
            pass


def fill(tx: Transaction) -> None:
    for key in (EDGE1, EDGE2):
        put(tx, MANAGED_CLUSTERS, cluster(key.namespace))
        put(tx, ADDONS, addon(key.name, key.namespace, registrations=BY_TOKEN))
        addon_tokens.settle(tx, key, "test")
    put(tx, SERVICE_ACCOUNTS, {"metadata": {"name": "other", "namespace": "edge1"}})


async def test_an_agent_asks_for_the_tokens_of_its_own_add_ons_alone(hub: HubUnderTest) -> None:
    await hub.store.run(fill)
    agent = holder(hub, await hub.agent("edge1"))
    await settled(agent, 201)
    assert await asks(agent, "edge1", "other") == 403
    assert await asks(agent, "edge2", "metrics-agent") == 403
    await hub.store.run(remove, ADDONS, "metrics", "edge1")
    await hub.store.run(addon_tokens.settle, EDGE1, "test")
    await settled(agent, 403)
