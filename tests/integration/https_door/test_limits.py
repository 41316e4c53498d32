"""The hub's limits at its HTTPS door: rates, seats and watches per identity, deadlines, and how large an object may become."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from hub.access.limits import LIFELINES, REFUSALS, REFUSALS_AT_ONCE
from hub.api.auditrecords import AuditQuery
from hub.api.liveness import Beat
from hub.api.managedclusters.cluster import AGENT_ANNOTATIONS, ClientConfig, ClusterClaim, JoinRequest, StatusReport
from hub.registry.generic import objects as room
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.http.filters import LEVEL_HEADER
from machinery.apiserver.http.limits import OBJECT_LIMIT
from machinery.apiserver.write.patches import MAX_OPERATIONS
from machinery.errors import TooLargeError
from machinery.identity import ClusterName
from machinery.meta.conditions import Condition
from tests.fakes.stage import until
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, Visitor, admin_of, holder, hub_with, nobody
from tests.integration.https_door.test_audit import cluster
from tests.integration.https_door.test_logins import GROUP, REQUESTS

NEVER = "resourceVersion=999999&resourceVersionMatch=NotOlderThan"


async def slow(hub: HubUnderTest, name: str) -> "asyncio.Task[tuple[int, object]]":
    """An agent that waits for something."""
    agent = holder(hub, await hub.agent(name))
    return asyncio.create_task(agent.get(f"{CLUSTERS}?fieldSelector=metadata.name={name}&{NEVER}"))


async def headers_of(visitor: Visitor, path: str) -> tuple[int, Mapping[str, str]]:
    async with visitor.session() as session, session.get(visitor.hub.server + path) as response:
        await response.read()
        return response.status, response.headers


async def test_a_full_level_refuses_its_own_and_lets_operators_and_health_pass(tmp_path: Path) -> None:
    async with hub_with(tmp_path, max_lifelines_inflight=2) as narrow:
        for name in ("a", "b", "c"):
            await narrow.join(name)
        waiting = [await slow(narrow, "a"), await slow(narrow, "b")]
        await until(lambda: narrow.access.limits.snapshot()[LIFELINES]["taken"] == 2)
        third = holder(narrow, await narrow.agent("c"))
        status, headers = await headers_of(third, f"{CLUSTERS}/c?timeout=2s")
        assert status == 429
        assert (headers["Retry-After"], headers[LEVEL_HEADER]) == ("1", narrow.access.limits.pools[LIFELINES].uid)
        assert (await (await admin_of(narrow)).get(CLUSTERS))[0] == 200
        assert (await nobody(narrow).get("/readyz"))[0] == 200
        assert (await third.get("/apis"))[0] == 200
        await asyncio.gather(*waiting)
        assert (await third.get(f"{CLUSTERS}/c"))[0] == 200


async def test_an_identity_or_anonymous_host_over_its_rate_is_refused_alone(tmp_path: Path) -> None:
    async with hub_with(tmp_path, identity_rate=0.001, identity_burst=3) as hub:
        await hub.join("a")
        agent = holder(hub, await hub.agent("a"))
        assert [(await agent.get(f"{CLUSTERS}/a"))[0] for _ in range(4)] == [200, 200, 200, 429]
        assert (await (await admin_of(hub)).get(CLUSTERS))[0] == 200

        assert [(await nobody(hub).get("/version/none"))[0] for _ in range(4)] == [403, 403, 403, 429]
        assert await exchange(hub, "127.0.0.1") == 429
        assert await exchange(hub, "127.0.0.2") == 201


async def test_a_flood_of_refusals_gets_429_and_few_audit_records_and_spares_known_callers(hub: HubUnderTest) -> None:
    """All from one address, as behind a NAT: bad tokens, and no credential at all."""
    await hub.join("a")
    agent, stranger = holder(hub, await hub.agent("a")), nobody(hub)
    attempts = 2 * REFUSALS_AT_ONCE

    async def flood(**headers: str) -> Counter[int]:
        answers = [await stranger.ask("POST", CLUSTERS, cluster("mine"), **headers) for _ in range(attempts // 2)]
        return Counter(status for status, _ in answers)

    began = asyncio.get_running_loop().time()
    found = await flood(Authorization="Bearer guessed") + await flood()
    forgiven = REFUSALS * (asyncio.get_running_loop().time() - began)
    assert set(found) <= {401, 403, 429}
    assert found[401] == attempts // 2
    assert found[429] >= attempts - REFUSALS_AT_ONCE - forgiven - 1
    malformed = [(await stranger.ask("POST", REQUESTS))[0] for _ in range(2 * REFUSALS)]
    assert set(malformed) <= {415, 429}
    assert 429 in malformed, "bodies that cannot be read count too"
    assert (await agent.get(f"{CLUSTERS}/a"))[0] == 200
    assert (await stranger.get("/readyz"))[0] == 200
    assert (await stranger.get("/version"))[0] == 200
    await hub.access.auditor.flush()
    kept = await hub.store.read(lambda tx: len(tx.audit.find(AuditQuery())))
    assert kept <= 8, "401, 403, 415 and 429, each once and counted"


async def test_a_write_that_its_deadline_overtakes_is_whole_or_not_there(hub: HubUnderTest) -> None:
    visitor = await admin_of(hub)
    with closing(sqlite3.connect(hub.folder / "hub.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # nobody else writes now
        answers = await asyncio.gather(
            *(visitor.ask("POST", f"{CLUSTERS}?timeout=300ms", cluster(f"late-{number}")) for number in range(5))
        )
        other.execute("ROLLBACK")
    assert [(status, body["reason"]) for status, body in answers] == [(504, "Timeout")] * 5
    assert (await visitor.ask("POST", CLUSTERS, cluster("after")))[0] == 201
    _, found = await visitor.get(CLUSTERS)
    names = {item["metadata"]["name"] for item in found["items"]}
    with closing(sqlite3.connect(hub.folder / "hub.db")) as database:
        logged = database.execute("SELECT name FROM changes WHERE kind LIKE 'managedclusters%' AND type = 'ADDED'").fetchall()
        stored = database.execute("SELECT name FROM objects WHERE kind LIKE 'managedclusters%'").fetchall()
    assert "after" in names
    assert {name for (name,) in logged} == {name for (name,) in stored} == names


async def exchange(hub: HubUnderTest, address: str) -> int:
    """The status of a login that nobody is let in by, asked for from an address of this machine."""
    document = {"kind": "TokenCredentialRequest", "apiVersion": f"{GROUP}/v1alpha1", "metadata": {}}
    document["spec"] = {"token": "x", "authenticator": {"kind": "ServiceAccount"}}
    connector = aiohttp.TCPConnector(ssl=nobody(hub).context, local_addr=(address, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(hub.server + REQUESTS, json=document) as response,
    ):
        await response.read()
        return response.status


async def test_one_identity_has_a_bounded_number_of_watches(tmp_path: Path) -> None:
    async with hub_with(tmp_path, max_watches_per_identity=2) as hub:
        for name in ("a", "b"):
            await hub.join(name)
        first, second = holder(hub, await hub.agent("a")), holder(hub, await hub.agent("b"))
        watch = f"{CLUSTERS}?watch=1&timeoutSeconds=20&fieldSelector=metadata.name="
        open_now = [asyncio.create_task(first.get(f"{watch}a")) for _ in range(2)]
        await until(lambda: hub.access.limits.snapshot()["watches"]["open"] == 2)
        status, headers = await headers_of(first, f"{watch}a")
        assert (status, headers["Retry-After"]) == (429, "5")
        assert (await second.get(f"{CLUSTERS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=b"))[0] == 200
        assert (await first.get(f"{CLUSTERS}/a"))[0] == 200
        for task in open_now:
            task.cancel()
        await until(lambda: hub.access.limits.snapshot()["watches"]["open"] == 0)
        assert (await first.get(f"{CLUSTERS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name=a"))[0] == 200


ODD = {
    "condition": StatusReport(conditions=(Condition("A b!", "True", "no reason", ""), Condition("A", "True", "", ""))),
    "long": StatusReport(conditions=(Condition("A" * 5_000, "True", "R" * 5_000, ""),)),
    "claim": StatusReport(claims=(ClusterClaim("a\x00\n", "b\x00"), ClusterClaim("a", "b"), ClusterClaim("a", "c"))),
    "resources": StatusReport(capacity={"\x00": "nothing", " ": ""}, kubernetes_version="\x00"),
    "namespace": StatusReport(namespaces={("default", "x"): (Condition("A b", "True", "a b", ""),)}),
    "url": StatusReport(client_configs=(ClientConfig("https://x y\x00", b"no certificate"),)),
    "version": StatusReport(agent_version="x" * 300_000),
}


def agent_of(cluster: ClusterName) -> str:
    return f"system:open-cluster-management:{cluster}:agent"


async def accepted(hub: HubUnderTest, name: str) -> ClusterName:
    await hub.join(name)
    await hub.accept(name)
    return ClusterName(name)


async def decide(operator: Visitor, cluster: str) -> list[int]:
    """The codes of what operators do with a cluster that they trust no more."""
    one = f"{CLUSTERS}/{cluster}"
    patches = (
        {"spec": {"taints": [{"key": "odd", "effect": "NoSelect"}]}},
        {"metadata": {"labels": {"odd": "yes"}}},
        {"spec": {"hubAcceptsClient": False}},
    )
    return [(await operator.patch(one, patch))[0] for patch in patches]


async def test_operators_decide_about_a_cluster_whatever_its_agent_reports(hub: HubUnderTest) -> None:
    operator, codes = await admin_of(hub), {}
    for name, report in ODD.items():
        cluster = await accepted(hub, name)
        await hub.store.run(clusters.report_status, cluster, report, agent_of(cluster))
        codes[name] = await decide(operator, cluster)
    assert codes == {name: [200, 200, 200] for name in ODD}

    noted = []
    for number, note in enumerate(("a b", "", "\x00")):
        cluster = await accepted(hub, f"edge{number}")
        joining = JoinRequest(name=cluster, cluster_uid="", annotations={AGENT_ANNOTATIONS + note: "x" * 300_000})
        await hub.store.run(clusters.ensure, joining, agent_of(cluster))
        noted.append(await decide(operator, cluster))
    assert noted == [[200, 200, 200]] * 3

    cluster = await accepted(hub, "edge9")
    await hub.store.run(clusters.report_status, cluster, ODD["condition"], agent_of(cluster))
    status = f"{CLUSTERS}/{cluster}/status"
    conditions = (await operator.ask("GET", f"{CLUSTERS}/{cluster}"))[1]["status"]["conditions"]
    patch = {"status": {"conditions": [*conditions, {**conditions[0], "type": "New", "reason": "new words"}]}}
    code, answer = await operator.patch(status, patch)
    assert code == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == [f"status.conditions[{len(conditions)}].reason"]


def of_size(size: int) -> StatusReport:
    """About so many bytes of it."""
    return StatusReport(kubernetes_version="x" * size)


async def test_operators_decide_about_a_cluster_that_its_agent_has_filled(hub: HubUnderTest) -> None:
    cluster = await accepted(hub, "edge1")
    await hub.store.run(clusters.report_status, cluster, of_size(room.AGENT_LIMIT - 20_000), agent_of(cluster))
    with pytest.raises(TooLargeError, match="an agent may fill"):
        await hub.store.run(clusters.report_status, cluster, of_size(room.AGENT_LIMIT + 20_000), agent_of(cluster))
    assert await decide(await admin_of(hub), cluster) == [200, 200, 200]
    assert room.AGENT_LIMIT + 256 * 1024 == OBJECT_LIMIT

    cluster = await accepted(hub, "edge2")
    await hub.store.run(clusters.report_status, cluster, of_size(OBJECT_LIMIT + 100_000), "an earlier release")
    operator = await admin_of(hub)
    assert await decide(operator, cluster) == [200, 200, 200]
    patch = {"metadata": {"annotations": {"more": "x" * 2_000}}}
    assert (await operator.patch(f"{CLUSTERS}/{cluster}", patch))[0] == 413


async def test_beats_are_stored_during_a_large_patch_and_a_too_large_object_is_refused(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    operator, status = await admin_of(hub), f"{CLUSTERS}/edge1/status"
    large = {"status": {"allocatable": {f"r{number}": "1" for number in range(5_000)}}}
    apart = {"content-type": "application/json-patch+json"}
    assert (await operator.patch(status, large))[0] == 200
    tests = [{"op": "test", "path": "/metadata/name", "value": "edge1"}] * (MAX_OPERATIONS - 1)
    changes = [*tests, {"op": "replace", "path": "/status/allocatable", "value": {"cpu": "4"}}]
    beats = 0
    async with asyncio.timeout(60):
        patch = asyncio.create_task(operator.ask("PATCH", status, changes, **apart))
        while not patch.done():
            await hub.store.run(heartbeats.flush, [Beat(ClusterName("edge1"), timedelta(), available=True)])
            beats += 1
    code, answer = await patch
    assert code == 200
    assert answer["status"]["allocatable"] == {"cpu": "4"}
    assert beats >= 2, "the event loop and the database are free meanwhile"

    one = f"{CLUSTERS}/edge1"
    half = {"status": {"version": {"kubernetes": "x" * 800_000}}}
    other = {"spec": {"managedClusterClientConfigs": [{"url": "https://edge1", "caBundle": "A" * 800_000}]}}
    assert (await operator.patch(f"{one}/status", half))[0] == 200
    code, answer = await operator.patch(one, other)
    assert (code, answer["reason"]) == (413, "RequestEntityTooLarge")
    assert "the object is too large" in answer["message"]


def named(name: str, labels: dict[str, str]) -> dict[str, Any]:
    version = CLUSTERS.removeprefix("/apis/").rpartition("/")[0]
    return {"apiVersion": version, "kind": "ManagedCluster", "metadata": {"name": name, "labels": labels}}


async def test_largest_questions_are_answered_and_larger_ones_refused(hub: HubUnderTest, subtests: pytest.Subtests) -> None:
    admin = await admin_of(hub)

    def of(labels: int, values: int, fields: int, words: int) -> dict[str, str]:
        chosen = ",".join(f"v{number}" for number in range(values))
        return {
            "labelSelector": ",".join(f"k{number} notin ({chosen})" for number in range(labels)),
            "fieldSelector": ",".join(f"spec.taints.t{number}!=b" for number in range(fields)),
            "where": "||".join(f'claims["c{number}"]=="a"' for number in range(words)),
        }

    large = of(100, 10, 100, 70)
    joined = {
        "labelSelector": ",".join(f"k{number}=v" for number in range(100)),
        "fieldSelector": ",".join(f"spec.taints.t{number}=b" for number in range(100)),
        "where": "&&".join(f'claims["c{number}"]=="a"' for number in range(70)),
    }
    rows = [(large, 200), (joined, 200), ({**large, "sortBy": "-version,name", "limit": "5"}, 200)]
    rows += [(question, 400) for question in (of(101, 1, 0, 0), of(10, 101, 0, 0), of(0, 0, 101, 0), of(0, 0, 0, 500))]
    rows.append(({**large, "limit": "9" * 10_000}, 400))
    for question, expected in rows:
        for more in ({}, {"watch": "1", "timeoutSeconds": "1"}):
            if more and len(question) > 3:
                continue
            with subtests.test(expected=expected, more=more):
                status, answer = await admin.get(f"{CLUSTERS}?{urlencode(question | more)}")
                assert status == expected, str(answer)[:300]

    labels = {f"k{number}": "v" for number in range(100)}
    assert (await admin.ask("POST", CLUSTERS, named("full", labels)))[0] == 201
    for last, names in (("k99=v", ["full"]), ("k99", ["full"]), ("k99=w", []), ("missing", []), ("!missing", ["full"])):
        text = ",".join([*(f"k{number}=v" for number in range(99)), last])
        for chosen in ({"labelSelector": text}, {"labelSelector": text, "sortBy": "name"}):
            status, answer = await admin.get(f"{CLUSTERS}?{urlencode(chosen)}")
            assert (status, [each["metadata"]["name"] for each in answer["items"]]) == (200, names), last
    for value, names in (("v", ["full"]), ("w", [])):
        words = [*(f'labels["k{number}"]=="v"' for number in range(60)), f'labels["k61"]=="{value}"']
        status, answer = await admin.get(f"{CLUSTERS}?{urlencode({'where': '&&'.join(words)})}")
        assert (status, [each["metadata"]["name"] for each in answer["items"]]) == (200, names), value
