"""BootstrapCredentials and tokens of ServiceAccounts at the HTTPS door: made, used, bound, reviewed and ended."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from hub.api.bootstrapcredentials import FAILED as NOT_ATTESTED, token_id
from hub.api.certificates import Lifetimes
from hub.api.meta.change import ADDONS, CLUSTER_SETS, MANAGED_CLUSTERS, SERVICE_ACCOUNTS
from hub.ports import Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.certificatesigningrequests import issuance, service as requests
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hubctl.errors import DONE, FAILED, NOT_FOUND
from machinery.client import kubeconfig
from machinery.identity import CertificateSubject, ClusterName, CredentialId
from machinery.meta.objects import Key
from machinery.pki import TokenKeys, build_request, generate_key, unverified_claims
from spoke.bootstraps.listing import BootstrapFile
from spoke.domain.route import Driver
from tests.checks import CASE_FILES
from tests.fakes.fleetwork import addon, cluster, put, remove
from tests.integration.https_door import conftest as door

TABLES = yaml.safe_load((CASE_FILES / "bootstrap-credentials.yaml").read_text())

CREDENTIALS = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"


async def bootstrap(hub: door.HubUnderTest, folder: Path) -> tuple[Path, str]:
    """A kubeconfig with a token for edge1, and the token."""
    _, file = await made(hub, folder, "--cluster", "edge1", "--token")
    return file, token_in(file)


def token_in(file: Path) -> str:
    return str(yaml.safe_load(file.read_bytes())["users"][0]["user"]["token"])


@pytest.mark.kubectl
async def test_a_bootstrap_token_identifies_its_credential_until_it_is_revoked(hub: door.HubUnderTest, tmp_path: Path) -> None:
    file, token = await bootstrap(hub, tmp_path)
    document = yaml.safe_load(file.read_bytes())
    assert (file.stat().st_mode & 0o777, set(document["users"][0]["user"])) == (0o600, {"token"})
    assert set(document["clusters"][0]["cluster"]) == {"server", "certificate-authority-data", "extensions"}
    connection = BootstrapFile(file).read()
    assert (connection.cluster_name, connection.address.driver) == ("edge1", Driver.CSR)
    assert b"extensions" not in connection.kubeconfig, "the agent's own kubeconfig does not carry it"
    listed = json.loads(await hub.output("hubctl get bootstrap-credentials -o json"))
    assert [item["metadata"]["name"] for item in listed["items"]] == [token_id(token)]
    assert listed["items"][0]["spec"] == {"clusterName": "edge1", "expirationSeconds": 3600, "token": True, "uses": 1}

    assert (await door.bearer(hub, token).get("/apis"))[0] == 200
    status, answer = await door.bearer(hub, token).get(f"{door.CLUSTERS}/edge1")
    assert status in (403, 404)
    assert status == 404 or f'User "system:bootstrap:{token_id(token)}" cannot get' in answer["message"]

    guesses = [f"{token_id(token)}.{index:032d}" for index in range(10)]
    assert {status for status, _ in await asyncio.gather(*(door.bearer(hub, guess).get("/apis") for guess in guesses))} == {401}

    await hub.join("edge1")
    admin = await door.admin_of(hub)
    assert (await replace(admin, headers={"Authorization": "Bearer guess"}).get(f"{door.CLUSTERS}/edge1"))[0] == 200

    path = await hub.agent("edge1")
    await hub.revoke(path)
    agent = door.holder(hub, path)
    assert (await agent.get("/apis"))[0] == 401
    assert (await replace(agent, headers=door.bearer(hub, token).headers).get("/apis"))[0] == 200

    await hub.runs(
        ("kubectl get --raw /apis", DONE, ""),
        (f"kubectl get --raw /apis --token={token[:-4]}xxxx", FAILED, "Unauthorized"),
        path=file,
    )
    await hub.output(f"kubectl get managedclusters --token={token}")
    info = json.loads(await hub.output("kubectl auth whoami -o json", path=file))["status"]["userInfo"]
    assert info["username"] == f"system:bootstrap:{token_id(token)}"
    assert info["groups"] == ["system:bootstrappers:managedcluster", "system:authenticated"]
    assert info["extra"] == {"authentication.kubernetes.io/credential-id": [f"BOOTSTRAP={token_id(token)}"]}

    assert (await admin.ask("DELETE", f"{CREDENTIALS}/{token_id(token)}"))[0] == 200
    status, answer = await door.bearer(hub, token).get("/version")
    assert (status, answer["reason"], answer["code"]) == (401, "Unauthorized", 401)
    assert re.search(r"^the bootstrap credential [0-9a-f]{16} is revoked: get a new bootstrap kubeconfig", answer["message"])
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    assert (await door.bearer(hub, wrong).get("/version"))[1]["message"] == "Unauthorized", "who guesses learns nothing"


def new_cluster(name: str, **labels: str) -> dict[str, Any]:
    kind = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
    return {**kind, "metadata": {"name": name, "labels": labels}, "spec": {"leaseDurationSeconds": 60}}


def request_for(name: str) -> dict[str, Any]:
    return door.asked_for(name, "bcdfg", name)


async def test_agents_join_by_token_within_the_bounds_of_the_credential(hub: door.HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)

    rows = ((door.CLUSTERS, new_cluster("edge2"), 403), (door.CLUSTERS, new_cluster("edge1"), 201))
    for path, body, expected in (*rows, (door.REQUESTS, request_for("edge2"), 403), (door.REQUESTS, request_for("edge1"), 201)):
        assert (await door.bearer(hub, token).ask("POST", path, body))[0] == expected
    admin = await door.admin_of(hub)
    asked = (await admin.get(door.REQUESTS))[1]["items"]
    assert [item["spec"]["username"] for item in asked] == [f"system:bootstrap:{token_id(token)}"]
    (listed,) = (await admin.get(CREDENTIALS))[1]["items"]
    status, names = listed["status"], [item["metadata"]["name"] for item in asked]
    assert (status["phase"], status["usesSpent"], status["usesHeld"]) == ("Active", 0, 1)
    assert (status["admittedClusters"], [use["requestName"] for use in status["uses"]]) == (["edge1"], names)

    _, unbound = await hub.store.run(credentials.create_token, CredentialTerms(None, 2, timedelta(hours=1)), "ann")
    for name, expected in (("edge4", 201), ("edge5", 201), ("edge6", 403)):
        code, _ = await door.bearer(hub, unbound).ask("POST", door.CLUSTERS, new_cluster(name))
        assert code == expected
    code, answer = await door.bearer(hub, unbound).ask("POST", door.REQUESTS, request_for("edge6"))
    assert (code, "of 2, 0 are spent and 2 are held for agents" in answer["message"]) == (403, True), answer


SET = "cluster.open-cluster-management.io/clusterset"


async def made(hub: door.HubUnderTest, folder: Path, *arguments: str) -> tuple[str, Path]:
    """A credential of hubctl's making: its id and the file."""
    file = folder / f"made-{uuid4().hex}.kubeconfig"
    ended = await hub.hubctl(f"create bootstrap-kubeconfig -o {file} --allow-loopback --server {hub.server}", *arguments)
    assert ended.code == DONE, ended.err
    assert "token" not in yaml.safe_load(file.read_bytes())["users"][0]["user"] or token_in(file) not in ended.out + ended.err
    return (await hub.store.read(lambda tx: list(tx.credentials.all())))[-1].id, file


async def test_a_credential_lasts_as_long_as_the_hub_gives_unless_it_is_said(tmp_path: Path) -> None:
    async with door.hub_with(tmp_path, bootstrap_lifetime=timedelta(hours=7)) as hub:
        for arguments, hours in (((), 7), (("--token",), 7), (("--expires", "2h"), 2)):
            name, _ = await made(hub, tmp_path, "--cluster", "edge1", *arguments)
            (record,) = [each for each in await hub.store.read(lambda tx: list(tx.credentials.all())) if each.id == name]
            assert record.expires_at - record.created_at == timedelta(hours=hours), arguments


async def make_set(hub: door.HubUnderTest, name: str, **selector: Any) -> None:
    spec = {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel", **selector}}
    await hub.store.run(objects.put, CLUSTER_SETS, {"metadata": {"name": name}, "spec": spec}, None, "test")


def document(**spec: Any) -> dict[str, Any]:
    kind = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "BootstrapCredential"}
    return {**kind, "metadata": {"generateName": "b-"}, "spec": {"token": True, **spec}}


async def test_a_token_for_patterns_puts_clusters_into_its_set_with_its_labels(hub: door.HubUnderTest, tmp_path: Path) -> None:
    await make_set(hub, "shops")
    name, file = await made(
        *(hub, tmp_path, "--cluster-pattern", "shop-*", "--cluster-pattern", "lab", "--cluster-set", "shops"),
        *("--label", "region=eu", "--uses", "2", "--expires", "8h", "--token"),
    )
    joining = door.bearer(hub, token_in(file))
    status, answer = await joining.ask("POST", door.CLUSTERS, new_cluster("shop-1", region="us"))
    assert (status, answer["metadata"]["labels"]) == (201, {SET: "shops", "region": "eu"})
    status, answer = await joining.ask("POST", door.CLUSTERS, new_cluster("shop-2", **{SET: "banks"}))
    assert (status, 'ManagedClusterSet "banks"' in answer["message"]) == (403, True), answer
    for path, body in ((door.CLUSTERS, new_cluster("bank-1")), (door.REQUESTS, request_for("bank-1"))):
        status, answer = await joining.ask("POST", path, body)
        assert (status, "names that match shop-*, lab" in answer["message"]) == (403, True), answer
    listed = await hub.output("hubctl get bootstrap-credentials -o wide")
    assert re.search(rf"^{name} +shop-\*,lab +0/2 +Active .* 1 +shops +region=eu +<none> +admin", listed, re.MULTILINE), listed


async def test_a_newcomer_chooses_those_labels_alone_that_an_operator_lists(tmp_path: Path) -> None:
    async with door.hub_with(tmp_path, join_labels=("tier", "example.com/*")) as hub:
        _, file = await made(hub, tmp_path, "--cluster-pattern", "shop-*", "--label", "region=eu", "--uses", "2", "--token")
        labels = {"tier": "test", "example.com/a": "b", "region": "us", "prod": "yes"}
        status, answer = await door.bearer(hub, token_in(file)).ask("POST", door.CLUSTERS, new_cluster("shop-1", **labels))
        assert (status, answer["metadata"]["labels"]) == (201, {"tier": "test", "example.com/a": "b", "region": "eu"})
        status, answer = await (await door.admin_of(hub)).ask("POST", door.CLUSTERS, new_cluster("entered", **labels))
        assert (status, answer["metadata"]["labels"]["prod"]) == (201, "yes")


async def test_a_credential_for_several_clusters_opens_none_beyond_its_bounds(hub: door.HubUnderTest, tmp_path: Path) -> None:
    await make_set(hub, "shops")
    await hub.join("shop-1", **{SET: "shops"})
    await hub.join("bank-1", **{SET: "banks"})
    _, patterned = await made(hub, tmp_path, "--cluster-pattern", "shop-*")
    _, of_set = await made(hub, tmp_path, "--cluster-set", "shops", "--uses", "unlimited", "--token")
    visitor, other = door.holder(hub, patterned), door.bearer(hub, token_in(of_set))
    for path in (f"{door.CLUSTERS}/shop-1", f"{door.CLUSTERS}?fieldSelector=metadata.name%3Dshop-1"):
        assert ((await visitor.get(path))[0], (await other.get(path))[0]) == (200, 200), path
    for path in (f"{door.CLUSTERS}/bank-1", f"{door.CLUSTERS}?fieldSelector=metadata.name%3Dbank-1", door.CLUSTERS):
        assert ((await visitor.get(path))[0], (await other.get(path))[0]) == (403, 403), path
    assert (await other.get(f"{door.CLUSTERS}/new"))[0] == 404
    of_cluster = f"{door.REQUESTS}?labelSelector=open-cluster-management.io/cluster-name"
    for name, code in (("shop-1", 200), ("bank-1", 403)):
        for path in (f"{of_cluster}%3D{name}", f"{of_cluster}%3D{name}&watch=1&timeoutSeconds=1"):
            assert ((await visitor.get(path))[0], (await other.get(path))[0]) == (code, code), path

    _, file = await made(hub, tmp_path, "--cluster-pattern", "shop-*", "--grpc-server", "hub.example.org:8443")
    endpoint = kubeconfig.read_kubeconfig(file).require_endpoint()
    assert (endpoint.cluster_name, endpoint.grpc_server) == (None, "hub.example.org:8443")

    terms = credentials.CredentialTerms(None, 1, timedelta(milliseconds=1))
    _, ended = await hub.store.run(credentials.create_token, terms, "ann")
    status, answer = await door.bearer(hub, ended).get("/apis")
    assert status == 401
    assert re.match(r"the bootstrap credential \w+ expired at \S+Z: get a new bootstrap kubeconfig", answer["message"])


async def test_describe_tells_who_came_in_and_who_ended_it(hub: door.HubUnderTest, tmp_path: Path) -> None:
    name, file = await made(hub, tmp_path, "--cluster", "edge1", "--token", "--uses", "2")
    joining = door.bearer(hub, token_in(file))
    assert (await joining.ask("POST", door.CLUSTERS, new_cluster("edge1")))[0] == 201
    request = (await joining.ask("POST", door.REQUESTS, request_for("edge1")))[1]["metadata"]["name"]
    await hub.store.run(requests.decide, request, approve=True, reason="Test", message="ok", actor="ann")
    await hub.store.run(issuance.issue, request, hub.issuer, Lifetimes(), "hub")
    await hub.store.run(credentials.revoke, CredentialId(name), "bob", "leaked")
    page = await hub.output(f"hubctl describe bootstrap-credential {name}")
    for expected in (
        r"^Kind: +bearer token",
        r"^For: +cluster edge1$",
        r"^Phase: +Revoked$",
        r"^Revoked: +\S+Z by bob \(leaked\)$",
        r"^Uses: +1 spent, 0 held, of 2$",
        rf"^  edge1 +bcdfg +\S+Z +\S+Z +[0-9a-f]{{40}} +{request}$",
    ):
        assert re.search(expected, page, re.MULTILINE), f"{expected} is not in\n{page}"
    assert re.search(rf"^{name} +edge1 +1/2 +Revoked", await hub.output("hubctl get bootstrap-credentials"), re.MULTILINE)
    await hub.output(f"hubctl delete bootstrap-credential {name}")
    assert name not in await hub.output("hubctl get bootstrap-credentials")
    await hub.runs((f"hubctl describe bootstrap-credential {name}", NOT_FOUND, ""))


async def test_a_credential_that_cannot_be_is_refused_by_field_and_a_dry_run_makes_none(hub: door.HubUnderTest) -> None:
    await make_set(hub, "global", selectorType="LabelSelector", labelSelector={})
    admin, request = await door.admin_of(hub), build_request(CertificateSubject("x"), generate_key()).decode()
    keys = json.dumps(TokenKeys([generate_key()]).key_set())
    demands: tuple[tuple[dict[str, Any], str], ...] = (
        *(({"issuer": "http://a"}, "issuer"), ({"issuer": "https://b"}, "issuer")),
        ({"issuer": "https://a", "keys": "{}"}, "keys"),
        ({"issuer": "https://a", "keys": keys, "certificateAuthority": "x"}, "certificateAuthority"),
        *(({"issuer": "https://a", "keys": keys, "subject": "*"}, "subject"), ({}, "issuer")),
    )
    of_attestation = (
        ({"token": False, "request": request, "attestation": spec}, f"spec.attestation.{name}") for spec, name in demands
    )
    for spec, words in (*TABLES["refused"], *of_attestation):
        status, answer = await admin.ask("POST", CREDENTIALS, document(**spec))
        assert (status, words in answer["message"]) == (422, True), (spec, answer)
    status, answer = await admin.ask("POST", f"{CREDENTIALS}?dryRun=All", document(clusterName="edge1"))
    assert (status, "token" in answer.get("status", {}), (await admin.get(CREDENTIALS))[1]["items"]) == (201, False, [])


OWN, OCM = "hub.open-cluster-management.io", "cluster.open-cluster-management.io"
MAKES = {"apiGroups": [OWN], "resources": ["bootstrapcredentials"], "verbs": ["create"]}
JOINS = {"apiGroups": [OCM], "resources": ["managedclustersets/join"], "resourceNames": ["shops"], "verbs": ["create"]}
LABELS = {"apiGroups": [OCM], "resources": ["managedclusters"], "verbs": ["update"]}
GIVEN: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any], int]] = {
    "makes": ((MAKES,), {}, 201),
    "does-not-join": ((MAKES,), {"clusterSet": "shops"}, 403),
    "joins": ((MAKES, JOINS), {"clusterSet": "shops"}, 201),
    "joins-others": ((MAKES, JOINS), {"clusterSet": "banks"}, 403),
    "does-not-label": ((MAKES, JOINS), {"labels": {"env": "prod"}}, 403),
    "labels": ((MAKES, LABELS), {"labels": {"env": "prod"}}, 201),
}  # the user, its rights, a credential that it makes, and the status of the answer


async def test_nobody_gives_by_a_credential_what_he_may_not_give(hub: door.HubUnderTest) -> None:
    admin = await door.admin_of(hub)
    for name in ("shops", "banks"):
        await make_set(hub, name)
    for user, (rules, spec, expected) in GIVEN.items():
        assert (await admin.ask("POST", f"{door.RBAC}/clusterroles", {"metadata": {"name": user}, "rules": list(rules)}))[
            0
        ] == 201
        await admin.bind(user, "User", user)
        for _ in range(50):
            status, answer = await admin.ask("POST", CREDENTIALS, document(**spec), **{"Impersonate-User": user})
            if status == expected:
                break
        assert status == expected, (user, answer)


async def test_a_demand_is_made_by_files_shown_and_beyond_this_door(hub: door.HubUnderTest, tmp_path: Path) -> None:
    """Such a credential cannot attest over the Kubernetes API; the audit log has the reason."""
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps(TokenKeys([generate_key()]).key_set()))
    attest = ("--attest-issuer", "https://kubernetes.default.svc", "--attest-keys", str(keys))
    name, file = await made(hub, tmp_path, "--cluster", "edge1", *attest)
    page = await hub.output(f"hubctl describe bootstrap-credential {name}")
    assert re.search(r"^Attested By: +https://kubernetes.default.svc, with the keys given", page, re.MULTILINE)
    status, answer = await door.holder(hub, file).ask("POST", door.CLUSTERS, new_cluster("edge1"))
    assert (status, answer["message"].endswith(NOT_ATTESTED)) == (403, True), answer
    status, answer = await door.holder(hub, file).ask("POST", door.REQUESTS, request_for("edge1"))
    assert (status, answer["message"].endswith(NOT_ATTESTED)) == (403, True), answer
    await hub.access.auditor.flush()
    records = (await (await door.admin_of(hub)).get("/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"))[1]["items"]
    whys = [record["annotations"]["muster/attestation-failure"] for record in records if "attestation-failure" in str(record)]
    assert whys == [f"the bootstrap credential {name} requires an attestation, and there is none"] * 2


async def test_an_agent_does_not_take_back_what_its_credential_gave(hub: door.HubUnderTest) -> None:
    await hub.join("edge1", env="prod")
    agent = door.holder(hub, await hub.agent("edge1"))
    await hub.accept("edge1")
    status, document = await agent.get(f"{door.CLUSTERS}/edge1")
    assert status == 200
    changed = {**document, "metadata": {**document["metadata"], "labels": {"env": "dev"}}}
    status, answer = await agent.ask("PUT", f"{door.CLUSTERS}/edge1", changed)
    assert (status, "does not change its cluster's labels" in answer["message"]) == (403, True), answer
    noted = {**document, "metadata": {**document["metadata"], "annotations": {"agent.open-cluster-management.io/a": "b"}}}
    assert (await agent.ask("PUT", f"{door.CLUSTERS}/edge1", noted))[0] == 200


REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
USER = "system:serviceaccount:default:metrics"


@pytest.fixture
async def admin(hub: door.HubUnderTest) -> door.Visitor:
    return await door.admin_of(hub)


async def ask_token(admin: door.Visitor, spec: Any = None, **metadata: str) -> tuple[int, Any]:
    return await admin.ask("POST", f"{door.ACCOUNTS}/metrics/token", {"metadata": metadata, "spec": spec or {}})


async def make(admin: door.Visitor) -> str:
    """The account's uid."""
    return str((await admin.ask("POST", door.ACCOUNTS, {"metadata": {"name": "metrics"}}))[1]["metadata"]["uid"])


async def review(admin: door.Visitor, token: str, *audiences: str) -> Any:
    status, answer = await admin.ask("POST", REVIEWS, {"spec": {"token": token, "audiences": list(audiences)}})
    assert status == 201, answer
    return answer["status"]


async def test_a_token_request_is_answered_as_kubernetes_answers(hub: door.HubUnderTest, admin: door.Visitor) -> None:
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
    status, answer = await door.bearer(hub, answer["status"]["token"]).get(door.CLUSTERS)
    assert (status, f'User "{USER}" cannot list' in answer["message"]) == (403, True)

    claims = unverified_claims(await admin.token("metrics", expirationSeconds=2**32)) or {}
    assert claims["exp"] - claims["iat"] == 366 * 24 * 3600

    status, answer = await admin.ask("POST", f"{door.ACCOUNTS}/metrics/token?dryRun=All", {"spec": {}})
    assert (status, answer["status"]["token"]) == (201, "")


async def test_a_token_request_that_cannot_be_granted_is_refused_with_the_reason(admin: door.Visitor) -> None:
    assert (await ask_token(admin))[0] == 404
    await make(admin)
    assert ((await ask_token(admin, name="other"))[0], (await admin.get(f"{door.ACCOUNTS}/metrics/token"))[0]) == (400, 405)

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

    status, answer = await admin.ask("POST", f"{door.ACCOUNTS}/metrics/token", {})
    assert (status, "spec" in answer["message"]) == (422, True), answer


async def test_a_token_review_says_whose_a_token_is_and_why_one_is_refused(hub: door.HubUnderTest, admin: door.Visitor) -> None:
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
    assert (await door.bearer(hub, token).get("/version"))[0] == 200
    await admin.ask("DELETE", f"{door.ACCOUNTS}/metrics")
    assert (await review(admin, token))["error"] == 'serviceaccounts "metrics" not found'
    status, answer = await door.bearer(hub, token).get("/version")
    assert (status, answer["message"]) == (401, "Unauthorized")
    await make(admin)
    assert (await door.bearer(hub, token).get("/version"))[0] == 401, "the next account of this name is another one"


@pytest.mark.kubectl
async def test_kubectl_makes_and_uses_a_token(hub: door.HubUnderTest) -> None:
    await hub.output("kubectl create serviceaccount metrics")
    token = (await hub.output("kubectl create token metrics --duration=20m --audience=https://kubernetes.default.svc")).strip()
    claims = unverified_claims(token) or {}
    assert claims["exp"] - claims["iat"] == 1200
    assert json.loads(await hub.output("kubectl create token metrics -o json"))["kind"] == "TokenRequest"
    refused = f'User "{USER}" cannot list resource "managedclusters"'
    await hub.runs(("kubectl get managedclusters", 1, refused), path=hub.token_kubeconfig("metrics", token))


EDGE = f"{door.CLUSTERS}?watch=1&fieldSelector=metadata.name%3Dedge1"


@asynccontextmanager
async def watching(hub: door.HubUnderTest, token: str) -> AsyncIterator[door.Watch]:
    """A watch of edge1."""
    async with door.bearer(hub, token).watch(EDGE) as watch:
        assert await watch.type() == "ADDED"
        yield watch


async def test_open_watches_end_with_the_token_that_opened_them(hub: door.HubUnderTest, admin: door.Visitor) -> None:
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
    await door.bearer(hub, account).until(door.CLUSTERS, 200)
    (first, token), (_, other) = await bootstrap(), await bootstrap()
    async with watching(hub, token) as revoked, watching(hub, account) as deleted, watching(hub, other) as stays:
        await hub.store.run(credentials.revoke, first)
        await revoked.broken()
        assert deleted.is_open
        assert (await admin.ask("DELETE", f"{door.ACCOUNTS}/metrics"))[0] == 200
        await deleted.broken()
        assert stays.is_open


BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
EDGE1, EDGE2 = Key("edge1", "metrics"), Key("edge2", "metrics")


async def asks(visitor: door.Visitor, namespace: str, account: str) -> int:
    return (await visitor.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", {"spec": {}}))[0]


async def settled(visitor: door.Visitor, status: int) -> None:
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


async def test_an_agent_asks_for_the_tokens_of_its_own_add_ons_alone(hub: door.HubUnderTest) -> None:
    await hub.store.run(fill)
    agent = door.holder(hub, await hub.agent("edge1"))
    await settled(agent, 201)
    assert (await asks(agent, "edge1", "other"), await asks(agent, "edge2", "metrics-agent")) == (403, 403)
    await hub.store.run(remove, ADDONS, "metrics", "edge1")
    await hub.store.run(addons.update_token, EDGE1, "test")
    await settled(agent, 403)
