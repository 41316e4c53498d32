"""Bootstrap tokens at the door: made by hubctl, shown once, good while their credential is."""

import asyncio
import io
import json
import re
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hub.domain.credential import token_hash, token_id
from hub.services import credentials
from hub.services.credentials import Terms
from machinery import logs, pki
from machinery.identity import AgentId, ClusterName, CredentialId, agent_subject
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder, nobody

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CREDENTIALS = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"


async def bootstrap(hub: HubUnderTest, folder: Path) -> tuple[Path, str]:
    """A kubeconfig with a token for edge1, and the token."""
    file = folder / "edge1.kubeconfig"
    made = await hub.hubctl(
        *("create", "bootstrap-kubeconfig", "--cluster", "edge1", "--token", "-o", str(file), "--allow-loopback"),
        *("--server", hub.server),
    )
    assert made.code == 0, made.err
    token = yaml.safe_load(file.read_bytes())["users"][0]["user"]["token"]
    assert token not in made.out + made.err
    return file, token


async def get(visitor: Visitor, path: str, token: str) -> tuple[int, Any]:
    return await visitor.ask("GET", path, authorization=f"Bearer {token}")


async def test_hubctl_writes_a_kubeconfig_with_a_token_and_nothing_of_our_own(hub: HubUnderTest, tmp_path: Path) -> None:
    file, token = await bootstrap(hub, tmp_path)
    document = yaml.safe_load(file.read_bytes())
    assert file.stat().st_mode & 0o777 == 0o600
    assert set(document["users"][0]["user"]) == {"token"}
    assert set(document["clusters"][0]["cluster"]) == {"server", "certificate-authority-data"}
    listed = json.loads((await hub.hubctl("get", "bootstrap-credentials", "-o", "json")).out)
    assert [item["metadata"]["name"] for item in listed["items"]] == [token_id(token)]
    assert listed["items"][0]["spec"] == {"clusterName": "edge1", "expirationSeconds": 3600, "token": True, "uses": 1}


async def test_a_bootstrap_token_is_its_credentials_identity(hub: HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)
    assert (await get(nobody(hub), "/apis", token))[0] == 200
    status, answer = await get(nobody(hub), f"{CLUSTERS}/edge1", token)
    assert status in (403, 404)
    assert status == 404 or f'User "system:bootstrap:{token_id(token)}" cannot get' in answer["message"]


async def test_a_good_certificate_counts_whatever_token_comes_with_it(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    admin = holder(hub, await hub.admin())
    assert (await get(admin, f"{CLUSTERS}/edge1", "guess"))[0] == 200


async def test_a_good_token_makes_up_for_a_revoked_certificate(hub: HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)
    path = await hub.agent("edge1")
    await hub.revoke(path)
    agent = holder(hub, path)
    assert (await agent.get("/apis"))[0] == 401
    assert (await get(agent, "/apis", token))[0] == 200


async def test_a_token_ends_with_its_credential(hub: HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)
    admin = holder(hub, await hub.admin())
    assert (await admin.ask("DELETE", f"{CREDENTIALS}/{token_id(token)}"))[0] == 200
    status, answer = await get(nobody(hub), "/version", token)
    assert (status, answer["reason"], answer["code"]) == (401, "Unauthorized", 401)
    assert re.search(r"^the bootstrap credential [0-9a-f]{16} is revoked: have a new bootstrap kubeconfig", answer["message"])
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    assert (await get(nobody(hub), "/version", wrong))[1]["message"] == "Unauthorized", "who guesses learns nothing"


@pytest.mark.parametrize(
    "spec", [{"token": True, "request": "x"}, {"token": False}, {}, {"token": "yes"}, {"token": True, "clusterName": "A"}]
)
async def test_a_credential_is_a_certificate_or_a_token(hub: HubUnderTest, spec: dict[str, Any]) -> None:
    admin = holder(hub, await hub.admin())
    document = {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "b-"},
        "spec": spec,
    }
    status, answer = await admin.ask("POST", CREDENTIALS, document)
    assert (status, answer["reason"]) == (422, "Invalid")


async def test_a_dry_run_makes_no_token(hub: HubUnderTest) -> None:
    admin = holder(hub, await hub.admin())
    document = {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "b-"},
        "spec": {"token": True, "clusterName": "edge1"},
    }
    status, answer = await admin.ask("POST", f"{CREDENTIALS}?dryRun=All", document)
    assert (status, "token" in answer.get("status", {})) == (201, False)
    assert (await admin.get(CREDENTIALS))[1]["items"] == []


async def test_no_token_is_ever_shown_again(hub: HubUnderTest, tmp_path: Path) -> None:
    """The canary: the token, looked for in all that hubctl, the hub, its log and its files say."""
    said = io.StringIO()
    logs.configure("debug", stream=said)
    file, token = await bootstrap(hub, tmp_path)
    secret = token.partition(".")[2]
    wrong = f"{token_id(token)}.{secret[::-1]}"
    answers = [
        await hub.hubctl("get", "bootstrap-credentials", "-o", "yaml"),
        await hub.hubctl("get", "clusters", path=file),
        *[await get(nobody(hub), path, token) for path in ("/apis", CLUSTERS, CREDENTIALS, "/nosuch")],
        await get(nobody(hub), "/apis", wrong),
        await holder(hub, await hub.admin()).get(f"{CREDENTIALS}/{token_id(token)}"),
    ]
    await hub.store.run(credentials.revoke, CredentialId(token_id(token) or ""))
    answers.append(await get(nobody(hub), "/apis", token))
    file.unlink()
    stored = b"".join((tmp_path / name).read_bytes() for name in ("hub.db", "hub.db-wal"))
    text = repr(answers) + said.getvalue()
    for canary in (secret, secret[::-1]):
        assert canary not in text
        assert canary.encode() not in stored
    assert token_hash(token).encode() in stored, "what is kept is the hash"
    assert "bearer token refused" in said.getvalue()
    assert re.search(r"is revoked", said.getvalue())


@pytest.mark.kubectl
async def test_kubectl_with_a_token(hub: HubUnderTest, tmp_path: Path) -> None:
    file, token = await bootstrap(hub, tmp_path)
    assert (await hub.kubectl("get", "--raw", "/apis", path=file)).code == 0
    admin = await hub.admin()
    ended = await hub.kubectl("get", "--raw", "/apis", f"--token={token[:-4]}xxxx", path=file)
    assert (ended.code, "Unauthorized" in ended.err) == (1, True), ended.err
    assert (await hub.kubectl("get", "managedclusters", f"--token={token}", path=admin)).code == 0


async def test_many_guesses_at_once_are_all_refused(hub: HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)
    guesses = [f"{token_id(token)}.{index:032d}" for index in range(10)]
    answers = await asyncio.gather(*(get(nobody(hub), "/apis", guess) for guess in guesses))
    assert {status for status, _ in answers} == {401}


def cluster(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name},
        "spec": {"leaseDurationSeconds": 60},
    }


def request_for(name: str) -> dict[str, Any]:
    """As OCM's agent asks for its certificate."""
    subject = agent_subject(ClusterName(name), AgentId("bcdfg"))
    labels = {"open-cluster-management.io/cluster-name": name}
    spec = {
        "request": b64encode(pki.build_request(subject, pki.generate_key())).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["digital signature", "key encipherment", "client auth"],
    }
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": f"{name}-", "labels": labels},
        "spec": spec,
    }


async def test_an_agent_joins_by_its_token_and_no_other_cluster_does(hub: HubUnderTest, tmp_path: Path) -> None:
    _, token = await bootstrap(hub, tmp_path)

    async def post(path: str, body: Any) -> int:
        return (await nobody(hub).ask("POST", path, body, authorization=f"Bearer {token}"))[0]

    assert await post(CLUSTERS, cluster("edge2")) == 403
    assert await post(CLUSTERS, cluster("edge1")) == 201
    assert await post(REQUESTS, request_for("edge2")) == 403
    assert await post(REQUESTS, request_for("edge1")) == 201
    admin = holder(hub, await hub.admin())
    asked = (await admin.get(REQUESTS))[1]["items"]
    assert [item["spec"]["username"] for item in asked] == [f"system:bootstrap:{token_id(token)}"]
    (listed,) = (await admin.get(CREDENTIALS))[1]["items"]
    status = listed["status"]
    assert (status["phase"], status["usesSpent"], status["usesHeld"]) == ("Active", 0, 1)
    assert (status["admittedClusters"], [use["requestName"] for use in status["uses"]]) == (
        ["edge1"],
        [asked[0]["metadata"]["name"]],
    )


async def test_an_unbound_token_admits_as_many_names_as_it_has_uses(hub: HubUnderTest) -> None:
    _, token = await hub.store.run(credentials.create_token, Terms(None, 2, timedelta(hours=1)), "ann")
    for name, expected in (("edge1", 201), ("edge2", 201), ("edge3", 403)):
        status, _ = await nobody(hub).ask("POST", CLUSTERS, cluster(name), authorization=f"Bearer {token}")
        assert status == expected
    status, answer = await nobody(hub).ask("POST", REQUESTS, request_for("edge3"), authorization=f"Bearer {token}")
    assert (status, "of 2, 0 spent and 2 held for others" in answer["message"]) == (403, True), answer


@pytest.mark.kubectl
async def test_kubectl_says_who_a_token_is(hub: HubUnderTest, tmp_path: Path) -> None:
    file, token = await bootstrap(hub, tmp_path)
    ended = await hub.kubectl("auth", "whoami", "-o", "json", path=file)
    assert ended.code == 0, ended.err
    info = json.loads(ended.out)["status"]["userInfo"]
    assert info["username"] == f"system:bootstrap:{token_id(token)}"
    assert info["groups"] == ["system:bootstrappers:managedcluster", "system:authenticated"]
    assert info["extra"] == {"authentication.kubernetes.io/credential-id": [f"BOOTSTRAP={token_id(token)}"]}
