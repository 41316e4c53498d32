"""An agent opens its own cluster and no other: tried on every path that discovery names, so that no resource is forgotten."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from hub.domain.approval_rule import of_flag
from hub.domain.certificate import Holder, Profile, Purpose
from hub.domain.request import CLUSTER_LABEL, SIGNER, USAGES, RequestPhase
from hub.issuer import LocalIssuer
from hub.ports import Transaction
from hub.services import clusters, requests
from machinery import pki
from machinery.identity import AddOnName, AgentId, ClusterName, agent_subject
from tests.fakes.issuing import sign_anything
from tests.integration.door.conftest import LIFETIMES, HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder

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
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


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
            else:
                yield from self._of_collections(verb, roots)

    def _of_collections(self, verb: str, roots: list[str]) -> Iterator[tuple[str, str]]:
        for root in roots:
            if verb == "create":
                yield "POST", root
            elif verb == "deletecollection":
                yield "DELETE", root
            elif verb in ("list", "watch"):
                watch = "watch=1&timeoutSeconds=1&" if verb == "watch" else ""
                for selector in ("", f"fieldSelector=metadata.name%3D{OTHER}", f"labelSelector={CLUSTER_LABEL}%3D{OTHER}"):
                    yield "GET", f"{root}?{watch}{selector}"


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


async def accept(hub: HubUnderTest, name: str, *, accepted: bool = True) -> None:
    def use_case(tx: Transaction) -> None:
        clusters.set_accepted(tx, ClusterName(name), accepted=accepted, actor="test")

    await hub.store.run(use_case)


async def settled(visitor: Visitor, path: str, status: int) -> None:
    """Returns when the path answers so."""
    async with asyncio.timeout(10):
        while (await visitor.get(path))[0] != status:  # noqa: ASYNC110 - the door tells nobody
            await asyncio.sleep(0.02)


async def signed(hub: HubUnderTest, agent: str, cluster: str = "edge1", purpose: Purpose = Purpose.AGENT) -> Visitor:
    """A certificate of an agent, recorded as whatever `purpose` says."""
    key = pki.generate_key()

    def sign(tx: Transaction, issuer: LocalIssuer) -> Any:
        subject = agent_subject(ClusterName(cluster), AgentId(agent))
        until = tx.now + LIFETIMES.agent
        profile = Profile(purpose, subject, pki.public_key_of(key), tx.now - LIFETIMES.backdate, until)
        whose = Holder(cluster=ClusterName(cluster), agent=AgentId(agent), addon=AddOnName("metrics"))
        return sign_anything(tx, issuer, profile, whose)

    issued = await hub.store.run(sign, hub.issuer)
    return holder(hub, hub.kubeconfig(f"{cluster}-{agent}-{purpose}", issued, key))


@pytest.fixture
async def agent(hub: HubUnderTest) -> Visitor:
    await hub.join("edge1")
    await hub.join(OTHER)
    await accept(hub, "edge1")
    await accept(hub, OTHER)
    return await signed(hub, "bcdfg")


async def test_no_path_of_discovery_opens_another_cluster(hub: HubUnderTest, agent: Visitor) -> None:
    served = await places(holder(hub, await hub.admin()))
    assert {place.name for place in served} >= {"managedclusters", "leases", "secrets", "clusterroles", "managedclusteraddons"}
    opened = []
    tried = 0
    connector = aiohttp.TCPConnector(ssl=agent.context)
    async with aiohttp.ClientSession(hub.server, connector=connector) as session:
        for place in served:
            for method, path in place.requests:
                if method == "POST" and (place.group, place.name) in OWN_EVERYWHERE:
                    continue
                tried += 1
                async with session.request(method, path, json={}) as response:
                    if response.status != 403:
                        opened.append((method, path, response.status))
    assert opened == []
    assert tried > 150


async def test_an_agent_finds_what_it_needs_of_its_own_cluster(hub: HubUnderTest, agent: Visitor) -> None:
    own, selected = f"{CLUSTERS}/edge1", "fieldSelector=metadata.name%3Dedge1"
    labelled = f"labelSelector={CLUSTER_LABEL}%3Dedge1"
    await hub.request("edge1", "mine")
    await hub.request(OTHER, "theirs")
    for path in (own, f"{CLUSTERS}?{selected}", LEASES.format("edge1"), f"{LEASES.format('edge1')}/managed-cluster-lease"):
        assert (await agent.get(path))[0] == 200, path
    assert (await agent.get(f"{REQUESTS}?{labelled}"))[0] == 200
    assert (await agent.get(f"{REQUESTS}/mine"))[0] == 200
    assert (await agent.get(f"{REQUESTS}/theirs"))[0] == 403
    assert (await agent.get(f"{REQUESTS}/nobodys"))[0] == 403
    assert (await agent.get("/apis/addon.open-cluster-management.io/v1beta1/namespaces/edge1/managedclusteraddons"))[0] == 200
    patch = {"status": {"version": {"kubernetes": "v1.31.0"}}}
    assert (await _patch(agent, f"{own}/status", patch))[0] == 200
    assert (await _patch(agent, f"{CLUSTERS}/{OTHER}/status", patch))[0] == 403


async def _patch(visitor: Visitor, path: str, body: Any) -> tuple[int, Any]:
    return await visitor.ask("PATCH", path, body, **{"content-type": "application/merge-patch+json"})


async def test_an_agent_can_neither_accept_nor_deny_itself(agent: Visitor) -> None:
    for accepts, status in ((True, 200), (False, 403)):
        document = (await agent.get(f"{CLUSTERS}/edge1"))[1]
        changed = {**document, "spec": {**document["spec"], "hubAcceptsClient": accepts}}
        answer = await agent.ask("PUT", f"{CLUSTERS}/edge1", changed)
        assert answer[0] == status, answer
    assert "cannot update the HubAcceptsClient field" in answer[1]["message"]
    labels = {"cluster.open-cluster-management.io/clusterset": "prod"}
    labelled = {**document, "metadata": {**document["metadata"], "labels": labels}}
    assert (await agent.ask("PUT", f"{CLUSTERS}/edge1", labelled))[0] == 403


async def test_denial_withdraws_and_acceptance_grants_again(hub: HubUnderTest, agent: Visitor) -> None:
    leases = LEASES.format("edge1")
    assert (await agent.get(leases))[0] == 200
    await accept(hub, "edge1", accepted=False)
    await settled(agent, leases, 403)
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200
    assert (await _patch(agent, f"{CLUSTERS}/edge1/status", {"status": {}}))[0] == 403
    await accept(hub, "edge1")
    await settled(agent, leases, 200)


async def test_an_open_watch_ends_when_its_cluster_is_denied(hub: HubUnderTest, agent: Visitor) -> None:
    admin = holder(hub, await hub.admin())
    watch = f"{hub.server}{CLUSTERS}/edge1?watch=1"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=agent.context)) as session,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=admin.context)) as operators,
        session.get(watch) as response,
        operators.get(watch) as kept,
    ):
        assert json.loads(await response.content.readline())["type"] == "ADDED"
        assert json.loads(await kept.content.readline())["type"] == "ADDED"
        await accept(hub, "edge1", accepted=False)
        async with asyncio.timeout(10):
            with pytest.raises(aiohttp.ClientError):
                while await response.content.readline():
                    pass
        assert not kept.content.at_eof(), "the others watch on"


async def test_another_agent_of_the_same_group_opens_nothing(hub: HubUnderTest, agent: Visitor) -> None:
    newer = await signed(hub, "other")
    leases = LEASES.format("edge1")
    # Issued by no request of the change log: what is known of the cluster is read anew with its next change.
    await accept(hub, "edge1", accepted=False)
    await accept(hub, "edge1")
    await settled(newer, leases, 200)
    await settled(agent, leases, 403)
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 403
    assert (await newer.get(f"{CLUSTERS}/edge1"))[0] == 200


@pytest.mark.parametrize("purpose", [Purpose.ADDON, Purpose.RECOVERY])
async def test_a_certificate_with_an_agents_names_but_another_record_opens_nothing(
    hub: HubUnderTest, agent: Visitor, purpose: Purpose
) -> None:
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200
    pretender = await signed(hub, "bcdfg", purpose=purpose)
    for path in (f"{CLUSTERS}/edge1", LEASES.format("edge1"), f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge1"):
        assert (await pretender.get(path))[0] in (401, 403), path


async def test_roles_bound_to_a_clusters_group_count_for_its_own_agent_alone(hub: HubUnderTest, agent: Visitor) -> None:
    admin = holder(hub, await hub.admin())
    binding = {
        "metadata": {"name": "edge1-view"},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "Group", "name": "system:open-cluster-management:edge1"}],
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    assert (await admin.ask("POST", rbac, binding))[0] == 201
    assert (await agent.get(CLUSTERS))[0] == 200
    await accept(hub, "edge1", accepted=False)
    await settled(agent, CLUSTERS, 403)


async def test_a_bootstrap_certificate_joins_by_the_api_within_its_uses(hub: HubUnderTest, tmp_path: Any) -> None:
    file = tmp_path / "b.kubeconfig"
    made = await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge7", "-o", str(file), "--allow-loopback")
    assert made.code == 0, made
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
    other = {**document, "metadata": {"name": "edge8"}}
    assert (await joining.ask("POST", CLUSTERS, other))[0] == 403
    assert (await joining.ask("POST", CLUSTERS, document))[0] == 201
    assert (await joining.get(f"{CLUSTERS}/edge7"))[0] == 200
    assert (await joining.get(f"{REQUESTS}?labelSelector={CLUSTER_LABEL}%3Dedge7"))[0] == 200
    assert (await joining.get(REQUESTS))[0] == 403


def request_for(cluster: str, agent: str, labelled: str) -> dict[str, Any]:
    asked = pki.build_request(agent_subject(ClusterName(cluster), AgentId(agent)), pki.generate_key())
    return {
        "metadata": {"generateName": f"{labelled}-", "labels": {CLUSTER_LABEL: labelled}},
        "spec": {"request": b64encode(asked).decode(), "signerName": SIGNER, "usages": list(USAGES)},
    }


async def test_an_agent_renews_by_the_api_without_a_human_and_only_itself(hub: HubUnderTest, agent: Visitor) -> None:
    status, own = await agent.ask("POST", REQUESTS, request_for("edge1", "bcdfg", "edge1"))
    assert status == 201, own
    assert own["spec"]["username"] == "system:open-cluster-management:edge1:bcdfg"
    assert (await agent.ask("POST", REQUESTS, request_for(OTHER, "bcdfg", OTHER)))[0] == 403
    others = [await agent.ask("POST", REQUESTS, request_for(*who, "edge1")) for who in ((OTHER, "bcdfg"), ("edge1", "xyz"))]
    await hub.store.run(requests.review, own["metadata"]["name"], (), "test")
    for _, other in others:
        await hub.store.run(requests.review, other["metadata"]["name"], of_flag(("*",)), "test")
    assert (await hub.store.run(requests.state, own["metadata"]["name"])).phase is RequestPhase.APPROVED
    for _, other in others:
        assert (await hub.store.run(requests.state, other["metadata"]["name"])).phase is RequestPhase.PENDING


async def test_a_bootstrap_certificate_asks_for_its_own_cluster_alone(hub: HubUnderTest, tmp_path: Any) -> None:
    file = tmp_path / "b.kubeconfig"
    made = await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge7", "-o", str(file), "--allow-loopback")
    assert made.code == 0, made
    joining = holder(hub, file)
    status, own = await joining.ask("POST", REQUESTS, request_for("edge7", "bcdfg", "edge7"))
    assert status == 201, own
    assert (await joining.get(f"{REQUESTS}/{own['metadata']['name']}"))[0] == 200
    assert (await joining.ask("POST", REQUESTS, request_for("edge8", "bcdfg", "edge7")))[0] == 403
    assert (await joining.ask("POST", REQUESTS, request_for("edge7", "bcdfg", "edge8")))[0] == 403
