"""Tokens of ServiceAccounts at the HTTPS door: requested, used, reviewed, ended; and open watches end with their credential."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, SERVICE_ACCOUNTS
from hub.ports import Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.managedclusteraddons import service as addons
from machinery.identity import ClusterName, CredentialId
from machinery.meta.objects import Key
from machinery.pki import unverified_claims
from tests.fakes.fleetwork import addon, cluster, put, remove
from tests.integration.https_door.conftest import ACCOUNTS, CLUSTERS, HubUnderTest, Visitor, Watch, admin_of, bearer, holder

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
USER = "system:serviceaccount:default:metrics"


@pytest.fixture
async def admin(hub: HubUnderTest) -> Visitor:
    return await admin_of(hub)


async def ask_token(admin: Visitor, spec: Any = None, **metadata: str) -> tuple[int, Any]:
    return await admin.ask("POST", f"{ACCOUNTS}/metrics/token", {"metadata": metadata, "spec": spec or {}})


async def make(admin: Visitor) -> str:
    """The account's uid."""
    return str((await admin.ask("POST", ACCOUNTS, {"metadata": {"name": "metrics"}}))[1]["metadata"]["uid"])


async def review(admin: Visitor, token: str, *audiences: str) -> Any:
    status, answer = await admin.ask("POST", REVIEWS, {"spec": {"token": token, "audiences": list(audiences)}})
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
    status, answer = await bearer(hub, answer["status"]["token"]).get(CLUSTERS)
    assert (status, f'User "{USER}" cannot list' in answer["message"]) == (403, True)

    claims = unverified_claims(await admin.token("metrics", expirationSeconds=2**32)) or {}
    assert claims["exp"] - claims["iat"] == 366 * 24 * 3600

    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token?dryRun=All", {"spec": {}})
    assert (status, answer["status"]["token"]) == (201, "")


async def test_a_token_request_that_cannot_be_granted_is_refused_with_the_reason(admin: Visitor) -> None:
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
        status, answer = await ask_token(admin, spec)
        assert (status, words in answer["message"]) == (code, True), answer

    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token", {})
    assert (status, "spec" in answer["message"]) == (422, True), answer


async def test_a_token_review_says_whose_a_token_is_and_why_one_is_refused(hub: HubUnderTest, admin: Visitor) -> None:
    uid, status = await make(admin), await review(admin, await admin.token("metrics"))
    assert status["authenticated"] is True
    assert status["audiences"] == ["https://kubernetes.default.svc"]
    assert status["user"].pop("extra")["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert status["user"] == {"username": USER, "uid": uid, "groups": groups}

    vault = await admin.token("metrics", audiences=["vault"])
    assert (await review(admin, vault, "vault", "other"))["audiences"] == ["vault"]
    refused = await review(admin, vault)
    assert (refused.get("authenticated"), refused["user"]) == (None, {})
    assert "is invalid for the target audiences" in refused["error"]

    status, answer = await admin.ask("POST", REVIEWS, {"spec": {}})
    assert (status, answer["message"]) == (400, "token is required for TokenReview in authentication")

    token = await admin.token("metrics")
    assert (await review(admin, "guess"))["error"] == "invalid bearer token"
    assert (await review(admin, token[:-4] + "AAAA"))["error"] == "invalid bearer token"
    assert (await bearer(hub, token).get("/version"))[0] == 200
    await admin.ask("DELETE", f"{ACCOUNTS}/metrics")
    assert (await review(admin, token))["error"] == 'serviceaccounts "metrics" not found'
    status, answer = await bearer(hub, token).get("/version")
    assert (status, answer["message"]) == (401, "Unauthorized")
    await make(admin)
    assert (await bearer(hub, token).get("/version"))[0] == 401, "the next account of this name is another one"


@pytest.mark.kubectl
async def test_kubectl_makes_and_uses_a_token(hub: HubUnderTest) -> None:
    await hub.output("kubectl create serviceaccount metrics")
    line = "kubectl create token metrics --duration=20m --audience=https://kubernetes.default.svc"
    token = (await hub.output(line)).strip()
    claims = unverified_claims(token) or {}
    assert claims["exp"] - claims["iat"] == 1200
    assert json.loads(await hub.output("kubectl create token metrics -o json"))["kind"] == "TokenRequest"
    refused = f'User "{USER}" cannot list resource "managedclusters"'
    await hub.runs(("kubectl get managedclusters", 1, refused), path=hub.token_kubeconfig("metrics", token))


EDGE = f"{CLUSTERS}?watch=1&fieldSelector=metadata.name%3Dedge1"


@asynccontextmanager
async def watching(hub: HubUnderTest, token: str) -> AsyncIterator[Watch]:
    """A watch of edge1."""
    async with bearer(hub, token).watch(EDGE) as watch:
        assert await watch.type() == "ADDED"
        yield watch


async def test_open_watches_end_with_the_token_that_opened_them(hub: HubUnderTest, admin: Visitor) -> None:
    async def bootstrap(lifetime: timedelta = timedelta(hours=1)) -> tuple[CredentialId, str]:
        record, token = await hub.store.run(
            credentials.create_token, CredentialTerms(ClusterName("edge1"), None, lifetime), "ann"
        )
        return record.id, token

    await hub.join("edge1")
    async with watching(hub, (await bootstrap(timedelta(seconds=2)))[1]) as expires:
        await expires.broken()

    await make(admin)
    account = await admin.token("metrics")
    await admin.bind("view", "ServiceAccount", "metrics", namespace="default")
    await bearer(hub, account).until(CLUSTERS, 200)
    (first, token), (_, other) = await bootstrap(), await bootstrap()
    async with watching(hub, token) as revoked, watching(hub, account) as deleted, watching(hub, other) as stays:
        await hub.store.run(credentials.revoke, first)
        await revoked.broken()
        assert deleted.is_open
        assert (await admin.ask("DELETE", f"{ACCOUNTS}/metrics"))[0] == 200
        await deleted.broken()
        assert stays.is_open


BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
EDGE1, EDGE2 = Key("edge1", "metrics"), Key("edge2", "metrics")


async def asks(visitor: Visitor, namespace: str, account: str) -> int:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    return (await visitor.ask("POST", path, {"spec": {}}))[0]


async def settled(visitor: Visitor, status: int) -> None:
    """Returns when a request for the add-on's own token is answered so."""
    async with asyncio.timeout(10):
        while await asks(visitor, "edge1", "metrics-agent") != status:
            pass


def fill(tx: Transaction) -> None:
    for key in (EDGE1, EDGE2):
        put(tx, MANAGED_CLUSTERS, cluster(key.namespace))
        put(tx, ADDONS, addon(key.name, key.namespace, registrations=BY_TOKEN))
        addons.update_token(tx, key, "test")
    put(tx, SERVICE_ACCOUNTS, {"metadata": {"name": "other", "namespace": "edge1"}})


async def test_an_agent_asks_for_the_tokens_of_its_own_add_ons_alone(hub: HubUnderTest) -> None:
    await hub.store.run(fill)
    agent = holder(hub, await hub.agent("edge1"))
    await settled(agent, 201)
    assert (await asks(agent, "edge1", "other"), await asks(agent, "edge2", "metrics-agent")) == (403, 403)
    await hub.store.run(remove, ADDONS, "metrics", "edge1")
    await hub.store.run(addons.update_token, EDGE1, "test")
    await settled(agent, 403)
