"""BootstrapCredentials at the door: what they are bound to, what they give, what they say, and who may make them."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from hub.domain.attestation import FAILED
from hub.domain.certificate import Lifetimes
from hub.domain.change import CLUSTER_SETS
from hub.services import credentials, objects, requests
from machinery import kubeconfig
from machinery.identity import CredentialId, Subject
from machinery.pki import TokenKeys, build_request, generate_key
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder, nobody
from tests.integration.door.test_tokens import CREDENTIALS, REQUESTS, cluster, request_for

AUDIT = "/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SET = "cluster.open-cluster-management.io/clusterset"


async def made(hub: HubUnderTest, folder: Path, *arguments: str, path: Path | None = None) -> tuple[str, Path]:
    """A credential of hubctl's making: its id and the file."""
    file = folder / f"made-{uuid4().hex}.kubeconfig"
    ended = await hub.hubctl(
        *("create", "bootstrap-kubeconfig", "-o", str(file), "--allow-loopback", "--server", hub.server, *arguments), path=path
    )
    assert ended.code == 0, ended.err
    newest = (await hub.store.read(lambda tx: list(tx.credentials.all())))[-1]
    return newest.id, file


def bearer(file: Path) -> str:
    return str(yaml.safe_load(file.read_bytes())["users"][0]["user"]["token"])


async def make_set(hub: HubUnderTest, name: str, **selector: Any) -> None:
    document = {
        "apiVersion": "cluster.open-cluster-management.io/v1beta2",
        "kind": "ManagedClusterSet",
        "metadata": {"name": name},
        "spec": {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel", **selector}},
    }
    await hub.store.run(objects.put, CLUSTER_SETS, document, None, "test")


def document(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "b-"},
        "spec": {"token": True, **spec},
    }


async def test_a_token_for_patterns_puts_clusters_into_its_set_with_its_labels(hub: HubUnderTest, tmp_path: Path) -> None:
    await make_set(hub, "shops")
    name, file = await made(
        *(hub, tmp_path, "--cluster-pattern", "shop-*", "--cluster-pattern", "lab", "--cluster-set", "shops"),
        *("--label", "region=eu", "--uses", "2", "--expires", "8h", "--token"),
    )
    token = bearer(file)

    async def post(path: str, body: Any) -> tuple[int, Any]:
        return await nobody(hub).ask("POST", path, body, authorization=f"Bearer {token}")

    said = cluster("shop-1")
    said["metadata"]["labels"] = {"region": "us"}
    status, answer = await post(CLUSTERS, said)
    assert (status, answer["metadata"]["labels"]) == (201, {SET: "shops", "region": "eu"})
    said = cluster("shop-2")
    said["metadata"]["labels"] = {SET: "banks"}
    status, answer = await post(CLUSTERS, said)
    assert (status, 'ManagedClusterSet "banks"' in answer["message"]) == (403, True), answer
    for path, body in ((CLUSTERS, cluster("bank-1")), (REQUESTS, request_for("bank-1"))):
        status, answer = await post(path, body)
        assert (status, "whose name fits shop-*, lab" in answer["message"]) == (403, True), answer
    listed = (await hub.hubctl("get", "bootstrap-credentials", "-o", "wide")).out
    assert re.search(rf"^{name} +shop-\*,lab +0/2 +Active .* 1 +shops +region=eu +<none> +admin", listed, re.MULTILINE), listed


async def test_a_newcomer_chooses_those_labels_alone_that_an_operator_lists(tmp_path: Path) -> None:
    hub = HubUnderTest(tmp_path, join_labels=("tier", "example.com/*"))
    await hub.start()
    try:
        _, file = await made(hub, tmp_path, "--cluster-pattern", "shop-*", "--label", "region=eu", "--uses", "2", "--token")
        said = cluster("shop-1")
        said["metadata"]["labels"] = {"tier": "test", "example.com/a": "b", "region": "us", "prod": "yes"}
        status, answer = await nobody(hub).ask("POST", CLUSTERS, said, authorization=f"Bearer {bearer(file)}")
        assert (status, answer["metadata"]["labels"]) == (201, {"tier": "test", "example.com/a": "b", "region": "eu"})
        said["metadata"]["name"] = "entered"
        status, answer = await holder(hub, await hub.admin()).ask("POST", CLUSTERS, said)
        assert (status, answer["metadata"]["labels"]["prod"]) == (201, "yes")
    finally:
        await hub.stop()


async def test_a_credential_for_several_sees_no_cluster_beyond_its_bounds(hub: HubUnderTest, tmp_path: Path) -> None:
    await make_set(hub, "shops")
    await hub.join("shop-1", **{SET: "shops"})
    await hub.join("bank-1", **{SET: "banks"})
    _, patterned = await made(hub, tmp_path, "--cluster-pattern", "shop-*")
    _, of_set = await made(hub, tmp_path, "--cluster-set", "shops", "--uses", "unlimited", "--token")
    token = bearer(of_set)

    async def by_token(path: str) -> int:
        return (await nobody(hub).ask("GET", path, authorization=f"Bearer {token}"))[0]

    visitor = holder(hub, patterned)
    for path in (f"{CLUSTERS}/shop-1", f"{CLUSTERS}?fieldSelector=metadata.name%3Dshop-1"):
        assert ((await visitor.get(path))[0], await by_token(path)) == (200, 200), path
    for path in (f"{CLUSTERS}/bank-1", f"{CLUSTERS}?fieldSelector=metadata.name%3Dbank-1", CLUSTERS):
        assert ((await visitor.get(path))[0], await by_token(path)) == (403, 403), path
    assert await by_token(f"{CLUSTERS}/new") == 404
    of_cluster = f"{REQUESTS}?labelSelector=open-cluster-management.io/cluster-name"
    for name, code in (("shop-1", 200), ("bank-1", 403)):
        for path in (f"{of_cluster}%3D{name}", f"{of_cluster}%3D{name}&watch=1&timeoutSeconds=1"):
            assert ((await visitor.get(path))[0], await by_token(path)) == (code, code), path


async def test_a_file_for_several_names_no_cluster(hub: HubUnderTest, tmp_path: Path) -> None:
    _, file = await made(hub, tmp_path, "--cluster-pattern", "shop-*", "--grpc-server", "hub.example.org:8443")
    endpoint = kubeconfig.read_kubeconfig(file).require_endpoint()
    assert (endpoint.cluster_name, endpoint.grpc_server) == (None, "hub.example.org:8443")


async def test_describe_tells_who_came_in_and_who_ended_it(hub: HubUnderTest, tmp_path: Path) -> None:
    name, file = await made(hub, tmp_path, "--cluster", "edge1", "--token", "--uses", "2")
    token = bearer(file)
    status, _ = await nobody(hub).ask("POST", CLUSTERS, cluster("edge1"), authorization=f"Bearer {token}")
    assert status == 201
    _, asked = await nobody(hub).ask("POST", REQUESTS, request_for("edge1"), authorization=f"Bearer {token}")
    request = asked["metadata"]["name"]
    await hub.store.run(
        lambda tx: requests.decide(tx, request, approve=True, reason="Test", message="ok", actor="ann"),
    )
    await hub.store.run(requests.issue, request, hub.issuer, Lifetimes(), "hub")
    await hub.store.run(credentials.revoke, CredentialId(name), "bob", "leaked")
    page = (await hub.hubctl("describe", "bootstrap-credential", name)).out
    for expected in (
        r"^Kind: +bearer token",
        r"^For: +cluster edge1$",
        r"^Phase: +Revoked$",
        r"^Revoked: +\S+Z by bob \(leaked\)$",
        r"^Uses: +1 spent, 0 held, of 2$",
        rf"^  edge1 +bcdfg +\S+Z +\S+Z +[0-9a-f]{{40}} +{request}$",
    ):
        assert re.search(expected, page, re.MULTILINE), f"{expected} is not in\n{page}"
    assert re.search(rf"^{name} +edge1 +1/2 +Revoked", (await hub.hubctl("get", "bootstrap-credentials")).out, re.MULTILINE)
    deleted = await hub.hubctl("delete", "bootstrap-credential", name)
    assert deleted.code == 0, deleted.err
    assert name not in (await hub.hubctl("get", "bootstrap-credentials")).out
    assert (await hub.hubctl("describe", "bootstrap-credential", name)).code == 3


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"clusterName": "a", "clusterNames": ["b"]}, "spec.clusterNames"),
        ({"clusterNames": ["shop_*"]}, "spec.clusterNames[0]"),
        ({"labels": {"a b": "c"}}, "spec.labels"),
        ({"labels": {SET: "banks"}}, "spec.labels"),
        ({"labels": {"kubernetes.io/x": "y"}}, "spec.labels"),
        ({"clusterSet": "nowhere"}, "spec.clusterSet"),
        ({"clusterSet": "global"}, "spec.clusterSet"),
        ({"uses": 0}, "spec.uses"),
    ],
)
async def test_what_no_credential_can_be_is_refused_by_field(hub: HubUnderTest, spec: dict[str, Any], where: str) -> None:
    await make_set(hub, "global", selectorType="LabelSelector", labelSelector={})
    status, answer = await holder(hub, await hub.admin()).ask("POST", CREDENTIALS, document(**spec))
    assert (status, where in answer["message"]) == (422, True), answer


async def helper_of(hub: HubUnderTest, *rules: dict[str, Any]) -> Visitor:
    """An operator who may do just this: his token."""
    admin = holder(hub, await hub.admin())
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "some"},
        "rules": list(rules),
    }
    assert (await admin.ask("POST", f"{RBAC}/clusterroles", role))[0] == 201
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "some"},
        "subjects": [{"kind": "User", "name": "carl", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "some"},
    }
    assert (await admin.ask("POST", f"{RBAC}/clusterrolebindings", binding))[0] == 201
    return admin


OWN, OCM = "hub.open-cluster-management.io", "cluster.open-cluster-management.io"
MAKES = {"apiGroups": [OWN], "resources": ["bootstrapcredentials"], "verbs": ["create"]}
JOINS = {"apiGroups": [OCM], "resources": ["managedclustersets/join"], "resourceNames": ["shops"], "verbs": ["create"]}
LABELS = {"apiGroups": [OCM], "resources": ["managedclusters"], "verbs": ["update"]}


@pytest.mark.parametrize(
    ("rules", "spec", "expected"),
    [
        ((MAKES,), {}, 201),
        ((MAKES,), {"clusterSet": "shops"}, 403),
        ((MAKES, JOINS), {"clusterSet": "shops"}, 201),
        ((MAKES, JOINS), {"clusterSet": "banks"}, 403),
        ((MAKES, JOINS), {"labels": {"env": "prod"}}, 403),
        ((MAKES, LABELS), {"labels": {"env": "prod"}}, 201),
    ],
)
async def test_nobody_gives_by_a_credential_what_he_may_not_give(
    hub: HubUnderTest, rules: tuple[dict[str, Any], ...], spec: dict[str, Any], expected: int
) -> None:
    for name in ("shops", "banks"):
        await make_set(hub, name)
    admin = await helper_of(hub, *rules)
    headers = {"Impersonate-User": "carl"}
    status, answer = await admin.ask("POST", CREDENTIALS, document(**spec), **headers)
    for _ in range(50):
        if status == expected:
            break
        status, answer = await admin.ask("POST", CREDENTIALS, document(**spec), **headers)
    assert status == expected, answer


async def test_hubctl_says_what_is_missing_or_too_much(hub: HubUnderTest, tmp_path: Path) -> None:
    for arguments, words in (
        ((), "--cluster NAME, --cluster-pattern GLOB or --cluster-set SET"),
        (("--cluster", "a", "--cluster-pattern", "b*"), "not both"),
        (("--cluster", "a", "--uses", "0"), '--uses "0"'),
        (("--cluster", "a", "--label", "x"), '--label "x"'),
    ):
        ended = await hub.hubctl("create", "bootstrap-kubeconfig", "-o", str(tmp_path / "x"), *arguments)
        assert (ended.code, words in ended.err) == (2, True), ended.err


async def test_a_token_that_ended_says_so_to_its_holder(hub: HubUnderTest) -> None:
    terms = credentials.Terms(None, 1, timedelta(milliseconds=1))
    _, token = await hub.store.run(credentials.create_token, terms, "ann")
    status, answer = await nobody(hub).ask("GET", "/apis", authorization=f"Bearer {token}")
    assert status == 401
    assert re.match(r"the bootstrap credential \w+ expired at \S+Z: have a new bootstrap kubeconfig made", answer["message"])


async def test_a_demand_is_made_by_files_shown_and_beyond_this_door(hub: HubUnderTest, tmp_path: Path) -> None:
    """Whoever comes with such a credential over the Kubernetes API cannot prove anything: the audit log has why."""
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps(TokenKeys([generate_key()]).key_set()))
    attest = ("--attest-issuer", "https://kubernetes.default.svc", "--attest-keys", str(keys))
    name, file = await made(hub, tmp_path, "--cluster", "edge1", *attest)
    page = (await hub.hubctl("describe", "bootstrap-credential", name)).out
    assert re.search(r"^Attested By: +https://kubernetes.default.svc, with the keys given", page, re.MULTILINE)
    status, answer = await holder(hub, file).ask("POST", CLUSTERS, cluster("edge1"))
    assert (status, answer["message"].endswith(FAILED)) == (403, True), answer
    status, answer = await holder(hub, file).ask("POST", REQUESTS, request_for("edge1"))
    assert (status, answer["message"].endswith(FAILED)) == (403, True), answer
    await hub.auditor.flush()
    records = (await holder(hub, await hub.admin()).get("/apis/hub.open-cluster-management.io/v1alpha1/auditrecords"))[1][
        "items"
    ]
    whys = [record["annotations"]["muster/attestation-failure"] for record in records if "attestation-failure" in str(record)]
    assert whys == [f"the bootstrap credential {name} demands an attestation, and there is none"] * 2


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({"issuer": "http://a"}, "spec.attestation.issuer"),
        ({"issuer": "https://a", "keys": "{}"}, "spec.attestation.keys"),
        ({"issuer": "https://a", "certificateAuthority": "x"}, "spec.attestation.certificateAuthority"),
        ({"issuer": "https://a", "subject": "*"}, "spec.attestation.subject"),
        ({}, "spec.attestation.issuer"),
    ],
)
async def test_a_demand_that_cannot_be_met_is_refused_by_field(hub: HubUnderTest, spec: dict[str, Any], where: str) -> None:
    asked = document(token=False, request=build_request(Subject("x"), generate_key()).decode(), attestation=spec)
    status, answer = await holder(hub, await hub.admin()).ask("POST", CREDENTIALS, asked)
    assert (status, where in answer["message"]) == (422, True), answer
    status, answer = await holder(hub, await hub.admin()).ask(
        "POST", CREDENTIALS, document(attestation={"issuer": "https://a"})
    )
    assert (status, "a token is for agents that cannot attest" in answer["message"]) == (422, True), answer


async def test_an_agent_does_not_take_back_what_its_credential_gave(hub: HubUnderTest) -> None:
    await hub.join("edge1", env="prod")
    agent = holder(hub, await hub.agent("edge1"))
    admin = holder(hub, await hub.admin())
    patch = {"spec": {"hubAcceptsClient": True}}
    headers = {"Content-Type": "application/merge-patch+json"}
    assert (await admin.ask("PATCH", f"{CLUSTERS}/edge1", patch, **headers))[0] == 200
    status, document = await agent.get(f"{CLUSTERS}/edge1")
    assert status == 200
    changed = {**document, "metadata": {**document["metadata"], "labels": {"env": "dev"}}}
    status, answer = await agent.ask("PUT", f"{CLUSTERS}/edge1", changed)
    assert (status, "does not change its cluster's labels" in answer["message"]) == (403, True), answer
    noted = {**document, "metadata": {**document["metadata"], "annotations": {"agent.open-cluster-management.io/a": "b"}}}
    assert (await agent.ask("PUT", f"{CLUSTERS}/edge1", noted))[0] == 200
