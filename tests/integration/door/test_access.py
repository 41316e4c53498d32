"""Who may do what at the door, over TLS: operators, agents, strangers, nobody."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hub.domain.certificate import Holder, Profile, Purpose
from hub.issuer import LocalIssuer
from hub.ports import Transaction
from machinery import kubeconfig, pki
from machinery.clock import SystemClock
from machinery.identity import AddOnName, ClusterName, Subject
from machinery.tls import client_context
from tests.fakes.issuing import sign_anything
from tests.integration.door.conftest import LIFETIMES, HubUnderTest

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"


@dataclass
class Visitor:
    """Somebody at the door."""

    hub: HubUnderTest
    context: ssl.SSLContext

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connector = aiohttp.TCPConnector(ssl=self.context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, self.hub.server + path, json=body, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.ask("GET", path)


def nobody(hub: HubUnderTest) -> Visitor:
    return Visitor(hub, client_context(hub.issuer.trust_bundle))


def holder(hub: HubUnderTest, path: Path) -> Visitor:
    credential = kubeconfig.read_kubeconfig(path).require_credential()
    return Visitor(hub, client_context(hub.issuer.trust_bundle, credential.chain, credential.key))


@pytest.mark.parametrize("path", ["/version", "/livez", "/readyz", "/healthz"])
async def test_anybody_reads_version_and_health(hub: HubUnderTest, path: str) -> None:
    assert (await nobody(hub).get(path))[0] == 200


@pytest.mark.parametrize(
    "path", [CLUSTERS, f"{CLUSTERS}/edge1", "/apis", "/openapi/v3", "/readyz/ping", "/apis/certificates.k8s.io/v1"]
)
async def test_nobody_reads_anything_else(hub: HubUnderTest, path: str) -> None:
    status, answer = await nobody(hub).get(path)
    assert status == 403
    assert 'User "system:anonymous" cannot' in answer["message"]


async def test_a_token_that_nobody_issued_is_refused(hub: HubUnderTest) -> None:
    status, answer = await nobody(hub).ask("GET", "/version", authorization="Bearer guess")
    assert (status, answer["reason"]) == (401, "Unauthorized")


async def test_a_refusal_is_in_kubernetes_words(hub: HubUnderTest) -> None:
    agent = holder(hub, await hub.agent("edge1"))
    status, answer = await agent.get(f"{CLUSTERS}/edge2")
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert answer["message"] == (
        'managedclusters.cluster.open-cluster-management.io "edge2" is forbidden: '
        'User "system:open-cluster-management:edge1:bcdfg" cannot get resource "managedclusters" '
        'in API group "cluster.open-cluster-management.io" at the cluster scope'
    )


async def test_an_agent_reads_and_watches_its_own_cluster_and_no_other(hub: HubUnderTest) -> None:
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


async def test_a_bootstrap_certificate_opens_its_own_name_alone(hub: HubUnderTest, tmp_path: Path) -> None:
    await hub.join("edge1")
    await hub.join("edge2")
    file = tmp_path / "b.kubeconfig"
    made = await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge1", "-o", str(file), "--allow-loopback")
    assert made.code == 0
    bootstrap = holder(hub, file)
    assert (await bootstrap.get(f"{CLUSTERS}/edge1"))[0] == 200
    for path in (f"{CLUSTERS}/edge2", CLUSTERS, f"{CLUSTERS}?fieldSelector=metadata.name%3Dedge2"):
        assert (await bootstrap.get(path))[0] == 403, path
    assert (await bootstrap.ask("DELETE", f"{CLUSTERS}/edge1"))[0] == 403


async def test_a_revoked_certificate_is_nobody(hub: HubUnderTest) -> None:
    path = await hub.agent("edge1")
    await hub.revoke(path)
    status, answer = await holder(hub, path).get(f"{CLUSTERS}/edge1")
    assert (status, answer["reason"]) == (401, "Unauthorized")


async def test_an_open_watch_ends_when_its_certificate_is_revoked(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    path, other = await hub.agent("edge1"), await hub.admin()
    watch = f"{hub.server}{CLUSTERS}/edge1?watch=1"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=holder(hub, path).context)) as session,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=holder(hub, other).context)) as operators,
        session.get(watch) as response,
        operators.get(watch) as kept,
    ):
        assert json.loads(await response.content.readline())["type"] == "ADDED"
        assert json.loads(await kept.content.readline())["type"] == "ADDED"
        await hub.revoke(path)
        async with asyncio.timeout(10):
            with pytest.raises(aiohttp.ClientError):
                while await response.content.readline():
                    pass
        assert not kept.content.at_eof(), "the others watch on"


async def test_an_add_on_whose_registration_names_the_operators_is_no_operator(hub: HubUnderTest) -> None:
    key = pki.generate_key()

    def sign(tx: Transaction, issuer: LocalIssuer) -> Any:
        subject = Subject("metrics", frozenset(("system:masters",)))
        profile = Profile(Purpose.ADDON, subject, pki.public_key_of(key), tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.agent)
        return sign_anything(tx, issuer, profile, Holder(cluster=ClusterName("edge1"), addon=AddOnName("metrics")))

    issued = await hub.store.run(sign, hub.issuer)
    assert (await holder(hub, hub.kubeconfig("metrics", issued, key)).get(CLUSTERS))[0] == 403


async def test_a_certificate_of_another_ca_does_not_come_in(hub: HubUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = LocalIssuer.open(folder, LIFETIMES, SystemClock().now())
    key = pki.generate_key()
    profile = Profile(
        Purpose.OPERATOR,
        Subject("admin", frozenset(("system:masters",))),
        pki.public_key_of(key),
        SystemClock().now() - LIFETIMES.backdate,
        SystemClock().now() + LIFETIMES.agent,
    )
    issued = other.issue(profile, pki.random_serial(), SystemClock().now())
    visitor = Visitor(hub, client_context(hub.issuer.trust_bundle, issued.chain, key))
    with pytest.raises(aiohttp.ClientError):
        await visitor.get(CLUSTERS)


async def test_a_private_key_in_place_of_a_request_is_refused_and_not_echoed(hub: HubUnderTest) -> None:
    admin = holder(hub, await hub.admin())
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


async def test_a_watch_resumes_across_a_restart_without_loss_or_double(hub: HubUnderTest) -> None:
    """The same SQLite file, another process's worth of memory: every revision once, in order."""
    admin = await hub.admin()
    told: list[str] = []

    async def watch(place: str, until: int) -> str:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=holder(hub, admin).context)) as session,
            session.get(f"{hub.server}{CLUSTERS}?watch=1&resourceVersion={place}&timeoutSeconds=10") as response,
        ):
            async for line in response.content:
                event = json.loads(line)
                told.append(f"{event['type']} {event['object']['metadata']['name']}")
                place = event["object"]["metadata"]["resourceVersion"]
                if len(told) >= until:
                    break
        return place

    await hub.join("edge0")
    start = (await holder(hub, admin).get(CLUSTERS))[1]["metadata"]["resourceVersion"]
    for name in ("edge1", "edge2", "edge3"):
        await hub.join(name)
    place = await watch(start, until=2)
    await hub.join("edge4")
    await hub.restart()
    await hub.join("edge5")
    await watch(place, until=5)
    assert told == [f"ADDED edge{number}" for number in (1, 2, 3, 4, 5)]


async def test_an_operator_acts_as_another_and_is_answered_as_that_one(hub: HubUnderTest) -> None:
    admin = holder(hub, await hub.admin())
    status, answer = await admin.ask("GET", CLUSTERS, **{"Impersonate-User": "bob", "Impersonate-Group": "dev"})
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert 'User "bob" cannot list resource "managedclusters"' in answer["message"]
    as_operators = {"Impersonate-User": "carol", "Impersonate-Group": "system:masters"}
    assert (await admin.ask("GET", CLUSTERS, **as_operators))[0] == 200


async def test_an_agent_neither_acts_as_another_nor_is_acted_as(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent, admin = holder(hub, await hub.agent("edge1")), holder(hub, await hub.admin())
    status, answer = await agent.ask("GET", f"{CLUSTERS}/edge1", **{"Impersonate-User": "bob"})
    assert (status, "takes no part" in answer["message"]) == (403, True)
    name = "system:open-cluster-management:edge1:bcdfg"
    assert (await admin.ask("GET", f"{CLUSTERS}/edge1", **{"Impersonate-User": name}))[0] == 403


@pytest.mark.kubectl
async def test_kubectl_as_another_user(hub: HubUnderTest) -> None:
    ended = await hub.kubectl("get", "managedclusters", "--as=bob", "--as-group=dev", "--as-uid=u-1")
    assert ended.code == 1
    assert 'User "bob" cannot list resource "managedclusters"' in ended.err
    assert (await hub.kubectl("get", "managedclusters", "--as=bob", "--as-group=system:masters")).code == 0
