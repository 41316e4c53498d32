"""Who may do what at the door, over TLS: operators, agents, strangers, nobody."""

import json

import aiohttp
import pytest

from hub.domain.certificate import Holder, Purpose
from machinery import pki
from machinery.identity import AddOnName, ClusterName, Subject
from machinery.tls import client_context
from tests.fakes.authority import OtherCA
from tests.integration.door.conftest import CLUSTERS, HubUnderTest, Visitor, admin_of, holder, nobody


async def test_anonymous_users_read_version_and_health_and_nothing_else(hub: HubUnderTest, subtests: pytest.Subtests) -> None:
    for path in ("/version", "/livez", "/readyz", "/healthz"):
        with subtests.test(path=path):
            assert (await nobody(hub).get(path))[0] == 200

    for path in (CLUSTERS, f"{CLUSTERS}/edge1", "/apis", "/openapi/v3", "/readyz/ping", "/apis/certificates.k8s.io/v1"):
        with subtests.test(path=path):
            status, answer = await nobody(hub).get(path)
            assert status == 403
            assert 'User "system:anonymous" cannot' in answer["message"]

    status, answer = await nobody(hub).ask("GET", "/version", authorization="Bearer guess")
    assert (status, answer["reason"]) == (401, "Unauthorized")


async def test_agents_read_and_watch_their_own_cluster_until_they_are_revoked(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.join("edge2")
    agent = holder(hub, await hub.agent("edge1"))
    once = "watch=1&timeoutSeconds=1"
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200
    assert (await agent.get(f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge1"))[0] == 200
    assert (await agent.get(f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge1&{once}"))[0] == 200
    assert (await agent.get("/apis"))[0] == 200
    for path in (
        f"{CLUSTERS}/edge2",
        CLUSTERS,
        f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge2",
        f"{CLUSTERS}?fieldSelector=metadata.name!%3Dedge1",
        f"{CLUSTERS}?fieldSelector=metadata.name!%3Dedge1&{once}",
        f"{CLUSTERS}?{once}",
        f"{CLUSTERS}?fieldSelector=metadata.namespace!%3D%5C,metadata.name%3Dedge1",
        f"{CLUSTERS}/edge1/status",
        "/apis/certificates.k8s.io/v1/certificatesigningrequests",
        "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials",
        "/apis/coordination.k8s.io/v1/leases",
    ):
        assert (await agent.get(path))[0] == 403, path
    assert (await agent.ask("DELETE", f"{CLUSTERS}/edge1"))[0] == 403

    status, answer = await agent.get(f"{CLUSTERS}/edge2")
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert answer["message"] == (
        'managedclusters.cluster.open-cluster-management.io "edge2" is forbidden: '
        'User "system:open-cluster-management:edge1:bcdfg" cannot get resource "managedclusters" '
        'in API group "cluster.open-cluster-management.io" at the cluster scope'
    )

    admin = await admin_of(hub)
    status, answer = await agent.ask("GET", f"{CLUSTERS}/edge1", **{"Impersonate-User": "bob"})
    assert (status, "takes no part" in answer["message"]) == (403, True)
    name = "system:open-cluster-management:edge1:bcdfg"
    assert (await admin.ask("GET", f"{CLUSTERS}/edge1", **{"Impersonate-User": name}))[0] == 403

    subject = Subject("metrics", frozenset(("system:masters",)))
    addon = await hub.certificate(Purpose.ADDON, subject, Holder(cluster=ClusterName("edge1"), addon=AddOnName("metrics")))
    assert (await holder(hub, addon).get(CLUSTERS))[0] == 403


async def test_a_revoked_certificate_is_refused_and_its_open_watches_end(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    path = await hub.agent("edge1")
    agent, admin = holder(hub, path), await admin_of(hub)
    async with agent.watch(f"{CLUSTERS}/edge1?watch=1") as mine, admin.watch(f"{CLUSTERS}/edge1?watch=1") as others:
        assert [await mine.type(), await others.type()] == ["ADDED", "ADDED"]
        await hub.revoke(path)
        await mine.broken()
        assert others.is_open

    status, answer = await agent.get(f"{CLUSTERS}/edge1")
    assert (status, answer["reason"]) == (401, "Unauthorized")


async def test_a_certificate_of_another_ca_does_not_come_in(hub: HubUnderTest) -> None:
    issued = OtherCA("other").issue("admin", "system:masters")
    visitor = Visitor(hub, client_context(hub.issuer.trust_bundle, issued.chain, issued.key))
    with pytest.raises(aiohttp.ClientError):
        await visitor.get(CLUSTERS)


async def test_a_watch_resumes_across_a_restart_without_loss_or_double(hub: HubUnderTest) -> None:
    admin = await admin_of(hub)
    seen: list[str] = []

    async def watch(place: str, until: int) -> str:
        async with admin.watch(f"{CLUSTERS}?watch=1&resourceVersion={place}&timeoutSeconds=10") as events:
            while len(seen) < until:
                event = await events.event()
                seen.append(f"{event['type']} {event['object']['metadata']['name']}")
                place = event["object"]["metadata"]["resourceVersion"]
        return place

    await hub.join("edge0")
    start = (await admin.get(CLUSTERS))[1]["metadata"]["resourceVersion"]
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
    place = await watch(start, until=2)
    await hub.join("edge4")
    await hub.restart()
    await hub.join("edge5")
    await watch(place, until=5)
    assert seen == [f"ADDED edge{number}" for number in (1, 2, 3, 4, 5)]


async def test_operators_impersonate_users_and_no_private_key_is_echoed(hub: HubUnderTest) -> None:
    admin = await admin_of(hub)
    status, answer = await admin.ask("GET", CLUSTERS, **{"Impersonate-User": "bob", "Impersonate-Group": "dev"})
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'User "bob" cannot list resource "managedclusters"' in answer["message"]
    as_operators = {"Impersonate-User": "carol", "Impersonate-Group": "system:masters"}
    assert (await admin.ask("GET", CLUSTERS, **as_operators))[0] == 200

    key = pki.generate_key().decode()
    document = {
        "apiVersion": "hub.open-cluster-management.io/v1alpha1",
        "kind": "BootstrapCredential",
        "metadata": {"generateName": "b-"},
        "spec": {"request": key, "clusterName": "edge1"},
    }
    status, answer = await admin.ask("POST", "/apis/hub.open-cluster-management.io/v1alpha1/bootstrapcredentials", document)
    assert status == 422
    assert key.splitlines()[1][:20] not in json.dumps(answer)
