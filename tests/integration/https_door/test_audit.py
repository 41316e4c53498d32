"""The audit, the traces and the log of the HTTPS door: who did what, found again, and never a secret in it."""

import io
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from hub.api.auditrecords import AuditLevel, AuditQuery, AuditRecord, read_record
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Transaction
from hub.registry.bootstrapcredentials.service import CredentialTerms, create_token
from machinery.client.rest import KubeClient
from machinery.errors import NotFoundError
from machinery.identity import ClusterName
from machinery.observability import logs, tracing
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusal_of, present
from tests.fakes.tracing import Recorded, attributes, ids, recorded
from tests.integration.https_door.conftest import CLUSTERS, MERGE, HubUnderTest, admin_of, holder, hub_with, nobody

GROUP = "hub.open-cluster-management.io/v1alpha1"
RECORDS = f"/apis/{GROUP}/auditrecords"
SECRET = "canary-3f1c9a7e-never-seen"  # noqa: S105 - what must not be found
ALL = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: RequestResponse}]}"


def cluster(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


@pytest.fixture
async def everything(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    """A hub that records all requests with their bodies, as far as it ever does."""
    file = tmp_path / "policy.yaml"
    file.write_text(ALL)
    async with hub_with(tmp_path, audit_policy_file=file) as hub:
        yield hub


async def records(hub: HubUnderTest) -> list[AuditRecord]:
    """All that is remembered by now."""
    await hub.access.auditor.flush()

    def stored(tx: Transaction) -> list[bytes]:
        return [entry.document for entry in tx.audit.find(AuditQuery())]

    return [record for document in await hub.store.read(stored) if (record := read_record(document))]


async def test_each_change_leaves_one_record_that_says_who_what_and_how(hub: HubUnderTest) -> None:
    visitor, agent = await admin_of(hub), holder(hub, await hub.agent("edge"))
    await visitor.ask("POST", CLUSTERS, cluster("edge"), **{"User-Agent": "test/1", "Audit-ID": "my-id"})
    await visitor.get(f"{CLUSTERS}/edge")
    await agent.ask("DELETE", f"{CLUSTERS}/edge")
    await visitor.ask("DELETE", f"{CLUSTERS}/missing")
    created, forbidden, missing = await records(hub)
    assert (created.verb, created.audit_id, created.user_agent) == ("create", "my-id", "test/1")
    assert created.level == AuditLevel.REQUEST
    user, about = present(created.user), present(created.object_ref)
    assert (user.username, "system:masters" in user.groups) == ("admin", True)
    assert (about.resource, about.name) == ("managedclusters", "edge")
    assert (present(created.response_status).code, created.source_ips) == (201, ("127.0.0.1",))
    assert json.loads(bytes(created.request_object))["metadata"] == {"name": "edge"}
    assert created.annotations["authorization.k8s.io/decision"] == "allow"
    assert created.received is not None
    assert created.received <= created.at
    assert forbidden.annotations["authorization.k8s.io/decision"] == "forbid"
    assert forbidden.response_status is not None
    assert (forbidden.response_status.code, forbidden.response_status.reason) == (403, "Forbidden")
    assert present(forbidden.user).username == "system:open-cluster-management:edge:bcdfg"
    assert present(missing.response_status).code == 404

    await nobody(hub).ask("POST", CLUSTERS, cluster("edge"), Authorization=f"Bearer {SECRET}")
    await (await admin_of(hub)).ask("POST", f"{CLUSTERS}?timeout=soon", cluster("edge"))
    *_, unknown, malformed = await records(hub)
    assert (present(unknown.response_status).code, unknown.user and unknown.user.username) == (401, "system:anonymous")
    assert present(malformed.response_status).code == 400

    await visitor.ask("POST", CLUSTERS, cluster("edge"), **{"Impersonate-User": "bob", "Impersonate-Group": "system:masters"})
    *_, record = await records(hub)
    assert (present(record.user).username, present(record.impersonated_user).username) == ("admin", "bob")


async def test_watches_timeouts_and_token_hashes_are_recorded(everything: HubUnderTest) -> None:
    visitor, watch = await admin_of(everything), f"{everything.server}{CLUSTERS}?watch=1&timeoutSeconds=1"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=visitor.context)) as session,
        session.get(watch) as response,
    ):
        answered = SystemClock().now()
        await response.read()
    began, ended = await records(everything)
    assert (began.stage, ended.stage, began.audit_id) == ("ResponseStarted", "ResponseComplete", ended.audit_id)
    assert (began.verb, began.at <= answered, began.received) == ("watch", True, ended.received)
    assert ended.received is not None
    assert ended.at - ended.received > timedelta(seconds=0.9)

    status, _ = await visitor.get(f"{CLUSTERS}?timeout=50ms&resourceVersion=999999&resourceVersionMatch=NotOlderThan")
    *_, record = await records(everything)
    assert record.response_status is not None
    assert (status, record.response_status.code, record.response_status.reason) == (504, 504, "Timeout")

    await nobody(everything).ask("GET", CLUSTERS, Authorization=f"Bearer {SECRET}")
    *_, record = await records(everything)
    assert record.annotations["authentication.kubernetes.io/token-hash"].startswith("SHA256=")
    assert SECRET not in repr(record)


async def test_records_are_found_by_fields_and_in_pages_and_cannot_be_written(hub: HubUnderTest) -> None:
    visitor = await admin_of(hub)
    for name in ("a", "b", "c"):
        await visitor.ask("POST", CLUSTERS, cluster(name))
    await visitor.ask("DELETE", f"{CLUSTERS}/b")
    await hub.access.auditor.flush()

    async def found(query: str = "") -> list[str]:
        _, answer = await visitor.get(f"{RECORDS}?{query}")
        return [f"{item['verb']} {item['objectRef']['name']}" for item in answer["items"]]

    assert await found() == ["create a", "create b", "create c", "delete b"]
    assert await found("fieldSelector=verb=delete") == ["delete b"]
    assert (await found("fieldSelector=name=b,verb!=delete"), await found("fieldSelector=user=nobody")) == (["create b"], [])
    assert await found("fieldSelector=resource=managedclusters,namespace=,user=admin,name=c") == ["create c"]
    assert await found("labelSelector=a=b") == []
    _, whole = await visitor.get(RECORDS)
    third = whole["items"][2]
    assert await found(f"fieldSelector=since={third['stageTimestamp']}") == ["create c", "delete b"]
    assert await found(f"fieldSelector=until={third['stageTimestamp']}") == ["create a", "create b", "create c"]
    assert await found(f"fieldSelector=metadata.name={third['metadata']['name']}") == ["create c"]
    assert (await visitor.get(f"{RECORDS}?fieldSelector=since=yesterday"))[0] == 400
    assert (await visitor.get(f"{RECORDS}?fieldSelector=colour=red"))[0] == 400
    _, page = await visitor.get(f"{RECORDS}?limit=3")
    _, rest = await visitor.get(f"{RECORDS}?limit=3&continue={page['metadata']['continue']}")
    assert [*page["items"], *rest["items"]] == whole["items"]
    assert "continue" not in rest["metadata"]
    _, page = await visitor.get(f"{RECORDS}?sortBy=-time&limit=3")
    _, rest = await visitor.get(f"{RECORDS}?sortBy=-time&limit=3&continue={page['metadata']['continue']}")
    assert ([*page["items"], *rest["items"]], (await visitor.get(f"{RECORDS}?sortBy=user"))[0]) == (whole["items"][::-1], 400)
    status, one = await visitor.get(f"{RECORDS}/{third['metadata']['name']}")
    assert (status, one) == (200, third)
    assert (await visitor.get(f"{RECORDS}/{third['metadata']['name'].replace('20', '19', 1)}"))[0] == 404
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await visitor.ask(method, f"{RECORDS}/{third['metadata']['name']}", {}))[0] == 405
    assert (await visitor.ask("POST", RECORDS, {}))[0] == 405
    assert (await holder(hub, await hub.agent("a")).get(RECORDS))[0] == 403


async def test_the_record_of_a_change_is_stored_with_it_and_a_dry_run_is_marked(hub: HubUnderTest) -> None:
    """Nothing is flushed before the look: a kill right after the answer would lose nothing of it."""
    visitor = await admin_of(hub)

    async def stored() -> list[AuditRecord]:
        found = await hub.store.read(lambda tx: tx.audit.find(AuditQuery()))
        return [each for entry in found if (each := read_record(entry.document))]

    credential, _ = await hub.store.run(create_token, CredentialTerms(ClusterName("edge"), None, timedelta(hours=1)), "test")
    for method, path, body, code in (
        ("POST", CLUSTERS, cluster("edge"), 201),
        ("PATCH", f"{CLUSTERS}/edge", {"spec": {"hubAcceptsClient": True}}, 200),
        ("DELETE", f"{CLUSTERS}/edge", None, 200),
    ):
        status, answer = await visitor.ask(method, path, body, **(MERGE if method == "PATCH" else {}))
        *_, last = await stored()
        assert (status, last.response_status and last.response_status.code) == (code, code)
        assert last.object_ref is not None
        assert last.object_ref.name == "edge"
        if method == "POST":
            assert last.object_ref.uid == answer["metadata"]["uid"]
            assert json.loads(bytes(last.request_object))["metadata"] == {"name": "edge"}
    assert last.annotations["muster/revoked-bootstrap-credentials"] == credential.id
    await visitor.ask("POST", f"{CLUSTERS}?dryRun=All", cluster("other"))
    assert (len(await stored()), len(await records(hub))) == (3, 4)
    assert [line.split()[2:4] for line in (await hub.hubctl("audit", "--verb=create")).out.splitlines()[1:]] == [
        ["create", "(dry"],
        ["create", "managedclusters/edge"],
    ]


@pytest.fixture
def kept() -> Iterator[Recorded]:
    with recorded() as kept:
        yield kept


@pytest.fixture
async def client(hub: HubUnderTest) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_file(await hub.admin()) as client:
        yield client


async def test_a_request_goes_on_with_its_askers_trace_into_the_store(client: KubeClient, kept: Recorded) -> None:
    with tracing.span("operator"):
        await client.create(CLUSTERS, cluster("edge1"))
    asked, answered, write = kept.one("operator"), kept.one("create managedclusters"), kept.one("store write")
    assert ({ids(span)[0] for span in (answered, write)}, present(answered.parent).span_id) == ({ids(asked)[0]}, ids(asked)[1])
    assert "store write" in kept.children(answered)
    span = attributes(answered)
    assert (span["http.request.method"], span["url.path"], span["http.response.status_code"]) == ("POST", CLUSTERS, 201)
    assert span["muster.request_id"]
    assert attributes(write)["store.use_case"]


async def test_spans_of_requests_have_bounded_names_and_probes_leave_none(client: KubeClient, kept: Recorded) -> None:
    for path in ("/readyz", "/version", "/openapi/v2", "/apis"):
        await client.raw("GET", path)
    assert kept.spans == []
    for name in ("gadgets", "gizmos"):
        await check_refusal_of(NotFoundError, client.get(f"/apis/things.example.org/v1/{name}"))
    assert [span.name for span in kept.spans if "things" in str(attributes(span).get("url.path"))] == ["list unknown"] * 2


async def test_a_watch_is_shown_until_its_first_byte(hub: HubUnderTest, client: KubeClient, kept: Recorded) -> None:
    async with client.watch(CLUSTERS, {}, within=timedelta(seconds=20)) as events:
        await hub.join("edge1")
        async for event in events:
            if event.object["metadata"].get("name") == "edge1":
                break
        assert attributes(kept.one("watch managedclusters"))["http.response.status_code"] == 200
        kept.forget()
        await hub.join("edge2")
        async for event in events:
            if event.object["metadata"].get("name") == "edge2":
                break
        assert kept.spans == []


async def test_a_failure_of_ours_is_an_error_of_the_span_and_a_refusal_is_none(
    client: KubeClient, kept: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_refusal_of(NotFoundError, client.get(f"{CLUSTERS}/nobody"))
    assert "error.type" not in attributes(kept.one("get managedclusters"))
    kept.forget()

    async def broken(*_arguments: Any, **_more: Any) -> None:
        raise RuntimeError("canary")

    logs.configure(stream=io.StringIO())
    monkeypatch.setattr(ServiceStorage, "get", broken)
    answer = await client.raw("GET", f"{CLUSTERS}/nobody")
    monkeypatch.undo()
    assert answer.status == 500
    span = attributes(kept.one("get managedclusters"))
    assert (span["error.type"], span["http.response.status_code"]) == ("500", 500)
    assert "canary" not in str(span)


async def test_lines_of_a_request_bear_its_id_its_cluster_and_its_trace_and_no_line_after_it_does(
    hub: HubUnderTest, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    logs.configure("info", logs.LogFormat.JSON, stream)
    read = type(hub.store).read

    async def telling(*arguments: Any, **more: Any) -> Any:
        structlog.get_logger("a.part").info("reads")
        return await read(*arguments, **more)

    monkeypatch.setattr(type(hub.store), "read", telling)
    with tracing.Traced(tracing.parsed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")):
        answer = await client.raw("GET", f"{CLUSTERS}/edge1")
    about_one = [json.loads(line) for line in stream.getvalue().splitlines() if "reads" in line]
    stream.truncate(0)
    stream.seek(0)
    await client.raw("GET", CLUSTERS)  # the same connection, and so the same task
    about_all = [json.loads(line) for line in stream.getvalue().splitlines() if "reads" in line]
    monkeypatch.undo()
    (line,) = [line for line in about_one if line.get("cluster") == "edge1"][:1]
    assert (line["request_id"], line["trace_id"]) == (answer.headers["Audit-Id"], "4bf92f3577b34da6a3ce929d0e0e4736")
    logged = [line for line in about_all if "request_id" in line]
    assert logged
    assert not any("cluster" in line or "trace_id" in line for line in logged)
    assert answer.headers["Audit-Id"] not in {line["request_id"] for line in logged}
