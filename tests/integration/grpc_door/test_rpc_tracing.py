"""What agents' calls leave in traces, in the log and in the audit, and that a beat leaves nothing where no policy wants it."""

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc import aio

from hub.api.auditrecords import AuditQuery, AuditRecord, Stage
from machinery.observability import logs
from machinery.wire.session.v1 import session_pb2 as wire
from tests.checks import present
from tests.fakes.rpc_stage import RpcStage, Stream, joining, refusal, rpc_stage
from tests.fakes.tracing import Recorded, attributes, ids, recorded

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = aio.Metadata(("traceparent", f"00-{TRACE}-{SPAN}-01"))
ENSURE, CONNECT = "muster.registration.v1.Registration/EnsureCluster", "muster.session.v1.Session/Connect"


@pytest.fixture
def kept() -> Iterator[Recorded]:
    with recorded() as kept:
        yield kept


@pytest.fixture
def stream() -> io.StringIO:
    target = io.StringIO()
    logs.configure("debug", logs.LogFormat.JSON, target)
    return target


def lines(stream: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_call_continues_the_agents_trace_into_the_store(stage: RpcStage, kept: Recorded) -> None:
    stub = stage.stub(await stage.bootstrap("edge1"))
    await stub.EnsureCluster(joining(), metadata=SENT)
    span, write = kept.one(ENSURE), kept.one("store write")
    assert (ids(span)[0], present(span.parent).span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert attributes(span)["muster.cluster"] == "edge1"
    assert "store write" in kept.children(span)
    assert (attributes(write)["store.use_case"], attributes(write)["store.attempts"]) == ("managedclusters.service.ensure", 1)
    assert attributes(write)["store.ran_ms"] > 0
    kept.forget()
    await refusal(stub.EnsureCluster(joining("edge2")))
    assert attributes(kept.one(ENSURE))["error.type"] == "Forbidden"
    assert kept.one(ENSURE).parent is None


async def test_session_is_traced_until_it_is_open_and_later_only_its_reports(stage: RpcStage, kept: Recorded) -> None:
    credential = await stage.enrol("edge1")
    kept.forget()
    stream = await Stream.open(stage, credential)
    await stream.expect("desired")
    assert attributes(kept.one(CONNECT))["muster.cluster"] == "edge1"
    assert {span.name for span in kept.spans} == {CONNECT, "store read"}
    kept.forget()
    for sequence in range(1, 21):
        await stream.send(beat=wire.Beat(sequence=sequence))
    while (await stream.expect("beat_ack")).sequence < 20:
        pass
    assert kept.spans == []

    await stream.report(1, kubernetes_version="v1.35.0")
    alone = kept.one("report status")
    assert alone.parent is None
    assert kept.children(alone) == ["store write"]
    kept.forget()
    await stream.report(2, kubernetes_version="v1.36.0", traceparent=f"00-{TRACE}-{SPAN}-01")
    assert ids(kept.one("report status"))[0] == ids(kept.one("store write"))[0] == int(TRACE, 16)
    kept.forget()
    await stage.accept("edge1", accepted=False)
    assert not (await stream.expect("desired")).accepted
    assert kept.spans == []


async def test_call_logs_have_id_cluster_trace(stage: RpcStage, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no traces are recorded: the agent's id of the trace is enough to find both sides' lines."""

    async def broken(*_arguments: object, **_more: object) -> None:
        structlog.get_logger("a.part").info("on the way")
        raise RuntimeError("broken")

    stub = stage.stub(await stage.enrol("edge1"))
    with monkeypatch.context() as patched:
        patched.setattr(type(stage.parts.store), "run", broken)
        ended = await refusal(stub.EnsureCluster(joining(), metadata=SENT))
    logged = {line["event"]: line for line in lines(stream)}
    on_the_way, failed = logged["on the way"], logged["call failed"]
    assert (on_the_way["cluster"], on_the_way["trace_id"]) == ("edge1", TRACE)
    assert on_the_way["request_id"] == failed["request_id"] == ended.trailing["audit-id"]
    assert failed["cluster"] == "edge1"


async def test_session_logs_have_id_and_cluster(stage: RpcStage, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    session, run = await Stream.open(stage, await stage.enrol("edge1")), type(stage.parts.store).run

    async def telling(*arguments: Any, **more: Any) -> Any:
        structlog.get_logger("a.part").info("reports")
        return await run(*arguments, **more)

    monkeypatch.setattr(type(stage.parts.store), "run", telling)
    await session.expect("desired")
    await session.report(kubernetes_version="v1.35.0")
    (logged,) = [line for line in lines(stream) if line["event"] == "reports" and "request_id" in line]
    assert logged["cluster"] == "edge1"
    assert "trace_id" not in logged


ALL = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}"
SESSION = ("connect", "managedclusters/session", 200)


def summary(record: AuditRecord) -> tuple[Any, ...]:
    reference, status = record.object_ref, record.response_status
    return (record.verb, reference and f"{reference.resource}/{reference.subresource}".rstrip("/"), status and status.code)


async def test_each_changing_call_of_a_registration_is_recorded(stage: RpcStage) -> None:
    await stage.enrol("edge")
    assert len(await stage.store.read(lambda tx: tx.audit.find(AuditQuery()))) == 2, "stored with what they changed"
    refused = await refusal(stage.stub(await stage.bootstrap("edge")).EnsureCluster(joining("other")))
    assert refused.code is grpc.StatusCode.PERMISSION_DENIED
    joined, submitted, record = await stage.audit()
    assert summary(joined) == ("create", "managedclusters", 201)
    assert (summary(submitted), present(joined.object_ref).name) == (("create", "certificatesigningrequests", 201), "edge")
    assert present(submitted.object_ref).name.startswith("edge-")
    assert joined.user is not None
    assert joined.user.username.startswith("system:bootstrap:")
    assert joined.user.extra["muster/certificate-serial"]
    assert joined.source_ips in (("127.0.0.1",), ("::1",))
    assert joined.annotations["authorization.k8s.io/decision"] == "allow"
    assert joined.request_uri == "/muster.registration.v1.Registration/EnsureCluster"

    assert summary(record) == ("create", "managedclusters", 403)
    assert record.annotations["authorization.k8s.io/decision"] == "forbid"
    assert 'for cluster "edge"' in record.annotations["authorization.k8s.io/reason"]


async def session(stage: RpcStage) -> None:
    """A session with two beats and a report."""
    stream = await stage.welcomed(await stage.enrol("edge"))
    for sequence in (1, 2):
        await stream.beat(sequence)
    await stream.report(complete=True)
    await stream.call.done_writing()
    assert await stream.status() is grpc.StatusCode.OK


async def session_records(stage: RpcStage) -> list[AuditRecord]:
    return [record for record in await stage.audit() if record.request_uri.endswith("/Connect")]


async def test_beats_and_reports_are_recorded_where_the_policy_wants_them(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(ALL)
    async with rpc_stage(tmp_path, audit_policy_file=tmp_path / "policy.yaml") as stage:
        stream = await stage.welcomed(await stage.enrol("edge"))
        for sequence in (1, 2):
            await stream.beat(sequence)
        await stream.report(complete=True)
        await stage.parts.sessions.write()
        kept = await stage.store.read(lambda tx: tx.audit.find(AuditQuery()))
        await stream.call.done_writing()
        assert await stream.status() is grpc.StatusCode.OK
        found = await session_records(stage)
    about = [each.fields.resource for each in kept if b"/Connect" in each.document]
    assert about == ["managedclusters", "leases", "leases", "managedclusters"], "stored with what they are about"
    beat, report = ("update", "leases", 200), ("patch", "managedclusters/status", 200)
    assert [summary(record) for record in found] == [SESSION, beat, beat, report, SESSION]


async def test_session_is_recorded_when_it_opens_and_with_its_end(stage: RpcStage) -> None:
    await session(stage)
    stream = await stage.welcomed(await stage.enrol("revoked"))
    (record,) = await stage.records("revoked")
    await stage.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "Test"))
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    assert await (await Stream.open(stage, await stage.bootstrap("edge"))).status() is grpc.StatusCode.PERMISSION_DENIED
    stream = await stage.welcomed(await stage.enrol("stopped"))
    await stage.door.refuse()
    await stage.door.drain(timedelta(seconds=5))
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE

    found = await session_records(stage)
    assert [summary(record)[2] for record in found] == [200, 200, 200, 401, 403, 200, 503]
    opened, ended = found[:2]
    assert [summary(opened), summary(ended)] == [SESSION] * 2
    assert (opened.stage, ended.stage, opened.audit_id) == (Stage.RESPONSE_STARTED, Stage.RESPONSE_COMPLETE, ended.audit_id)
    assert present(opened.user).username == "system:open-cluster-management:edge:agent"
