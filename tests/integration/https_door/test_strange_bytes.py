"""Bytes at the HTTPS door that no client sends: each is answered, remembered, and costs nobody else anything."""

import asyncio
import gzip
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from urllib.parse import urlencode

import msgspec
import pytest

from bench.bodies import JSON, worst
from hub.api.auditrecords import AuditRecord, read_record
from hub.audit.floods import REPEATED
from machinery.apiserver.write.bodies import ANONYMOUS_LIMIT
from machinery.meta import bounded_yaml as boundedyaml
from tests.checks import PYTHON, WRONG_TEXTS, present
from tests.fakes.stage import until
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, admin_of, hub_with, nobody
from tests.integration.https_door.test_audit import ALL, cluster, records
from tests.trials import soaked, trials

STRANGE: list[tuple[bytes, bytes, int]] = [
    (b"POST /x", b"User-Agent: \xff", 403),
    (b"POST /x", b"Audit-Id: \xff", 403),
    (b"POST /x", b"Audit-Id: a\tb", 403),
    (b"POST /x", b"Authorization: Bearer \xff", 401),
    (b"POST /x", b"Authorization: \xff", 401),
    (b"POST /x", b"Impersonate-User: \xff", 400),
    (b"POST /x", b"Impersonate-User: a\r\nImpersonate-Extra-%00: x", 400),
    (b"POST /x", b"Accept: \xff", 403),
    (b"POST /x", b"traceparent: \xff", 403),
    (b"POST /%FF", b"X: y", 403),
    (b"GET /crl/x", b"If-None-Match: \xff", 404),
    (b"DELETE /api/v1/namespaces/%00", b"X: y", 400),
    (b"DELETE /api/v1/namespaces/%01", b"X: y", 400),
    (b"DELETE /api/v1/namespaces/%7F", b"X: y", 400),
    (b"GET /api/v1/namespaces?labelSelector=a%3D%00", b"X: y", 400),
    (b"GET /api/v1/namespaces?fieldSelector=metadata.name%3D%00", b"X: y", 400),
    (b"GET /api/v1/namespaces?%00=1", b"X: y", 400),
]
UNREMEMBERED = frozenset((b"GET /crl/x",))
HEADERS = (
    *(b"Accept", b"Accept-Encoding", b"Audit-Id", b"Authorization", b"Content-Type", b"If-None-Match", b"Impersonate-Group"),
    *(b"Impersonate-User", b"Impersonate-Extra-a", b"User-Agent", b"traceparent", b"tracestate"),
)
LETTERS = [bytes((code,)) for code in range(1, 256) if code not in b"\r\n"]
WORDS = [b"\xff", b"Bearer ", b"application/", b"%00", b"/", b","]
REQUESTS = trials(60, soak=1_000)


@dataclass
class Telephone:
    """Speaks whatever bytes it is given."""

    hub: HubUnderTest
    context: ssl.SSLContext

    async def say(self, line: bytes, *headers: bytes, body: bytes = b"") -> tuple[int, bytes]:
        """The code of the answer to one request on a connection of its own, and all of the answer; 0: there was none."""
        address = ("127.0.0.1", self.hub.port)
        reader, writer = await asyncio.open_connection(*address, ssl=self.context, server_hostname="localhost")
        told = (line + b" HTTP/1.1", b"Host: hub", b"Connection: close", b"Content-Length: %d" % len(body), *headers)
        writer.write(b"\r\n".join(told) + b"\r\n\r\n" + body)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]) if answer else 0, answer


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
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
    found = await records(hub)
    lines = (hub.folder / "audit.log").read_bytes().splitlines()
    assert len([each for line in lines if (each := read_record(line))]) == len(lines) == len(found)
    return found


async def test_strange_requests_are_refused_and_remembered_and_so_is_the_next(hub: HubUnderTest) -> None:
    codes = [(await anybody(hub).say(line, header))[0] for line, header, _ in STRANGE]
    assert codes == [code for _, _, code in STRANGE]
    assert (await (await admin_of(hub)).ask("POST", CLUSTERS, cluster("edge")))[0] == 201
    *strange, last = await remembered(hub)
    counted: Counter[int] = Counter()
    for each in strange:
        counted[present(each.response_status).code] += int(each.annotations.get(REPEATED, 1))
    assert counted == Counter(code for line, _, code in STRANGE if line not in UNREMEMBERED)
    assert present(last.object_ref).name == "edge"
    assert strange[0].user_agent == "\ufffd"
    assert all(each.audit_id.isprintable() and len(each.audit_id) == 36 for each in strange)


async def test_odd_credentials_paths_and_bodies_are_recorded_in_bounds(hub: HubUnderTest, subtests: pytest.Subtests) -> None:
    status, _ = await (await operator(hub)).say(b"DELETE " + CLUSTERS.encode() + b"/x", b"Authorization: Bearer \xff")
    (record,) = await remembered(hub)
    assert (status, present(record.user).username, record.verb) == (404, "admin", "delete")
    assert record.annotations["authentication.kubernetes.io/token-hash"] == f"SHA256={sha256(bytes((255,))).hexdigest()}"

    name = b"x" * 500_000
    for path in (CLUSTERS.encode() + b"/" + name, b"/apis/" + name + b"/" + name[:9_000] + b"/" + name[:400_000] + b"/y/z"):
        assert (await anybody(hub).say(b"DELETE " + path))[0] == 403
    found = await remembered(hub)
    assert len(found) == 3
    assert all(len(msgspec.json.encode(each)) < 20_000 for each in found)

    for levels in (64, 600, 900):
        with subtests.test(levels=levels):
            body = {**cluster("edge"), "spec": {"unknown": 1}}
            nested = json.dumps(body).replace("1}", '{"a":' * levels + "1" + "}" * levels + "}").encode()
            status, answer = await (await operator(hub)).say(
                b"POST " + CLUSTERS.encode(), b"Content-Type: application/json", b"Audit-Id: deep", body=nested
            )
            *_, record = await remembered(hub)
            assert (record.audit_id, record.verb, present(record.response_status).code) == ("deep", "create", status)
            assert status < 500, answer


async def test_strangers_send_small_json_only_and_nobody_compresses(hub: HubUnderTest, subtests: pytest.Subtests) -> None:
    login = b"POST /apis/login.open-cluster-management.io/v1alpha1/tokencredentialrequests"
    for name, media, body, _ in worst(ANONYMOUS_LIMIT - 100):
        with subtests.test(name):
            status, answer = await anybody(hub).say(login, b"Content-Type: " + media.encode(), body=body)
            assert status in ((400, 413) if media == JSON else (415,)), answer
    for body, expected in ((b"{}", 400), (b" " * ANONYMOUS_LIMIT, 400), (b" " * (ANONYMOUS_LIMIT + 1), 413)):
        assert (await anybody(hub).say(login, body=body))[0] == expected
    bomb = gzip.compress(b" " * 50_000_000)
    assert (await (await operator(hub)).say(b"POST " + CLUSTERS.encode(), b"Content-Encoding: gzip", body=bomb))[0] == 415


@soaked(REQUESTS)
async def test_no_bytes_in_headers_or_path_fail_the_door_or_the_audit(hub: HubUnderTest) -> None:
    callers, choose = (anybody(hub), await operator(hub)), Random(20_261_122)

    def made(most: int) -> bytes:
        return b"".join(choose.choices([*LETTERS, *8 * WORDS], k=choose.randint(1, most)))

    for _ in range(REQUESTS):
        path = choose.choice((b"/x", CLUSTERS.encode(), CLUSTERS.encode() + b"/" + made(3).hex("%").encode()))
        line = choose.choice((b"GET ", b"DELETE ", b"POST ")) + path
        headers = [name + b": " + made(5) for name in choose.sample(HEADERS, k=2)]
        status, answer = await choose.choice(callers).say(line, *headers, body=choose.choice((b"", b"{}")))
        assert 100 < status < 500, (line, headers, answer)
    assert (await (await admin_of(hub)).ask("POST", CLUSTERS, cluster("edge")))[0] == 201
    assert present((await remembered(hub))[-1].object_ref).name == "edge"


async def test_no_wrong_value_of_a_query_parameter_is_answered_in_the_terms_of_python(hub: HubUnderTest) -> None:
    """Every parameter of the published OpenAPI, with each method that has it."""
    admin = await admin_of(hub)
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
        told = {**watch, **({"timeoutSeconds": "1"} if watch or name == "watch" else {}), name: value}
        status, answer = await admin.ask(method, f"{path}?{urlencode(told)}", {} if method != "GET" else None)
        text = str(answer.get("message") if isinstance(answer, dict) else answer).replace(value[:80], "")
        is_wrong = status == 500 or (status >= 400 and PYTHON.search(text))
        return f"{method} {path} {name} {value[:20]} {status} {text[:200]}" if is_wrong else ""

    wrong: list[str] = []
    for (method, name), path in asked.items():
        wrong += await asyncio.gather(*(answered(method, path, name, value) for value in WRONG_TEXTS))
    wrong = list(filter(None, wrong))
    assert not wrong


async def test_parsing_that_hangs_holds_up_neither_liveness_nor_writes_nor_their_audit(
    hub: HubUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's own threads, which append to the audit file, are two: more bodies hang than that."""
    begun, release, maps = threading.Event(), threading.Event(), "/api/v1/namespaces/default/configmaps"

    def hang(*_: object) -> dict[str, str]:
        begun.set()
        release.wait(30)
        return {}

    admin, stranger = await admin_of(hub), nobody(hub)
    monkeypatch.setattr(boundedyaml, "load", hang)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    yaml = {"Content-Type": "application/yaml"}
    hanging = [asyncio.create_task(admin.ask("POST", maps, {"never": "read"}, **yaml)) for _ in range(4)]
    try:
        async with asyncio.timeout(15):
            await until(begun.is_set)
            assert (await stranger.get("/livez"))[0] == 200
            assert (await admin.ask("POST", maps, {"metadata": {"name": "written"}}))[0] == 201
            await hub.access.auditor.flush()
            assert '"written"' in (tmp_path / "audit.log").read_text()
            assert not any(task.done() for task in hanging)
    finally:
        release.set()
        await asyncio.gather(*hanging)
