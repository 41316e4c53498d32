"""OCM's clusteradm and operator against the HTTPS door: their requests in the form of their sources, and the tokens' limits.

Source: clusteradm (main, July 2026, client-go 0.35): typed clients of Kubernetes' own kinds send protobuf, OCM's send JSON.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.internal import encoder
from yarl import URL

from hub.api.bootstrapcredentials import token_id
from hub.registry.approvalrules import approval
from machinery import pki
from machinery.apiserver.write.protobuf import MESSAGES, FieldKind, Message
from machinery.errors import InvalidError
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context
from spoke.agent.loop import SpokeAgent
from spoke.app import dialer
from spoke.bootstraps.listing import BootstrapFile, Bootstraps
from spoke.options import AgentOptions, Pauses
from tests.checks import CASE_FILES
from tests.fakes.credentials import MemorySecrets
from tests.fakes.stage import AT_ONCE, running, world_of
from tests.integration.https_door import conftest as door

ENCODER: Any = encoder
OWN = "/apis/hub.open-cluster-management.io/v1alpha1"
GROUP = door.CLUSTERS.removesuffix("/managedclusters")
NAMESPACES = "/api/v1/namespaces"
ACCOUNT = f"{NAMESPACES}/open-cluster-management/serviceaccounts/agent-registration-bootstrap"
CONFIG_MAPS, INFO = f"{NAMESPACES}/kube-public/configmaps", f"{NAMESPACES}/kube-public/configmaps/cluster-info"
BUNDLE = f"{NAMESPACES}/open-cluster-management-hub/configmaps/ca-bundle-configmap"
SECRETS = f"{NAMESPACES}/kube-system/secrets?labelSelector=app+%3D+cluster-manager"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clustermanagers.operator.open-cluster-management.io"
TYPED = {"Accept": "application/vnd.kubernetes.protobuf,application/json"}
PROTOBUF = {**TYPED, "Content-Type": "application/vnd.kubernetes.protobuf"}
PLAIN = {"Accept": "application/json, */*"}
HOUR = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": {"expirationSeconds": 3600}}
MANAGED = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
REVIEWS = yaml.safe_load((CASE_FILES / "access-reviews.yaml").read_text())
ACCEPTS = {"spec": {"hubAcceptsClient": True}}


def field(number: int, content: Any, *, wire: int = 2) -> bytes:
    tag: bytes = ENCODER._VarintBytes(number << 3 | wire)
    length: bytes = ENCODER._VarintBytes(content if wire == 0 else len(content))
    return tag + length + (b"" if wire == 0 else content)


def message(document: Mapping[str, Any], table: Message) -> bytes:
    """A message of Kubernetes with the fields of a document that the table names."""
    parts = []
    for number, each in table.items():
        values = document.get(each.name)
        for value in (values if each.repeated else [values]) if values is not None else []:
            if each.kind in (FieldKind.INTEGER, FieldKind.BOOLEAN):
                parts.append(field(number, int(value), wire=0))
            elif each.kind is FieldKind.MESSAGE:
                parts.append(field(number, message(value, each.message or {})))
            elif each.kind is FieldKind.MAP and isinstance(value, dict):
                texts = {key: text for key, text in value.items() if isinstance(text, str)}
                parts += [field(number, field(1, key.encode()) + field(2, text.encode())) for key, text in texts.items()]
            elif each.kind in (FieldKind.TEXT, FieldKind.BYTES):
                parts.append(field(number, b64decode(value) if each.kind is FieldKind.BYTES else value.encode()))
    return b"".join(parts)


def protobuf(document: Mapping[str, Any]) -> bytes:
    version, kind = document["apiVersion"], document["kind"]
    table = MESSAGES.get((version, kind)) or MESSAGES["*", kind]
    named = field(1, version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, named) + field(2, message(document, table)) + field(3, b"") + field(4, b"")


async def send(
    who: door.Visitor, method: str, path: str, document: Any = None, *, typed: bool = True, **headers: str
) -> tuple[int, Any]:
    """A request of a typed client, or with `typed` False of OCM's."""
    body = None if document is None else protobuf(document) if typed else json.dumps(document).encode()
    chosen = {**(PROTOBUF if typed and body else TYPED if typed else {**PLAIN, "Content-Type": "application/json"}), **headers}
    url = URL(who.hub.server + path, encoded=True)
    async with who.session() as session, session.request(method, url, data=body, headers=chosen) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else text


async def get_token(operator: door.Visitor, expected: int = 201) -> str:
    """`clusteradm get token`."""
    assert (await send(operator, "GET", GROUP, typed=False))[0] == 200
    status, answer = await send(operator, "POST", f"{ACCOUNT}/token", HOUR)
    assert status == expected, answer
    return str(answer.get("status", {}).get("token", "")) if expected == 201 else ""


async def refused(who: door.Visitor, role: str) -> list[dict[str, str]]:
    """The access reviews of OCM's operator that the hub refuses."""
    path, kind = "/apis/authorization.k8s.io/v1", "SelfSubjectAccessReview"
    asked = [{**row, "verb": verb} for row in REVIEWS[role] for verb in row["verbs"]]
    reviews = [{"apiVersion": path[6:], "kind": kind, "spec": {"resourceAttributes": row}} for row in asked]
    answers = [(await send(who, "POST", f"{path}/selfsubjectaccessreviews", review))[1] for review in reviews]
    return [row for row, answer in zip(asked, answers, strict=True) if not answer["status"]["allowed"]]


async def bootstrap_kubeconfig(hub: door.HubUnderTest, token: str) -> str:
    """What `clusteradm join` reads and checks, and the kubeconfig that it then stores for the agent."""
    agent = door.bearer(hub, token)
    status, info = await send(agent, "GET", INFO)
    assert (status, set(info["data"])) == (200, {"kubeconfig"})
    kubeconfig = yaml.safe_load(info["data"]["kubeconfig"])
    (cluster,) = (each["cluster"] for each in kubeconfig["clusters"])
    assert cluster == {
        "server": hub.hub.core.certificates.cluster.server,
        "certificate-authority-data": b64encode(hub.issuer.trust_bundle).decode(),
    }
    assert (kubeconfig["users"], kubeconfig["contexts"]) == ([], [])
    status, bundle = await send(agent, "GET", BUNDLE)  # of `join --grpc-server`
    assert (status, bundle["data"]) == (200, {"ca-bundle.crt": hub.issuer.trust_bundle.decode()})
    assert (await refused(agent, "bootstrap"), (await send(agent, "GET", "/version", typed=False))[0]) == ([], 200)
    assert "managedclusters" in [each["name"] for each in (await send(agent, "GET", GROUP, typed=False))[1]["resources"]]
    entry = {"server": hub.server, "certificate-authority-data": cluster["certificate-authority-data"]}
    lists = {
        "clusters": [{"name": "hub", "cluster": entry}],
        "users": [{"name": "bootstrap", "user": {"token": token}}],
        "contexts": [{"name": "bootstrap", "context": {"cluster": "hub", "user": "bootstrap", "namespace": "default"}}],
    }
    return yaml.safe_dump({"preferences": {}, "current-context": "bootstrap", **lists})


async def join(hub: door.HubUnderTest, token: str, name: str) -> str:
    """The first requests of OCM's agent with that kubeconfig. Returns the name of its certificate request."""
    agent = door.bearer(hub, yaml.safe_load(await bootstrap_kubeconfig(hub, token))["users"][0]["user"]["token"])
    async with agent.watch(f"{door.CLUSTERS}?fieldSelector=metadata.name%3D{name}&timeoutSeconds=300&watch=true") as watch:
        status, made = await send(agent, "POST", door.CLUSTERS, {**MANAGED, "metadata": {"name": name}}, typed=False)
        assert (status, await watch.type()) == (201, "ADDED"), made
    status, asked = await send(agent, "POST", door.REQUESTS, door.asked_for(name, "bcdfg", name))
    assert status == 201, asked
    return str(asked["metadata"]["name"])


async def accept(operator: door.Visitor, name: str) -> None:
    """`clusteradm accept`."""
    assert not (await send(operator, "GET", f"{door.CLUSTERS}/{name}", typed=False))[1]["spec"].get("hubAcceptsClient")
    selector = f"{CLUSTER_LABEL.replace('/', '%2F')}+%3D+{name}"
    ((asked,),) = [(await send(operator, "GET", f"{door.REQUESTS}?labelSelector={selector}"))[1]["items"]]
    assert asked["spec"]["username"].startswith("system:bootstrap:")
    assert "system:bootstrappers:managedcluster" in asked["spec"]["groups"]
    condition = {"type": "Approved", "status": "True", "reason": "clusteradm Approve", "message": "by clusteradm"}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    decided = {**asked, **kind, "status": {"conditions": [condition]}}
    assert (await send(operator, "PUT", f"{door.REQUESTS}/{asked['metadata']['name']}/approval", decided))[0] == 200
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (await send(operator, "PATCH", f"{door.CLUSTERS}/{name}", ACCEPTS, typed=False, **merge))[0] == 200


async def delete_token(operator: door.Visitor) -> None:
    """`clusteradm clean`, which finds nothing to delete, and `delete token`, which a missing object does not stop."""
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    bindings = ("open-cluster-management%3Abootstrap%3Aagent-registration", "agent-registration-bootstrap")
    assert (await send(operator, "GET", DEFINITION))[0] == 200
    for path, expected in (
        *((f"{door.RBAC}/clusterrolebindings/{name}", 404) for name in bindings),
        (f"{door.RBAC}/clusterroles/system%3Aopen-cluster-management%3Abootstrap", 404),
        (f"{door.RBAC}/clusterroles/open-cluster-management%3Abootstrap", 200),
        (SECRETS, 404),
        ("/apis/operator.open-cluster-management.io/v1/clustermanagers/cluster-manager", 404),
    ):
        assert (await send(operator, "DELETE", path, options))[0] == expected, path
    status, answer = await send(operator, "GET", SECRETS)
    assert (status, answer["reason"], "run `clusteradm get token` without" in answer["message"]) == (404, "NotFound", True)
    assert (await send(operator, "DELETE", ACCOUNT, options))[0] == 200


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[tuple[door.HubUnderTest, door.Visitor]]:
    async with door.hub_with(folder, **{"clusteradm": True, **settings}) as hub:
        yield hub, await door.admin_of(hub)


async def test_clusteradm_gets_a_token_joins_accepts_and_deletes_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path, leads=True) as (hub, operator):
        token = await get_token(operator)
        status, credential = await operator.get(f"{OWN}/bootstrapcredentials/{token_id(token)}")
        assert credential["spec"] == {"expirationSeconds": 3600, "token": True, "uses": 10}
        await hub.access.auditor.flush()
        records = (await operator.get(f"{OWN}/auditrecords?fieldSelector=resource=serviceaccounts"))[1]["items"]
        credential_id, _, secret = token.partition(".")
        assert (credential_id in json.dumps(records), secret in json.dumps(records)) == (True, False)

        account = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"
        rule = {"decides": ["Accept", "Approve"], "clusterNames": ["*"], "requesters": [{"kind": "User", "name": account}]}
        document = {"apiVersion": OWN[6:], "kind": "ApprovalRule", "metadata": {"name": "ocm"}, "spec": rule}
        assert (await operator.ask("POST", f"{OWN}/approvalrules", document))[0] == 201
        request = await join(hub, token, "edge1")
        rules = await hub.store.read(approval.rules_in, ())
        assert await hub.store.run(approval.review, request, rules, "test") == approval.ApprovalOutcome(asking="edge1")
        assert await hub.store.run(approval.accept, ClusterName("edge1"), rules) is None

        await accept(operator, "edge1")
        certificate = ""
        while not certificate:
            certificate = (await operator.get(f"{door.REQUESTS}/{request}"))[1].get("status", {}).get("certificate", "")
        assert "edge1" in pki.parse_certificate(b64decode(certificate)).subject.common_name

        await delete_token(operator)
        status, answer = await door.bearer(hub, token).get("/version")
        assert (status, "is revoked" in answer["message"]) == (401, True)
        await get_token(operator, 404)
        name = {"metadata": {"name": ACCOUNT.rpartition("/")[2]}}
        assert (await operator.ask("POST", ACCOUNT.rpartition("/")[0], name))[0] == 201
        assert (await door.bearer(hub, await get_token(operator)).get(INFO))[0] == 200
        # `clusteradm unjoin` deletes the agent in its cluster and sends nothing to the hub; the operator removes the rest
        assert (await operator.ask("DELETE", f"{door.CLUSTERS}/edge1"))[0] == 200


async def test_our_agent_joins_with_the_kubeconfig_that_clusteradm_join_stores(tmp_path: Path) -> None:
    file, name = tmp_path / "kubeconfig", "edge1"
    async with serving(tmp_path / "hub", leads=True) as (hub, operator):
        file.write_text(await bootstrap_kubeconfig(hub, await get_token(operator)))
        options = AgentOptions(cluster_name=ClusterName(name), pauses=Pauses(AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE))
        clock, bootstraps = SystemClock(), Bootstraps([BootstrapFile(file, options.reach)])
        world = world_of(clock, MemorySecrets(), bootstrap=bootstraps, dial=dialer(clock))
        async with running(SpokeAgent(options, world)):
            while not (await operator.get(door.REQUESTS))[1]["items"]:
                pass
            await accept(operator, name)
            while "ManagedClusterAvailable" not in json.dumps((await operator.get(f"{door.CLUSTERS}/{name}"))[1]):
                pass
        stored = await world.secrets.read("hub-kubeconfig-secret")
        chain, key = stored.contents["tls.crt"], stored.contents["tls.key"]
        assert name in pki.parse_certificate(chain).subject.common_name
        assert await refused(door.Visitor(hub, client_context(hub.issuer.trust_bundle, chain, key)), name) == []


async def test_token_of_clusteradm_joins_and_does_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path, clusteradm_token_uses=1) as (hub, operator):
        other = await join(hub, await get_token(operator), "edge9")
        token = await get_token(operator)
        own, thief = await join(hub, token, "edge1"), door.bearer(hub, token)
        rows: tuple[tuple[str, str, Any], ...] = (
            *(
                ("GET", path, None)
                for path in (door.CLUSTERS, door.REQUESTS, NAMESPACES, CONFIG_MAPS, f"{CONFIG_MAPS}/other", ACCOUNT)
            ),
            *(("GET", f"/api/v1/{kind}", None) for kind in ("secrets", "configmaps", "events", "serviceaccounts")),
            *(("GET", path, None) for path in (f"{OWN}/bootstrapcredentials", DEFINITION, SECRETS, f"{door.REQUESTS}/{other}")),
            *((verb, INFO, {"data": {}}) for verb in ("PUT", "DELETE")),
            ("POST", f"{ACCOUNT}/token", {"spec": {}}),
            ("POST", f"{OWN}/bootstrapcredentials", {"metadata": {"generateName": "a"}, "spec": {"token": True}}),
            ("PUT", f"{door.CLUSTERS}/edge1", ACCEPTS),
            ("DELETE", f"{door.CLUSTERS}/edge1", None),
            ("PUT", f"{door.REQUESTS}/{own}/approval", {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}),
            ("POST", door.CLUSTERS, {**MANAGED, "metadata": {"name": "edge2"}}),
            ("POST", door.REQUESTS, door.asked_for("edge1", "other", "edge1")),
            ("POST", door.REQUESTS, door.asked_for("edge2", "bcdfg", "edge1")),
        )
        answers = [(method, path, await thief.ask(method, path, body)) for method, path, body in rows]
        assert [row for row in answers if row[2][0] != 403] == []

        assert (await door.bearer(hub, f"{token_id(token)}.{'0' * 32}").get(INFO))[0] == 401
        assert (await thief.get(f"{door.REQUESTS}/{own}"))[0] == 200
        assert (await operator.ask("DELETE", f"{OWN}/bootstrapcredentials/{token_id(token)}"))[0] == 200
        assert (await thief.get(INFO))[0] == 401

        await operator.bind("admin", "ServiceAccount", "reader", namespace="default")
        status, answer = await door.bearer(hub, await operator.token("reader")).ask("POST", f"{ACCOUNT}/token", HOUR)
        assert (status, "cannot create resource" in answer["message"]) == (403, True), answer
        for spec, code in (({"audiences": ["vault"]}, 400), ({"expirationSeconds": 599}, 422)):
            assert (await operator.ask("POST", f"{ACCOUNT}/token", {"spec": spec}))[0] == code
        stored = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"}
        assert (await operator.ask("POST", SECRETS.partition("?")[0], stored))[0] == 422
        own_secret = {"metadata": {"name": "a", "labels": {"app": "cluster-manager"}}}
        assert (await operator.ask("POST", SECRETS.partition("?")[0], own_secret))[0] == 201
        assert [item["metadata"]["name"] for item in (await send(operator, "GET", SECRETS))[1]["items"]] == ["a"]


async def test_token_of_clusteradm_expires_with_the_lifetime_of_the_hub(tmp_path: Path) -> None:
    async with serving(tmp_path, bootstrap_lifetime=timedelta(seconds=1)) as (hub, operator):
        await door.bearer(hub, await get_token(operator)).until("/version", 401)


async def test_cluster_info_is_public_only_by_its_setting_and_listed_with_the_stored_config_maps(tmp_path: Path) -> None:
    for public, expected in ((False, 403), (True, 200)):
        async with serving(tmp_path / str(public), clusteradm_public_cluster_info=public) as (hub, operator):
            assert (await door.nobody(hub).get(INFO))[0] == expected
            ends = ("", "/a", "?fieldSelector=metadata.name%3Dcluster-info")
            others = (*(CONFIG_MAPS + end for end in ends), ACCOUNT, BUNDLE)
            assert {(await door.nobody(hub).get(path))[0] for path in others} == {403}
            for path in (INFO, BUNDLE):
                folder, _, name = path.rpartition("/")
                assert (await operator.ask("POST", folder, {"metadata": {"name": name}}))[0] == 405
    async with serving(tmp_path / "True") as (_hub, operator):
        for name in ("a", "z"):
            assert (await operator.ask("POST", CONFIG_MAPS, {"metadata": {"name": name}}))[0] == 201
        names: list[str] = []
        left: str | None = ""
        while left is not None:
            page = (await operator.get(f"/api/v1/configmaps?limit=1{left and f'&continue={left}'}"))[1]
            (name,) = (item["metadata"]["name"] for item in page["items"])
            names.append(name)
            left = page["metadata"].get("continue")
        assert names == ["a", "cluster-info", "z", "ca-bundle-configmap"]
        for path in (INFO, BUNDLE):
            assert (await operator.get(f"{path}?at={page['metadata']['resourceVersion']}"))[0] == 200


async def test_without_its_setting_a_hub_serves_nothing_of_clusteradm(hub: door.HubUnderTest, tmp_path: Path) -> None:
    operator = await door.admin_of(hub)
    assert [(await operator.get(path))[0] for path in (INFO, BUNDLE, ACCOUNT, DEFINITION)] == [404] * 4
    await get_token(operator, 404)
    with pytest.raises(InvalidError, match="cannot attest"):
        async with serving(tmp_path / "attested", attestation="required"):
            pass
