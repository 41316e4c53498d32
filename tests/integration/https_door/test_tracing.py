"""What requests at the HTTPS door leave in traces and in the log."""

import io
import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from hub.https_door.storage.storage import ServiceStorage
from machinery.client.rest import KubeClient
from machinery.errors import NotFoundError
from machinery.observability import logs, tracing
from tests.fakes.tracing import Recorded, attributes, ids, recorded
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest


@pytest.fixture
def kept() -> Iterator[Recorded]:
    with recorded() as kept:
        yield kept


@pytest.fixture
async def client(hub: HubUnderTest) -> AsyncIterator[KubeClient]:
    async with await KubeClient.from_file(await hub.admin()) as client:
        yield client


async def test_a_request_goes_on_with_its_askers_trace_into_the_store(client: KubeClient, kept: Recorded) -> None:
    body = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": "edge1"}}
    with tracing.span("operator"):
        await client.create(CLUSTERS, body)
    asked, answered, write = kept.one("operator"), kept.one("create managedclusters"), kept.one("store write")
    assert {ids(span)[0] for span in (answered, write)} == {ids(asked)[0]}
    assert answered.parent is not None
    assert answered.parent.span_id == ids(asked)[1]
    assert "store write" in kept.children(answered)
    told = attributes(answered)
    assert (told["http.request.method"], told["url.path"], told["http.response.status_code"]) == ("POST", CLUSTERS, 201)
    assert told["muster.request_id"]
    assert attributes(write)["store.use_case"]


async def test_spans_of_requests_have_bounded_names_and_probes_leave_none(client: KubeClient, kept: Recorded) -> None:
    for path in ("/readyz", "/version", "/openapi/v2", "/apis"):
        await client.raw("GET", path)
    assert kept.spans == []

    for name in ("gadgets", "gizmos"):
        with pytest.raises(NotFoundError):
            await client.get(f"/apis/things.example.org/v1/{name}")
    assert [span.name for span in kept.spans if "things" in str(attributes(span).get("url.path"))] == ["list unknown"] * 2


async def test_a_watch_is_told_until_its_first_byte(hub: HubUnderTest, client: KubeClient, kept: Recorded) -> None:
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
    with pytest.raises(NotFoundError):
        await client.get(f"{CLUSTERS}/nobody")
    assert "error.type" not in attributes(kept.one("get managedclusters"))
    kept.forget()

    async def broken(*_arguments: Any, **_more: Any) -> None:
        raise RuntimeError("canary")

    logs.configure(stream=io.StringIO())
    monkeypatch.setattr(ServiceStorage, "get", broken)
    answer = await client.raw("GET", f"{CLUSTERS}/nobody")
    monkeypatch.undo()
    assert answer.status == 500
    told = attributes(kept.one("get managedclusters"))
    assert (told["error.type"], told["http.response.status_code"]) == ("500", 500)
    assert "canary" not in str(told)


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
    context = tracing.parsed("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    with tracing.Traced(context):
        answer = await client.raw("GET", f"{CLUSTERS}/edge1")
    about_one = [json.loads(line) for line in stream.getvalue().splitlines() if "reads" in line]
    stream.truncate(0)
    stream.seek(0)
    await client.raw("GET", CLUSTERS)  # the same connection, and so the same task
    about_all = [json.loads(line) for line in stream.getvalue().splitlines() if "reads" in line]
    monkeypatch.undo()
    (line,) = [line for line in about_one if line.get("cluster") == "edge1"][:1]
    assert line["request_id"] == answer.headers["Audit-Id"]
    assert line["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    told = [line for line in about_all if "request_id" in line]
    assert told
    assert not any("cluster" in line or "trace_id" in line for line in told)
    assert answer.headers["Audit-Id"] not in {line["request_id"] for line in told}
