"""The audit of the agents' door: registrations, both ends of a session, and beats and reports where a policy wants them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc

from hub.api.auditrecords import AuditQuery, AuditRecord, Stage
from tests.checks import present
from tests.fakes.rpc_stage import RpcStage, Stream, joining, refusal, rpc_stage

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
    assert summary(submitted) == ("create", "certificatesigningrequests", 201)
    assert present(joined.object_ref).name == "edge"
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
    refused = await Stream.open(stage, await stage.bootstrap("edge"))
    assert await refused.status() is grpc.StatusCode.PERMISSION_DENIED
    stream = await stage.welcomed(await stage.enrol("stopped"))
    await stage.door.refuse()
    await stage.door.drain(timedelta(seconds=5))
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE

    found = await session_records(stage)
    assert [summary(record)[2] for record in found] == [200, 200, 200, 401, 403, 200, 503]
    opened, ended = found[:2]
    assert [summary(opened), summary(ended)] == [SESSION] * 2
    assert (opened.stage, ended.stage) == (Stage.RESPONSE_STARTED, Stage.RESPONSE_COMPLETE)
    assert opened.audit_id == ended.audit_id
    assert present(opened.user).username == "system:open-cluster-management:edge:agent"
