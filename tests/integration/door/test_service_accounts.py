"""ServiceAccounts' tokens at the door: asked for, used, reviewed, ended; by the API and by kubectl."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from machinery import logs
from machinery.pki import unverified_claims
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder, nobody
from tests.integration.door.test_tokens import get

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
USER = "system:serviceaccount:default:metrics"


@pytest.fixture
async def admin(hub: HubUnderTest) -> Visitor:
    return holder(hub, await hub.admin())


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


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": 2**32 + 1}, 422, "may not specify a duration larger than 2^32 seconds"),
        ({"audiences": [""]}, 422, "spec.audiences"),
        (
            {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}},
            400,
            "cannot bind token to object of type v1, Kind=Pod",
        ),
        ({"expirationSeconds": "soon"}, 400, "expirationSeconds"),
    ],
)
async def test_a_token_request_that_cannot_be_granted_is_refused(admin: Visitor, spec: Any, code: int, words: str) -> None:
    await make(admin)
    status, answer = await ask_token(admin, spec)
    assert (status, words in answer["message"]) == (code, True), answer


async def test_no_token_for_who_is_not_there_and_none_by_another_name(admin: Visitor) -> None:
    assert (await ask_token(admin))[0] == 404
    await make(admin)
    assert (await ask_token(admin, name="other"))[0] == 400
    assert (await admin.get(f"{ACCOUNTS}/metrics/token"))[0] == 405


async def test_a_token_request_without_a_spec_is_refused_and_no_defect(admin: Visitor) -> None:
    await make(admin)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token", asked)
    assert (status, "spec" in answer["message"]) == (422, True), answer


async def test_a_year_is_the_longest(admin: Visitor) -> None:
    await make(admin)
    claims = unverified_claims(await token_of(admin, expirationSeconds=2**32)) or {}
    assert claims["exp"] - claims["iat"] == 366 * 24 * 3600


async def test_a_dry_run_gives_no_token(admin: Visitor) -> None:
    await make(admin)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, answer = await admin.ask("POST", f"{ACCOUNTS}/metrics/token?dryRun=All", body)
    assert (status, answer["status"]["token"]) == (201, "")


async def test_a_review_says_who_a_token_is(admin: Visitor) -> None:
    uid = await make(admin)
    status = await review(admin, await token_of(admin))
    assert status["authenticated"] is True
    assert status["audiences"] == ["https://kubernetes.default.svc"]
    extra = status["user"].pop("extra")
    assert extra["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    groups = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]
    assert status["user"] == {"username": USER, "uid": uid, "groups": groups}


async def test_a_review_knows_for_whom_a_token_is(admin: Visitor) -> None:
    await make(admin)
    vault = await token_of(admin, audiences=["vault"])
    assert (await review(admin, vault, "vault", "other"))["audiences"] == ["vault"]
    refused = await review(admin, vault)
    assert (refused.get("authenticated"), refused["user"]) == (None, {})
    assert "is invalid for the target audiences" in refused["error"]


async def test_a_review_says_why_a_token_is_not_good(admin: Visitor) -> None:
    await make(admin)
    token = await token_of(admin)
    assert (await review(admin, "guess"))["error"] == "invalid bearer token"
    assert (await review(admin, token[:-4] + "AAAA"))["error"] == "invalid bearer token"
    await admin.ask("DELETE", f"{ACCOUNTS}/metrics")
    assert (await review(admin, token))["error"] == 'serviceaccounts "metrics" not found'


async def test_a_review_needs_a_token(admin: Visitor) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}}
    status, answer = await admin.ask("POST", REVIEWS, body)
    assert (status, answer["message"]) == (400, "token is required for TokenReview in authentication")


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
