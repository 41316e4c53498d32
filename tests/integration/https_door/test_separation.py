"""No client opens another cluster: every resource, verb and path of discovery, with every kind of credential."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from hub.api.approvalrules import flag_rules
from hub.api.certificates import CertificateHolder, Purpose
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.managedclusters.agent_annotations import HUBS
from hub.api.managedclusters.removal import FORCED, KEEP_CREDENTIALS
from hub.registry.approvalrules import approval as approving
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusteraddons import service as addons
from machinery import pki
from machinery.identity import (
    CLUSTER_LABEL,
    SIGNER,
    AddOnName,
    AgentId,
    CertificateSubject,
    ClusterName,
    addon_subject,
    agent_subject,
    recovery_subject,
)
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, HubUnderTest, Visitor, admin_of, asked_for, holder, nobody

OTHER = "edge2"
OWN_EVERYWHERE = {
    # what everybody who is known may create, and what answers for the asker alone
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    # an agent asks for certificates; the admission looks at whose they are
    ("certificates.k8s.io", "certificatesigningrequests"),
}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{0}/leases"
CREDENTIALS = "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials"


@dataclass(frozen=True)
class Place:
    """One resource of discovery."""

    group: str
    prefix: str
    name: str
    namespaced: bool
    verbs: tuple[str, ...]

    @property
    def requests(self) -> Iterator[tuple[str, str]]:
        """Method and path of everything that can be asked about the other cluster, and about all of them."""
        resource, _, part = self.name.partition("/")
        part = f"/{part}" if part else ""
        roots = [f"{self.prefix}/{resource}"]
        if self.namespaced:
            roots.append(f"{self.prefix}/namespaces/{OTHER}/{resource}")
        methods = {"get": "GET", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
        for verb in self.verbs:
            if verb in methods:
                yield methods[verb], f"{roots[-1]}/{OTHER}{part}"
            elif part:
                yield "POST", f"{roots[-1]}/{OTHER}{part}"
            elif verb in ("create", "deletecollection"):
                yield from (("POST" if verb == "create" else "DELETE", root) for root in roots)
        yield from (("GET", path) for path in self.listed(OTHER))

    def listed(self, cluster: str) -> Iterator[str]:
        """Every path that lists or watches them, in all namespaces and in the cluster's, whole and by a selector."""
        roots = [f"{self.prefix}/{self.name}"] + [f"{self.prefix}/namespaces/{cluster}/{self.name}"] * self.namespaced
        for verb in {"list", "watch"} & set(self.verbs):
            watch = "watch=1&timeoutSeconds=1&" if verb == "watch" else ""
            for root in roots:
                for selector in ("", f"fieldSelector=metadata.name%3D{cluster}", f"labelSelector={CLUSTER_LABEL}%3D{cluster}"):
                    yield f"{root}?{watch}{selector}"


async def places(visitor: Visitor) -> list[Place]:
    """Everything that is served, in every version."""
    found = []
    for name in (await visitor.get("/apis"))[1]["groups"]:
        for version in name["versions"]:
            found += await _served(visitor, name["name"], f"/apis/{version['groupVersion']}")
    return found + await _served(visitor, "", "/api/v1")


async def _served(visitor: Visitor, group: str, prefix: str) -> list[Place]:
    resources = (await visitor.get(prefix))[1]["resources"]
    return [Place(group, prefix, each["name"], each["namespaced"], tuple(each["verbs"])) for each in resources]


async def signed(hub: HubUnderTest, agent: str, cluster: str = "edge1", purpose: Purpose = Purpose.AGENT) -> Visitor:
    """A certificate of an agent, recorded as whatever `purpose` says."""
    whose = CertificateHolder(cluster=ClusterName(cluster), agent=AgentId(agent), addon=AddOnName("metrics"))
    return holder(hub, await hub.certificate(purpose, agent_subject(ClusterName(cluster), AgentId(agent)), whose))


@pytest.fixture(autouse=True)
def _no_limit_of_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """All callers have one address here, and thousands of their questions are refused."""
    monkeypatch.setattr("hub.access.limits.REFUSALS_AT_ONCE", 1_000_000)


@pytest.fixture
async def agent(hub: HubUnderTest) -> Visitor:
    await hub.join("edge1")
    await hub.join(OTHER)
    await hub.accept("edge1")
    await hub.accept(OTHER)
    return await signed(hub, "bcdfg")


async def test_an_agent_uses_its_own_cluster_and_neither_accepts_nor_denies_itself(hub: HubUnderTest, agent: Visitor) -> None:
    own, selected = f"{CLUSTERS}/edge1", "fieldSelector=metadata.name%3Dedge1"
    await hub.request("edge1", "mine")
    await hub.request(OTHER, "theirs")
    for path in (own, f"{CLUSTERS}?{selected}", LEASES.format("edge1"), f"{LEASES.format('edge1')}/managed-cluster-lease"):
        assert (await agent.get(path))[0] == 200, path
    assert (await agent.get(f"{REQUESTS}?labelSelector={CLUSTER_LABEL}%3Dedge1"))[0] == 200
    assert [(await agent.get(f"{REQUESTS}/{name}"))[0] for name in ("mine", "theirs", "nobodys")] == [200, 403, 403]
    assert (await agent.get("/apis/addon.open-cluster-management.io/v1beta1/namespaces/edge1/managedclusteraddons"))[0] == 200
    patch = {"status": {"version": {"kubernetes": "v1.31.0"}}}
    assert (await agent.patch(f"{own}/status", patch))[0] == 200
    document = (await agent.get(own))[1]
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": "edge1", "uid": "u"}
    for key, value in (("finalizers", ["example.com/mine"]), ("ownerReferences", [owner])):
        status, refused = await agent.ask("PUT", own, {**document, "metadata": {**document["metadata"], key: value}})
        assert (status, f"an agent does not change metadata.{key}" in refused["message"]) == (403, True)
        await agent.patch(f"{own}/status", {"metadata": {key: value}, **patch})
        assert not (await agent.get(own))[1]["metadata"].get(key)
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", key: value}, "involvedObject": {}}
        assert (await agent.ask("POST", "/api/v1/namespaces/edge1/events", event))[0] == 403
    assert (await agent.patch(f"{CLUSTERS}/{OTHER}/status", patch))[0] == 403
    for note, text in ((FORCED, ""), (KEEP_CREDENTIALS, "true")):
        noted = {**document["metadata"], "annotations": {note: text}}
        status, refused = await agent.ask("PUT", own, {**document, "metadata": noted})
        assert (status, f"an agent does not change the annotation {note}" in refused["message"]) == (403, True)
        await agent.patch(f"{own}/status", {"metadata": {"annotations": {note: text}}, **patch})
        assert note not in (await agent.get(own))[1]["metadata"].get("annotations", {})
    document = (await agent.get(own))[1]
    annotations = {**document["metadata"].get("annotations", {}), HUBS: "[" * 100_000}
    answer = await agent.ask("PUT", own, {**document, "metadata": {**document["metadata"], "annotations": annotations}})
    assert answer[0] == 200, answer
    assert "edge1" in await hub.output("hubctl get clusters"), "one agent hides no cluster from others"
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": 5}}
    assert (await agent.ask("POST", "/api/v1/namespaces/edge1/events", event))[0] in (400, 422)

    for accepts, status in ((True, 200), (False, 403)):
        document = (await agent.get(f"{CLUSTERS}/edge1"))[1]
        changed = {**document, "spec": {**document["spec"], "hubAcceptsClient": accepts}}
        answer = await agent.ask("PUT", f"{CLUSTERS}/edge1", changed)
        assert answer[0] == status, answer
    assert "cannot update the HubAcceptsClient field" in answer[1]["message"]
    labels = {"cluster.open-cluster-management.io/clusterset": "prod"}
    changed = {**document, "metadata": {**document["metadata"], "labels": labels}}
    assert (await agent.ask("PUT", f"{CLUSTERS}/edge1", changed))[0] == 403

    for query in (
        "metadata.name!%3Dedge1",
        "metadata.name!%3Dedge1&watch=1",
        "metadata.namespace!%3D%5C,metadata.name%3Dedge1",
    ):
        assert (await agent.get(f"{CLUSTERS}?fieldSelector={query}"))[0] == 403, query
    assert (await agent.get(f"{CLUSTERS}/{OTHER}"))[1]["message"] == (
        f'managedclusters.cluster.open-cluster-management.io "{OTHER}" is forbidden: '
        'User "system:open-cluster-management:edge1:bcdfg" cannot get resource "managedclusters" '
        'in API group "cluster.open-cluster-management.io" at the cluster scope'
    )
    assert 'User "system:anonymous" cannot' in (await nobody(hub).get(CLUSTERS))[1]["message"]
    for purpose in (Purpose.ADDON, Purpose.RECOVERY):
        pretender = await signed(hub, "bcdfg", purpose=purpose)
        for path in (f"{CLUSTERS}/edge1", LEASES.format("edge1"), f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge1"):
            assert (await pretender.get(path))[0] in (401, 403), (purpose, path)


async def test_operators_alone_impersonate_users_and_no_private_key_is_echoed(hub: HubUnderTest, agent: Visitor) -> None:
    admin = await admin_of(hub)
    status, answer = await admin.ask("GET", CLUSTERS, **{"Impersonate-User": "bob", "Impersonate-Group": "dev"})
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'User "bob" cannot list resource "managedclusters"' in answer["message"]
    assert (await admin.ask("GET", CLUSTERS, **{"Impersonate-User": "carol", "Impersonate-Group": "system:masters"}))[0] == 200
    own = {"Impersonate-User": "system:open-cluster-management:edge1:bcdfg"}
    assert (await admin.ask("GET", f"{CLUSTERS}/edge1", **own))[0] == 403
    status, answer = await agent.ask("GET", f"{CLUSTERS}/edge1", **{"Impersonate-User": "bob"})
    assert (status, "is excluded from" in answer["message"]) == (403, True)

    key = pki.generate_key().decode()
    made: dict[str, Any] = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "BootstrapCredential"}
    made |= {"metadata": {"generateName": "b-"}, "spec": {"request": key, "clusterName": "edge1"}}
    status, answer = await admin.ask("POST", CREDENTIALS, made)
    assert (status, key.splitlines()[1][:20] in json.dumps(answer)) == (422, False)


async def test_denial_ends_watches_and_withdraws_rights_until_the_next_acceptance(hub: HubUnderTest, agent: Visitor) -> None:
    admin = await admin_of(hub)
    async with agent.watch(f"{CLUSTERS}/edge1?watch=1") as mine, admin.watch(f"{CLUSTERS}/edge1?watch=1") as others:
        assert [await mine.type(), await others.type()] == ["ADDED", "ADDED"]
        await hub.accept("edge1", accepted=False)
        await mine.broken()
        assert others.is_open

    leases = LEASES.format("edge1")
    await agent.until(leases, 403)
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200
    assert (await agent.patch(f"{CLUSTERS}/edge1/status", {"status": {}}))[0] == 403
    await hub.accept("edge1")
    await agent.until(leases, 200)

    await admin.bind("view", "Group", "system:open-cluster-management:edge1")
    assert (await agent.get(CLUSTERS))[0] == 200
    await hub.accept("edge1", accepted=False)
    await agent.until(CLUSTERS, 403)

    newer = await signed(hub, "other")
    # Issued by no request of the change log: what is known of the cluster is read anew with its next change.
    await hub.accept("edge1")
    await newer.until(leases, 200)
    await agent.until(leases, 403)
    assert ((await agent.get(f"{CLUSTERS}/edge1"))[0], (await newer.get(f"{CLUSTERS}/edge1"))[0]) == (403, 200)


async def test_bootstrap_certificate_joins_and_requests_for_its_own_cluster_only(hub: HubUnderTest, tmp_path: Any) -> None:
    file = tmp_path / "b.kubeconfig"
    await hub.output(f"hubctl create bootstrap-kubeconfig --cluster edge7 -o {file} --allow-loopback")
    joining = holder(hub, file)
    document = {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": "edge7"},
        "spec": {"hubAcceptsClient": True},
    }
    refused = await joining.ask("POST", CLUSTERS, document)
    assert (refused[0], refused[1]["reason"]) == (403, "Forbidden")
    document["spec"] = {"hubAcceptsClient": False}
    keeps = {"name": "edge7", "annotations": {KEEP_CREDENTIALS: "true"}}
    assert (await joining.ask("POST", CLUSTERS, {**document, "metadata": keeps}))[0] == 403
    assert (await joining.ask("POST", CLUSTERS, {**document, "metadata": {"name": "edge8"}}))[0] == 403
    assert (await joining.ask("POST", CLUSTERS, document))[0] == 201
    assert ((await joining.get(f"{CLUSTERS}/edge7"))[0], (await joining.ask("DELETE", f"{CLUSTERS}/edge7"))[0]) == (200, 403)
    assert (await joining.get(f"{REQUESTS}?labelSelector={CLUSTER_LABEL}%3Dedge7"))[0] == 200
    assert (await joining.get(REQUESTS))[0] == 403

    status, own = await joining.ask("POST", REQUESTS, asked_for("edge7", "bcdfg", "edge7"))
    assert status == 201, own
    assert (await joining.get(f"{REQUESTS}/{own['metadata']['name']}"))[0] == 200
    assert (await joining.ask("POST", REQUESTS, asked_for("edge8", "bcdfg", "edge7")))[0] == 403
    assert (await joining.ask("POST", REQUESTS, asked_for("edge7", "bcdfg", "edge8")))[0] == 403


async def test_an_agent_changes_of_an_add_ons_registrations_the_driver_alone(hub: HubUnderTest, agent: Visitor) -> None:
    registered = {"status": {"registrations": [{"type": "kubeClient", "kubeClient": {"driver": "csr"}}]}}
    await hub.store.run(addons.put, {"metadata": {"name": "work", "namespace": "edge1"}, **registered}, None, "test")
    subject = {"user": "system:kube-controller-manager", "groups": ["system:nodes"]}
    by_token = {"driver": "token", "subject": {"user": "system:serviceaccount:edge1:work-agent"}}
    rows = (
        ("v1alpha1", {"signerName": SIGNER, "subject": subject}, 403),
        ("v1beta1", {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": subject}}, 403),
        ("v1beta1", {"type": "kubeClient", "kubeClient": by_token}, 200),
    )
    for version, registration, expected in rows:
        path = f"/apis/addon.open-cluster-management.io/{version}/namespaces/edge1/managedclusteraddons/work/status"
        assert (await agent.patch(path, {"status": {"registrations": [registration]}}))[0] == expected, registration


async def test_an_agent_renews_by_the_api_without_a_human_and_only_itself(hub: HubUnderTest, agent: Visitor) -> None:
    status, own = await agent.ask("POST", REQUESTS, asked_for("edge1", "bcdfg", "edge1"))
    assert status == 201, own
    assert own["spec"]["username"] == "system:open-cluster-management:edge1:bcdfg"
    assert (await agent.ask("POST", REQUESTS, asked_for(OTHER, "bcdfg", OTHER)))[0] == 403
    others = [await agent.ask("POST", REQUESTS, asked_for(*who, "edge1")) for who in ((OTHER, "bcdfg"), ("edge1", "xyz"))]
    await hub.store.run(approving.review, own["metadata"]["name"], (), "test")
    for _, other in others:
        await hub.store.run(approving.review, other["metadata"]["name"], flag_rules(("*",)), "test")
    assert (await hub.store.run(requests.state, own["metadata"]["name"])).phase is RequestPhase.APPROVED
    for _, other in others:
        assert (await hub.store.run(requests.state, other["metadata"]["name"])).phase is RequestPhase.PENDING


FORBIDDEN, UNKNOWN = 403, 401
CLUSTER_GROUP = "cluster.open-cluster-management.io"
LOGINS = {("login.open-cluster-management.io", "tokencredentialrequests")}
"""What somebody asks who is nobody yet; there is nothing in it to list."""
PUBLIC = {"/version", "/healthz", "/livez", "/readyz", "/crl"}
"""Open to everyone, because they are about no cluster. Paths below /livez and similar too, as in Kubernetes."""
KNOWN = {"/", "/api", "/apis", "/openapi/v2", "/openapi/v3"}
"""Discovery, which is served to every authenticated user."""
COUNTED = {"/metrics"}  # what is open to who looks after the hub, and to nobody else here
PARTS = ("/healthz/", "/livez/", "/readyz/", "/api/", "/apis/", "/openapi/v3/")
"""What lies below one of these is as open as that."""


@dataclass(frozen=True)
class RequesterRecord:
    """Somebody, and how the door refuses him. `may`: what opens all the same, because it is nobody's cluster."""

    name: str
    visitor: Visitor
    refused: int = FORBIDDEN
    may: frozenset[tuple[str, str]] = field(default_factory=lambda: frozenset(OWN_EVERYWHERE))
    """Group and resource of creations that are answered."""


@pytest.fixture
async def askers(hub: HubUnderTest) -> list[RequesterRecord]:
    edge1, agent = ClusterName("edge1"), AgentId("bcdfg")
    for name in ("edge1", OTHER):
        await hub.join(name)
        await hub.accept(name)
    await hub.request(OTHER, "theirs")
    file = hub.folder / "edge7.kubeconfig"
    await hub.output(f"hubctl create bootstrap-kubeconfig --cluster edge7 -o {file} --allow-loopback")
    of_addon = CertificateHolder(cluster=edge1, addon=AddOnName("metrics"))
    addon = holder(hub, await hub.certificate(Purpose.ADDON, addon_subject(edge1, AddOnName("metrics"), "agent"), of_addon))
    of_agent = CertificateHolder(cluster=edge1, agent=agent)
    recovery = holder(hub, await hub.certificate(Purpose.RECOVERY, recovery_subject(edge1, agent), of_agent))
    guest = holder(hub, await hub.certificate(Purpose.LOGIN, CertificateSubject("guest"), CertificateHolder()))
    await hub.join("edge3")
    revoked = await hub.agent("edge3")
    await hub.revoke(revoked)
    reviews = frozenset(pair for pair in OWN_EVERYWHERE if pair[1] != "certificatesigningrequests")
    return [
        RequesterRecord("agent", await signed(hub, "bcdfg")),
        RequesterRecord("add-on", addon, may=reviews),
        RequesterRecord("recovery", recovery, UNKNOWN, may=frozenset()),
        RequesterRecord("bootstrap", holder(hub, file), may=frozenset(OWN_EVERYWHERE | {(CLUSTER_GROUP, "managedclusters")})),
        RequesterRecord("login", guest, may=reviews),
        RequesterRecord("revoked", holder(hub, revoked), UNKNOWN, may=frozenset()),
        RequesterRecord("nobody", nobody(hub), may=frozenset()),
    ]


async def statuses(hub: HubUnderTest, asker: RequesterRecord, asked: Iterator[tuple[str, str]]) -> list[tuple[str, str, int]]:
    found = []
    async with asker.visitor.session() as session:
        for method, path in asked:
            async with session.request(method, hub.server + path, json={}) as response:
                found.append((method, path, response.status))
    return found


def of_others(served: list[Place], asker: RequesterRecord) -> Iterator[tuple[str, str]]:
    for place in served:
        if asker.name == "nobody" and (place.group, place.name) in LOGINS:
            continue
        for method, path in place.requests:
            if method != "POST" or (place.group, place.name) not in asker.may:
                yield method, path


async def test_no_resource_of_discovery_opens_another_cluster_to_anybody(
    hub: HubUnderTest, askers: list[RequesterRecord]
) -> None:
    served = await places(await admin_of(hub))
    assert {place.name for place in served} >= {"managedclusters", "revocations", "secrets", "managedclusters/move"}
    before = await stored(hub)
    opened = []
    for asker in askers:
        found = await statuses(hub, asker, of_others(served, asker))
        assert len(found) > 150
        opened += [(asker.name, *each) for each in found if each[2] != asker.refused]
    assert ("\n".join(map(str, opened)), await stored(hub)) == ("", before)


async def stored(hub: HubUnderTest) -> list[Any]:
    """All objects there are, but for what the hub itself notes."""
    admin, found = await admin_of(hub), []
    for path in (CLUSTERS, LEASES.format(OTHER)):
        found += (await admin.get(path))[1]["items"]
    return found


async def test_no_other_path_tells_anybody_anything_but_what_is_public(
    hub: HubUnderTest, askers: list[RequesterRecord]
) -> None:
    listed = (await (await admin_of(hub)).get("/"))[1]["paths"]
    unexpected = [path for path in listed if path not in PUBLIC | KNOWN | COUNTED and not path.startswith(PARTS)]
    assert unexpected == [], "a new path needs an expectation here"
    tried = sorted({*PUBLIC, *KNOWN, *COUNTED, *listed, "/debug/pprof", "/logs", "/configz", "/statusz"})
    for asker in askers:
        answers = {path: status for _, path, status in await statuses(hub, asker, (("GET", path) for path in tried))}
        for path, status in answers.items():
            served = path == "/crl" or (asker.refused == FORBIDDEN and path in PUBLIC)
            is_discovery = path in KNOWN or path.startswith(PARTS)
            assert status != 200 or served or (asker.name != "nobody" and is_discovery), (asker.name, path)
            assert status == 200 or not served, (asker.name, path, status)
            if asker.refused == UNKNOWN and path != "/crl":
                assert status == UNKNOWN, (asker.name, path, status)


async def test_lists_and_watches_hold_nothing_of_another_cluster(hub: HubUnderTest, askers: list[RequesterRecord]) -> None:
    agent = next(asker for asker in askers if asker.name == "agent")
    await hub.request("edge1", "mine")
    served, seen = await places(await admin_of(hub)), 0
    async with agent.visitor.session() as session:
        paths = [path for place in served for path in place.listed("edge1")]
        answers = await asyncio.gather(*(_items(session, hub.server + path) for path in paths))
    for path, items in answers:
        for item in items:
            metadata = item["metadata"]
            own = {metadata.get("namespace"), metadata["name"], (metadata.get("labels") or {}).get(CLUSTER_LABEL)}
            assert "edge1" in own, (path, metadata)
            assert OTHER not in own, (path, metadata)
            seen += 1
    assert seen >= 6, "its cluster, its lease and its request, listed and watched"


async def _items(session: aiohttp.ClientSession, path: str) -> tuple[str, list[Any]]:
    async with session.get(path) as response:
        text = await response.text()
        if response.status != 200:
            return path, []
        if "watch=1" not in path:
            return path, list(json.loads(text).get("items") or ())
        events = [json.loads(line) for line in text.splitlines() if line.strip()]
        return path, [event["object"] for event in events if event["type"] != "BOOKMARK"]
