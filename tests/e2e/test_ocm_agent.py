"""An unmodified OCM agent joins through the HTTPS door: its recorded requests, sent to a real hub with our names and keys."""

import asyncio
import base64
import json
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from google.protobuf.internal import decoder, encoder

from machinery import pki
from machinery.client.rest import KubeClient
from machinery.identity import AgentId, CertificateSubject, ClusterName, agent_subject
from machinery.product import KUBECONFIG_EXTENSION
from tests.e2e.processes import Bench, is_available, status_of, until

pytestmark = pytest.mark.e2e

NAME = "edge2"
RULES = "hub.open-cluster-management.io/v1alpha1"
ADDONS = f"/apis/addon.open-cluster-management.io/v1beta1/namespaces/{NAME}/managedclusteraddons"
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
RECORDING = Path(__file__).parents[1] / "golden" / "ocm-agent.jsonl"
MAGIC = b"k8s\x00"
RAW = 2  # the field of `runtime.Unknown` that holds the object
METADATA, UID, RESOURCE_VERSION = 1, 5, 6
DECODER: Any = decoder
ENCODER: Any = encoder
SPEC, REQUEST = 2, 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """One exchange: the request as it was sent, and the status of its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int
    answer: Any

    def with_version(self, uid: str, resource_version: str) -> bytes:
        """The body, made from another object of the same kind."""
        if isinstance(self.body, dict) and "base64" in self.body:
            found = base64.b64decode(self.body["base64"])
            found = replaced(found, (METADATA, UID), uid.encode())
            return replaced(found, (METADATA, RESOURCE_VERSION), resource_version.encode())
        metadata = {**self.body["metadata"], "uid": uid, "resourceVersion": resource_version}
        return json.dumps({**self.body, "metadata": metadata}).encode()

    def with_request(self, pem: bytes) -> bytes:
        """The body of a CertificateSigningRequest, over another key."""
        return replaced(base64.b64decode(self.body["base64"]), (SPEC, REQUEST), pem)

    @property
    def sent(self) -> bytes | None:
        """The body as it was recorded."""
        if self.body is None:
            return None
        if "base64" in self.body:
            return base64.b64decode(self.body["base64"])
        return json.dumps(self.body).encode()


def recording() -> dict[int, Recorded]:
    """Every exchange by its number."""
    found = {}
    for line in RECORDING.read_text().splitlines():
        entry = json.loads(line)
        asked, response = entry["request"], entry["response"]
        query = f"?{asked['query']}" if asked.get("query") else ""
        found[entry["n"]] = Recorded(
            asked["method"], asked["path"] + query, asked["headers"], asked["body"], response["status"], response.get("body")
        )
    return found


def replaced(body: bytes, path: tuple[int, int], value: bytes) -> bytes:
    """A protobuf body of Kubernetes with other bytes in one field of one part of its object."""
    assert body.startswith(MAGIC)
    return MAGIC + _replaced(body.removeprefix(MAGIC), (RAW, *path), value)


def _replaced(message: bytes, path: tuple[int, ...], value: bytes) -> bytes:
    """A protobuf message with other bytes in the field at this path of field numbers; these messages hold texts and numbers."""
    position = 0
    while position < len(message):
        begin = position
        tag, position = DECODER._DecodeVarint(message, position)
        length, content = DECODER._DecodeVarint(message, position)
        if tag & 7 != 2:
            position = content
            continue
        position = content + length
        if tag >> 3 == path[0]:
            chosen = value if len(path) == 1 else _replaced(message[content:position], path[1:], value)
            head: bytes = ENCODER._VarintBytes(tag) + ENCODER._VarintBytes(len(chosen))
            return message[:begin] + head + chosen + message[position:]
    pytest.fail(f"there is no field {path[0]}")


@dataclass
class Informer:
    """An open watch, as the agent's informers keep it: what it knows by name, and which events came."""

    response: aiohttp.ClientResponse
    known: dict[str, Any] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    synced: bool = False

    async def until(self, condition: Callable[[Mapping[str, Any]], Any]) -> Any:
        """The first true answer about what is known; reads on until there is one."""
        while not (answer := condition(self.known)):
            self._take(json.loads(await self.response.content.readline()))
        return answer

    async def until_synced(self) -> None:
        await self.until(lambda _known: self.synced)

    def _take(self, event: Mapping[str, Any]) -> None:
        self.events.append(event["type"])
        thing = event["object"]
        if event["type"] == "BOOKMARK":
            self.synced = self.synced or thing["metadata"].get("annotations", {}).get(INITIAL_EVENTS_END) == "true"
        elif event["type"] == "DELETED":
            del self.known[thing["metadata"]["name"]]
        else:
            self.known[thing["metadata"]["name"]] = thing


@dataclass
class Agent:
    """The agent's side of the HTTPS door, with one identity."""

    session: aiohttp.ClientSession
    stack: AsyncExitStack

    async def ask(self, exchange: Recorded, body: bytes | None = None) -> Any:
        """The answer's object; its status is the recorded one, and JSON is what comes back."""
        async with self.session.request(
            exchange.method, exchange.path, data=body or exchange.sent, headers=exchange.headers
        ) as response:
            text = await response.text()
            assert response.status == exchange.status, text
            assert (response.content_type, (response.version or (0, 0))[:2]) == ("application/json", (1, 1))
            answer = json.loads(text)
            assert (answer["kind"], answer["apiVersion"]) == (exchange.answer["kind"], exchange.answer["apiVersion"])
            return answer

    async def informer(self, exchange: Recorded) -> Informer:
        response = await self.stack.enter_async_context(self.session.get(exchange.path, headers=exchange.headers))
        assert response.status == 200, await response.text()
        return Informer(response)

    async def answer(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.request(method, path, json=body) as response:
            return response.status, json.loads(await response.text())


@dataclass
class Hub:
    """A real hub, the agent's way in, and the recording."""

    bench: Bench
    server: str
    authority: str
    token: str
    stack: AsyncExitStack
    said: dict[int, Recorded] = field(default_factory=recording)

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    async def _agent(self, context: ssl.SSLContext, **headers: str) -> Agent:
        session = aiohttp.ClientSession(self.server, connector=aiohttp.TCPConnector(ssl=context), headers=headers)
        return Agent(await self.stack.enter_async_context(session), self.stack)

    async def with_token(self) -> Agent:
        return await self._agent(self._context(), authorization=f"Bearer {self.token}")

    async def with_certificate(self, certificate: bytes, key: bytes, name: str = "agent") -> Agent:
        file = self.bench.folder / f"{name}.pem"
        file.write_bytes(certificate + key)
        context = self._context()
        context.load_cert_chain(file)
        return await self._agent(context)


@pytest.fixture
async def hub(bench: Bench) -> AsyncIterator[Hub]:
    await bench.hub()
    async with await KubeClient.from_file(bench.admin) as admin:
        spec = {"decides": ["Accept", "Approve"], "requesters": [{"kind": "BootstrapCredential"}], "clusterNames": [NAME]}
        rule = {"apiVersion": RULES, "kind": "ApprovalRule", "metadata": {"name": "ones"}, "spec": spec}
        await admin.create(f"/apis/{RULES}/approvalrules", rule)
    kubeconfig = yaml.safe_load(await asyncio.to_thread(Path.read_text, await bench.bootstrap(NAME, "--token")))
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    assert KUBECONFIG_EXTENSION not in [each["name"] for each in cluster["extensions"]], (
        "an OCM agent would not know what to do with our gRPC address"
    )
    authority = b64decode(cluster["certificate-authority-data"]).decode()
    async with AsyncExitStack() as stack:
        yield Hub(bench, cluster["server"], authority, user["token"], stack)


async def registered(hub: Hub) -> tuple[bytes, bytes]:
    """The bootstrap phase as it was recorded: certificate and key."""
    message, agent = hub.said, await hub.with_token()
    clusters, requests = await agent.informer(message[1]), await agent.informer(message[2])
    await clusters.until_synced()
    await requests.until_synced()
    assert {**await agent.ask(message[3]), "metadata": {}} == message[3].answer
    assert (await agent.ask(message[4]))["spec"]["hubAcceptsClient"] is False
    key = pki.generate_key()
    asked = await agent.ask(
        message[5], message[5].with_request(pki.build_request(agent_subject(ClusterName(NAME), AgentId("edge2")), key))
    )
    assert asked["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": NAME}
    name = asked["metadata"]["name"]
    issued = await requests.until(lambda known: known.get(name, {}).get("status", {}).get("certificate"))
    await clusters.until(lambda known: NAME in known and status_of(known[NAME], "HubAcceptedManagedCluster") == "True")
    assert (requests.events[:2], set(requests.events[2:])) == (["BOOKMARK", "ADDED"], {"MODIFIED"})
    return b64decode(issued), key


async def test_its_recorded_requests_lead_to_available_and_to_a_renewed_certificate(hub: Hub) -> None:
    await reviews_its_rights(await hub.with_token())
    message, agent = hub.said, await hub.with_certificate(*await registered(hub))
    requests, clusters, addons = [await agent.informer(message[number]) for number in (6, 7, 8)]
    for each in (requests, clusters, addons):
        await each.until_synced()
    assert (clusters.events[0], addons.events[0]) == ("ADDED", "BOOKMARK")

    lease = await agent.ask(message[9])
    assert lease["spec"]["holderIdentity"] == message[9].answer["spec"]["holderIdentity"]
    mine = clusters.known[NAME]["metadata"]
    await agent.ask(message[10], message[10].with_version(mine["uid"], mine["resourceVersion"]))
    document = await clusters.until(lambda known: known[NAME] if is_available(known[NAME]) else None)
    assert [claim["name"] for claim in document["status"]["clusterClaims"]] == ["id.k8s.io", "region.example.com"]

    for read, write in ((9, 11), (14, 15), (19, 20), (25, 26)):
        lease = await agent.ask(message[read])
        stamp = lease["metadata"]
        renewed = await agent.ask(message[write], message[write].with_version(stamp["uid"], stamp["resourceVersion"]))
        assert renewed["spec"]["renewTime"] > lease["spec"]["renewTime"], "a beat is timed on receipt"

    event = await agent.ask(message[12])
    assert (event["reason"], event["regarding"]["name"]) == ("Available", NAME)
    assert "true" in (await hub.bench.hubctl("get", "clusters", NAME)).lower()
    assert json.loads(await hub.bench.hubctl("get", "rule", "ones", "-o", "json"))["spec"]["clusterNames"] == [NAME]
    events = await hub.bench.get(f"/api/v1/namespaces/{NAME}/events")
    assert event["metadata"]["name"] in [each["metadata"]["name"] for each in events["items"]]

    async def reported() -> bool:
        found = await hub.bench.get(f"/api/v1/namespaces/{NAME}/events")
        return {"Accepted", "CertificateIssued"} <= {each["reason"] for each in found["items"]}

    await until(reported, what="the hub's own Events tell of the join")

    key, subject = pki.generate_key(), agent_subject(ClusterName(NAME), AgentId("edge2"))
    name = (await agent.ask(message[5], message[5].with_request(pki.build_request(subject, key))))["metadata"]["name"]
    issued = await requests.until(lambda known: known.get(name, {}).get("status", {}).get("certificate"))
    renewed = await hub.with_certificate(b64decode(issued), key, "renewed")
    await renewed.ask(message[9])
    assert len(await hub.bench.requests()) == 2


async def test_its_add_on_gets_a_certificate_and_reports(hub: Hub) -> None:
    message, agent = hub.said, await hub.with_certificate(*await registered(hub))
    addons, requests = await agent.informer(message[8]), await agent.informer(message[6])
    await addons.until_synced()
    await _enable(hub, "demo-addon")
    stamp = (await addons.until(lambda known: known.get("demo-addon")))["metadata"]
    await agent.ask(message[13], message[13].with_version(stamp["uid"], stamp["resourceVersion"]))
    await addons.until(lambda known: status_of(known["demo-addon"], "Available") == "Unknown")

    await _enable(hub, "demo-addon2")
    stamp = (await addons.until(lambda known: known.get("demo-addon2")))["metadata"]
    registered_addon = await agent.ask(message[21], message[21].with_version(stamp["uid"], stamp["resourceVersion"]))
    assert registered_addon["status"]["registrations"] == message[21].body["status"]["registrations"]

    key = pki.generate_key()
    own_subject = message[21].body["status"]["registrations"][0]["kubeClient"]["subject"]
    subject = CertificateSubject(own_subject["user"], frozenset(own_subject["groups"]))
    asked = await agent.ask(message[22], message[22].with_request(pki.build_request(subject, key)))
    await hub.bench.hubctl("certificate", "approve", asked["metadata"]["name"])
    name = asked["metadata"]["name"]
    certificate = b64decode(await requests.until(lambda known: known.get(name, {}).get("status", {}).get("certificate")))
    assert pki.parse_certificate(certificate).subject == subject

    stamp = registered_addon["metadata"]
    for number in (23, 24):
        answer = await agent.ask(message[number], message[number].with_version(stamp["uid"], stamp["resourceVersion"]))
        stamp = answer["metadata"]
        await addons.until(lambda known: known["demo-addon2"]["metadata"]["resourceVersion"] == stamp["resourceVersion"])  # noqa: B023 - awaited
    assert status_of(addons.known["demo-addon2"], "ClusterCertificateRotated") == "True"


async def reviews_its_rights(agent: Agent) -> None:
    """As it does before it joins."""
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = [("cluster.open-cluster-management.io", "managedclusters", verb) for verb in ("create", "get")]
    asked += [("certificates.k8s.io", "certificatesigningrequests", verb) for verb in ("create", "get", "list", "watch")]
    for group, resource, verb in asked:
        attributes = {"group": group, "resource": resource, "verb": verb}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        status, reviewed = await agent.answer("POST", review, {**kind, "spec": {"resourceAttributes": attributes}})
        assert (status, reviewed["status"]["allowed"]) == (201, True), (resource, verb)


async def _enable(hub: Hub, name: str) -> None:
    kind = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
    async with await KubeClient.from_file(hub.bench.admin) as client:
        await client.create(ADDONS, {**kind, "metadata": {"name": name}, "spec": {}})
