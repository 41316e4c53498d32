"""The HTTPS door's limits: rates, seats, watches and sizes per identity; and bytes that no client sends."""

import asyncio
import gzip
import json
import re
import sqlite3
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
import yaml

from bench.bodies import JSON, worst
from hub.access.limits import LIFELINES, REFUSALS, REFUSALS_AT_ONCE
from hub.api.auditrecords import AuditQuery, AuditRecord, read_record
from hub.api.liveness import Beat
from hub.api.managedclusters.cluster import AGENT_ANNOTATIONS, ClientConfig, ClusterClaim, JoinRequest, StatusReport
from hub.audit.floods import REPEATED
from hub.registry.generic import objects as room
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.http.filters import LEVEL_HEADER
from machinery.apiserver.http.limits import OBJECT_LIMIT
from machinery.apiserver.write.bodies import ANONYMOUS_LIMIT
from machinery.apiserver.write.patches import MAX_OPERATIONS
from machinery.errors import TooLargeError
from machinery.identity import ClusterName
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.conditions import Condition
from tests.checks import CASE_FILES, PYTHON, WRONG_TEXTS, present
from tests.fakes.stage import until
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, Visitor, admin_of, holder, hub_with, nobody
from tests.integration.https_door.test_audit import ALL, cluster, records
from tests.integration.https_door.test_logins import GROUP, REQUESTS
from tests.trials import soaked, trials

NEVER = "resourceVersion=999999&resourceVersionMatch=NotOlderThan"


async def slow(hub: HubUnderTest, name: str) -> "asyncio.Task[tuple[int, object]]":
    """An agent that waits for something."""
    return asyncio.create_task(holder(hub, await hub.agent(name)).get(f"{CLUSTERS}?fieldSelector=metadata.name={name}&{NEVER}"))


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
        assert (status, headers["Retry-After"], headers[LEVEL_HEADER]) == (429, "1", narrow.access.limits.pools[LIFELINES].uid)
        assert (await (await admin_of(narrow)).get(CLUSTERS))[0] == 200
        assert ((await nobody(narrow).get("/readyz"))[0], (await third.get("/apis"))[0]) == (200, 200)
        await asyncio.gather(*waiting)
        assert (await third.get(f"{CLUSTERS}/c"))[0] == 200


async def test_an_identity_or_anonymous_host_over_its_rate_is_refused_alone(tmp_path: Path) -> None:
    async with hub_with(tmp_path, identity_rate=0.001, identity_burst=3) as hub:
        await hub.join("a")
        agent = holder(hub, await hub.agent("a"))
        assert [(await agent.get(f"{CLUSTERS}/a"))[0] for _ in range(4)] == [200, 200, 200, 429]
        assert (await (await admin_of(hub)).get(CLUSTERS))[0] == 200
        assert [(await nobody(hub).get("/version/none"))[0] for _ in range(4)] == [403, 403, 403, 429]
        assert (await exchange(hub, "127.0.0.1"), await exchange(hub, "127.0.0.2")) == (429, 201)


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
    assert ((await stranger.get("/readyz"))[0], (await stranger.get("/version"))[0]) == (200, 200)
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
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=nobody(hub).context, local_addr=(address, 0))) as session,
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
    conditions = (await operator.ask("GET", f"{CLUSTERS}/{cluster}"))[1]["status"]["conditions"]
    patch = {"status": {"conditions": [*conditions, {**conditions[0], "type": "New", "reason": "new words"}]}}
    code, answer = await operator.patch(f"{CLUSTERS}/{cluster}/status", patch)
    assert code == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == [f"status.conditions[{len(conditions)}].reason"]


def of_size(size: int) -> StatusReport:
    """About so many bytes of it."""
    return StatusReport(kubernetes_version="x" * size)


async def test_operators_decide_about_a_cluster_that_its_agent_has_filled(hub: HubUnderTest) -> None:
    cluster = await accepted(hub, "edge1")
    await hub.store.run(clusters.report_status, cluster, of_size(room.AGENT_LIMIT - 20_000), agent_of(cluster))
    with pytest.raises(TooLargeError, match="the limit for agents is"):
        await hub.store.run(clusters.report_status, cluster, of_size(room.AGENT_LIMIT + 20_000), agent_of(cluster))
    assert (await decide(await admin_of(hub), cluster), room.AGENT_LIMIT + 256 * 1024) == ([200, 200, 200], OBJECT_LIMIT)
    cluster = await accepted(hub, "edge2")
    await hub.store.run(clusters.report_status, cluster, of_size(OBJECT_LIMIT + 100_000), "an earlier release")
    operator = await admin_of(hub)
    assert await decide(operator, cluster) == [200, 200, 200]
    assert (await operator.patch(f"{CLUSTERS}/{cluster}", {"metadata": {"annotations": {"more": "x" * 2_000}}}))[0] == 413


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
            await hub.store.run(lambda tx: tx.heartbeats.store([Beat(ClusterName("edge1"), timedelta(), available=True)]))
            beats += 1
    code, answer = await patch
    assert (code, answer["status"]["allocatable"]) == (200, {"cpu": "4"})
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


_STRANGE = yaml.safe_load((CASE_FILES / "strange-requests.yaml").read_text())
STRANGE = [(line.encode(), header.encode("latin-1"), code) for line, header, code in _STRANGE]
UNREMEMBERED = frozenset((b"GET /crl/x",))
HEADERS = (
    *(b"Accept", b"Accept-Encoding", b"Audit-Id", b"Authorization", b"Content-Type", b"If-None-Match", b"Impersonate-Group"),
    *(b"Impersonate-User", b"Impersonate-Extra-a", b"User-Agent", b"traceparent", b"tracestate"),
)
LETTERS = [bytes((code,)) for code in range(1, 256) if code not in b"\r\n"]
WORDS = [b"\xff", b"Bearer ", b"application/", b"%00", b"/", b","]
STRANGE_REQUESTS = trials(60, soak=1_000)


@dataclass
class Telephone:
    """Speaks whatever bytes it is given."""

    hub: HubUnderTest
    context: ssl.SSLContext

    async def say(self, line: bytes, *headers: bytes, body: bytes = b"") -> tuple[int, bytes]:
        """The code of the answer to one request on a connection of its own, and all of the answer; 0: there was none."""
        address = ("127.0.0.1", self.hub.port)
        reader, writer = await asyncio.open_connection(*address, ssl=self.context, server_hostname="localhost")
        head = (line + b" HTTP/1.1", b"Host: hub", b"Connection: close", b"Content-Length: %d" % len(body), *headers)
        writer.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]) if answer else 0, answer


@pytest.fixture
async def logged(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    """It remembers all requests, in the database and in a file."""
    file = tmp_path / "policy.yaml"
    file.write_text(ALL)
    async with hub_with(tmp_path, audit_policy_file=file, audit_log_path=str(tmp_path / "audit.log")) as running:
        yield running


def anybody(hub: HubUnderTest) -> Telephone:
    return Telephone(hub, nobody(hub).context)


async def operator(hub: HubUnderTest) -> Telephone:
    return Telephone(hub, (await admin_of(hub)).context)


async def remembered(hub: HubUnderTest) -> list[AuditRecord]:
    """What both places say alike."""
    found, lines = await records(hub), (hub.folder / "audit.log").read_bytes().splitlines()
    assert len([each for line in lines if (each := read_record(line))]) == len(lines) == len(found)
    return found


async def test_strange_requests_are_refused_and_remembered_and_so_is_the_next(logged: HubUnderTest) -> None:
    assert [(await anybody(logged).say(line, header))[0] for line, header, _ in STRANGE] == [code for _, _, code in STRANGE]
    assert (await (await admin_of(logged)).ask("POST", CLUSTERS, cluster("edge")))[0] == 201
    *strange, last = await remembered(logged)
    counted: Counter[int] = Counter()
    for each in strange:
        counted[present(each.response_status).code] += int(each.annotations.get(REPEATED, 1))
    assert counted == Counter(code for line, _, code in STRANGE if line not in UNREMEMBERED)
    assert (present(last.object_ref).name, strange[0].user_agent) == ("edge", "\ufffd")
    assert all(each.audit_id.isprintable() and len(each.audit_id) == 36 for each in strange)


async def test_odd_credentials_paths_and_bodies_are_recorded_in_bounds(logged: HubUnderTest, subtests: pytest.Subtests) -> None:
    status, _ = await (await operator(logged)).say(b"DELETE " + CLUSTERS.encode() + b"/x", b"Authorization: Bearer \xff")
    (record,) = await remembered(logged)
    assert (status, present(record.user).username, record.verb) == (404, "admin", "delete")
    assert record.annotations["authentication.kubernetes.io/token-hash"] == f"SHA256={sha256(bytes((255,))).hexdigest()}"

    name = b"x" * 500_000
    for path in (CLUSTERS.encode() + b"/" + name, b"/apis/" + name + b"/" + name[:9_000] + b"/" + name[:400_000] + b"/y/z"):
        assert (await anybody(logged).say(b"DELETE " + path))[0] == 403
    found = await remembered(logged)
    assert len(found) == 3
    assert all(len(msgspec.json.encode(each)) < 20_000 for each in found)

    for levels in (64, 600, 900):
        with subtests.test(levels=levels):
            body = {**cluster("edge"), "spec": {"unknown": 1}}
            nested = json.dumps(body).replace("1}", '{"a":' * levels + "1" + "}" * levels + "}").encode()
            status, answer = await (await operator(logged)).say(
                b"POST " + CLUSTERS.encode(), b"Content-Type: application/json", b"Audit-Id: deep", body=nested
            )
            *_, record = await remembered(logged)
            assert (record.audit_id, record.verb, present(record.response_status).code) == ("deep", "create", status)
            assert status < 500, answer


async def test_strangers_send_small_json_only_and_nobody_compresses(logged: HubUnderTest, subtests: pytest.Subtests) -> None:
    login = b"POST /apis/login.open-cluster-management.io/v1alpha1/tokencredentialrequests"
    for name, media, body, _ in worst(ANONYMOUS_LIMIT - 100):
        with subtests.test(name):
            status, answer = await anybody(logged).say(login, b"Content-Type: " + media.encode(), body=body)
            assert status in ((400, 413) if media == JSON else (415,)), answer
    for body, expected in ((b"{}", 400), (b" " * ANONYMOUS_LIMIT, 400), (b" " * (ANONYMOUS_LIMIT + 1), 413)):
        assert (await anybody(logged).say(login, body=body))[0] == expected
    for line in (b"GET /version?" + b"a&" * 500_000, b"GET /version" + b"%2F" * 300_000):
        assert (await anybody(logged).say(line))[0] == 400
    assert (await anybody(logged).say(b"GET /version", b"Accept: " + b"a/b," * 250_000))[0] == 406
    many = b"Content-Type: application/json" + b";a=b" * 200_000  # aiohttp would parse this for longer than `say` waits
    assert (await anybody(logged).say(login, many, body=b"{}"))[0] == 400
    bomb = gzip.compress(b" " * 50_000_000)
    assert (await (await operator(logged)).say(b"POST " + CLUSTERS.encode(), b"Content-Encoding: gzip", body=bomb))[0] == 415


@soaked(STRANGE_REQUESTS)
async def test_no_bytes_in_headers_or_path_fail_the_door_or_the_audit(logged: HubUnderTest) -> None:
    callers, choose = (anybody(logged), await operator(logged)), Random(20_261_122)

    def made(most: int) -> bytes:
        return b"".join(choose.choices([*LETTERS, *8 * WORDS], k=choose.randint(1, most)))

    for _ in range(STRANGE_REQUESTS):
        path = choose.choice((b"/x", CLUSTERS.encode(), CLUSTERS.encode() + b"/" + made(3).hex("%").encode()))
        line = choose.choice((b"GET ", b"DELETE ", b"POST ")) + path
        headers = [name + b": " + made(5) for name in choose.sample(HEADERS, k=2)]
        status, answer = await choose.choice(callers).say(line, *headers, body=choose.choice((b"", b"{}")))
        assert 100 < status < 500, (line, headers, answer)
    assert (await (await admin_of(logged)).ask("POST", CLUSTERS, cluster("edge")))[0] == 201
    assert present((await remembered(logged))[-1].object_ref).name == "edge"


async def test_no_wrong_value_of_a_query_parameter_is_answered_in_the_terms_of_python(logged: HubUnderTest) -> None:
    """Every parameter of the published OpenAPI, with each method that has it."""
    admin = await admin_of(logged)
    asked: dict[tuple[str, str], str] = {}
    for entry in (await admin.get("/openapi/v3"))[1]["paths"].values():
        for path, operations in (await admin.get(entry["serverRelativeURL"]))[1]["paths"].items():
            shared = operations.pop("parameters", ())
            for method, operation in operations.items():
                for each in (*shared, *operation.get("parameters", ())):
                    if each["in"] == "query":
                        asked.setdefault((method.upper(), each["name"]), re.sub(r"\{\w+\}", "default", path))
    assert {name for _, name in asked} >= {"limit", "fieldSelector", "timeoutSeconds", "dryRun", "gracePeriodSeconds"}

    async def answered(method: str, path: str, name: str, value: str) -> str:
        """What is wrong with the answer; "": nothing. A watch would not end by itself."""
        watch = {"watch": "1"} if name in ("allowWatchBookmarks", "sendInitialEvents") else {}
        parameters = {**watch, **({"timeoutSeconds": "1"} if watch or name == "watch" else {}), name: value}
        status, answer = await admin.ask(method, f"{path}?{urlencode(parameters)}", {} if method != "GET" else None)
        text = str(answer.get("message") if isinstance(answer, dict) else answer).replace(value[:80], "")
        is_wrong = status == 500 or (status >= 400 and PYTHON.search(text))
        return f"{method} {path} {name} {value[:20]} {status} {text[:200]}" if is_wrong else ""

    wrong: list[str] = []
    for (method, name), path in asked.items():
        wrong += await asyncio.gather(*(answered(method, path, name, value) for value in WRONG_TEXTS))
    wrong = list(filter(None, wrong))
    assert not wrong


async def test_parsing_that_hangs_holds_up_neither_liveness_nor_writes_nor_their_audit(
    logged: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's own threads, which append to the audit file, are two: more bodies hang than that."""
    begun, release, maps = threading.Event(), threading.Event(), "/api/v1/namespaces/default/configmaps"

    def hang(*_: object) -> dict[str, str]:
        begun.set()
        release.wait(30)
        return {}

    admin, stranger = await admin_of(logged), nobody(logged)
    monkeypatch.setattr(boundedyaml, "load", hang)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    yaml = {"Content-Type": "application/yaml"}
    hanging = [asyncio.create_task(admin.ask("POST", maps, {"never": "read"}, **yaml)) for _ in range(4)]
    try:
        async with asyncio.timeout(15):
            await until(begun.is_set)
            assert (await stranger.get("/livez"))[0] == 200
            assert (await admin.ask("POST", maps, {"metadata": {"name": "written"}}))[0] == 201
            await logged.access.auditor.flush()
            assert '"written"' in (tmp_path / "audit.log").read_text()
            assert not any(task.done() for task in hanging)
    finally:
        release.set()
        await asyncio.gather(*hanging)
