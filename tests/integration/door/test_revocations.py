"""Revocations through the door: made by hubctl, shown, never changed, made by operators alone, and felt by whom they end."""

import asyncio
import json

import aiohttp
import pytest

from hub.domain import cluster as cluster_rules
from hub.services import clusters
from machinery.identity import ClusterName
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder

REVOCATIONS = "/apis/hub.open-cluster-management.io/v1alpha1/revocations"
KIND = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "Revocation"}


async def admin(hub: HubUnderTest) -> Visitor:
    return holder(hub, await hub.admin())


async def revoke(hub: HubUnderTest, name: str = "r1", **spec: str) -> tuple[int, dict[str, object]]:
    status, answer = await (await admin(hub)).ask("POST", REVOCATIONS, {**KIND, "metadata": {"name": name}, "spec": spec})
    return status, dict(answer)


async def test_hubctl_revokes_a_cluster_and_says_what_ended_and_how_it_comes_back(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    done = await hub.hubctl("revoke", "cluster", "edge1", "--reason", "keycompromise", "-m", "laptop stolen")
    assert done.code == 0, done.err
    assert done.out.startswith("revoked: 1 certificate (revocation edge1-")
    assert "hubctl create bootstrap-kubeconfig --cluster edge1" in done.out
    shown = (await hub.hubctl("get", "revocations")).out.splitlines()
    assert shown[0].split() == ["NAME", "SUBJECT", "REASON", "BY", "ENDED", "MESSAGE", "AGE"]
    assert 'cluster "edge1"' in shown[1]
    assert "laptop stolen" in shown[1]
    status, answer = await holder(hub, agent).get(f"{CLUSTERS}/edge1")
    assert (status, answer["reason"]) == (401, "Unauthorized")
    assert answer["details"]["causes"][0]["reason"] == "CertificateRevoked"
    assert "KeyCompromise" in answer["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cluster", "nobody"), 'cluster "nobody" not found'),
        (("agent", "edge1", "nobody"), 'agent "nobody" of cluster "edge1" not found'),
        (("serial", "5f"), "no certificate with serial 5f"),
        (("serial", "five"), "is no serial"),
        (("bootstrap-credential", "nobody"), 'bootstrap credential "nobody" not found'),
    ],
)
async def test_hubctl_says_that_there_is_nothing_to_revoke(hub: HubUnderTest, arguments: tuple[str, ...], said: str) -> None:
    done = await hub.hubctl("revoke", *arguments)
    assert done.code != 0
    assert said in done.err


async def test_a_serial_is_taken_as_openssl_shows_it(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    (record,) = await hub.store.read(lambda tx: tx.certificates.of_cluster(ClusterName("edge1")))
    text = f"{record.serial:X}"
    shown = ":".join(text[place : place + 2] for place in range(0, len(text), 2))
    assert (await hub.hubctl("revoke", "serial", shown)).code == 0
    assert (await holder(hub, agent).get(f"{CLUSTERS}/edge1"))[0] == 401


async def test_a_watch_of_a_revoked_cluster_ends_at_once_and_the_operators_goes_on(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent, own = holder(hub, await hub.agent("edge1")), await admin(hub)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=agent.context)) as session,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=own.context)) as operators,
        session.get(f"{hub.server}{CLUSTERS}/edge1?watch=1") as response,
        operators.get(f"{hub.server}{REVOCATIONS}?watch=1") as told,
    ):
        await response.content.readline()
        assert (await revoke(hub, cluster="edge1"))[0] == 201
        async with asyncio.timeout(5):
            with pytest.raises(aiohttp.ClientError):
                while await response.content.readline():
                    pass
            event = json.loads(await told.content.readline())
        assert (event["type"], event["object"]["spec"]["cluster"]) == ("ADDED", "edge1")
        assert event["object"]["status"]["revokedBy"] == "admin"


async def test_a_revocation_is_neither_changed_nor_deleted(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    assert (await revoke(hub, cluster="edge1"))[0] == 201
    operator = await admin(hub)
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await operator.ask(method, f"{REVOCATIONS}/r1", {}))[0] == 405, method
    assert (await operator.ask("DELETE", REVOCATIONS, {}))[0] == 405


async def test_nobody_but_operators_revokes_or_looks(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.store.run(clusters.set_accepted, ClusterName("edge1"), accepted=True, actor="test")
    agent = holder(hub, await hub.agent("edge1"))
    body = {**KIND, "metadata": {"name": "r1"}, "spec": {"cluster": "edge2"}}
    assert (await agent.ask("POST", REVOCATIONS, body))[0] == 403
    assert (await agent.get(REVOCATIONS))[0] == 403


async def test_a_dry_run_revokes_nothing(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = holder(hub, await hub.agent("edge1"))
    body = {**KIND, "metadata": {"name": "r1"}, "spec": {"cluster": "edge1"}}
    status, answer = await (await admin(hub)).ask("POST", f"{REVOCATIONS}?dryRun=All", body)
    assert (status, answer["status"]["certificatesRevoked"]) == (201, 1)
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({}, "name a cluster, a serial or a bootstrapCredential"),
        ({"cluster": "edge1", "serial": "5"}, "one of them alone"),
        ({"agent": "a"}, "name a cluster"),
        ({"cluster": "edge1", "reason": "Bored"}, "spec.reason: Unsupported value"),
        ({"serial": "XYZ"}, "spec.serial"),
    ],
)
async def test_what_names_nothing_or_too_much_is_refused_in_words(hub: HubUnderTest, spec: dict[str, str], said: str) -> None:
    status, answer = await revoke(hub, **spec)
    assert status == 422
    assert said in str(answer["message"])


async def test_an_agent_of_a_denied_cluster_is_told_that_for_machines_too(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    for accepted in (True, False):
        await hub.store.run(clusters.set_accepted, ClusterName("edge1"), accepted=accepted, actor="test")
    document = await hub.store.read(clusters.find, ClusterName("edge1"))
    assert document.document["spec"]["hubAcceptsClient"] is False
    agent = holder(hub, await hub.agent("edge1"))
    await hub.store.run(clusters.set_condition, ClusterName("edge1"), cluster_rules.ACCEPTED, "test")
    async with asyncio.timeout(10):
        while True:
            status, answer = await agent.get("/apis/coordination.k8s.io/v1/namespaces/edge1/leases")
            if "details" in answer and answer["details"].get("causes"):
                break
            await asyncio.sleep(0.05)
    assert (status, answer["details"]["causes"][0]["reason"]) == (403, "ClusterDenied")
    assert "hubctl accept edge1" in answer["message"]
