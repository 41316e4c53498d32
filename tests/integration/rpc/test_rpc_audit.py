"""The audit of the door for agents: registrations, sessions in two stages, beats and reports only where a policy wants them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.audit import Policy, default_policy
from hub.audit.policy import Rule
from hub.audit.verify import breaches, verify_store
from hub.domain.audit import Level, Record, Stage, read_record
from hub.ports import Transaction
from machinery.product import GROUP_SUFFIX
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import REPLICA, RpcStage, Stream, rpc_stage

ALL = Policy((Rule(level=Level.METADATA),))


@asynccontextmanager
async def audited(folder: Path, policy: Policy) -> AsyncIterator[RpcStage]:
    async with rpc_stage(folder, policy=policy) as stage:
        yield stage


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[RpcStage]:
    async with audited(tmp_path, default_policy(GROUP_SUFFIX)) as running:
        yield running


async def records(stage: RpcStage) -> list[Record]:
    """All that is remembered by now; the chain holds."""
    await stage.parts.auditor.finish()

    def stored(tx: Transaction) -> list[bytes]:
        return [link.document for link in tx.audit.links(REPLICA, after=0, limit=1_000)]

    assert list(breaches(await verify_store(stage.store, {}))) == []
    return [record for document in await stage.store.read(stored) if (record := read_record(document))]


def told(record: Record) -> tuple[Any, ...]:
    reference, status = record.object_ref, record.response_status
    return (record.verb, reference and f"{reference.resource}/{reference.subresource}".rstrip("/"), status and status.code)


async def test_registration_leaves_a_record_per_call_that_changes_something(stage: RpcStage) -> None:
    await stage.enrol("edge")
    found = await records(stage)
    assert [told(record) for record in found] == [
        ("create", "managedclusters", 201),
        ("create", "certificatesigningrequests", 201),
    ]
    joined, submitted = found
    assert joined.object_ref is not None
    assert submitted.object_ref is not None
    assert joined.object_ref.name == "edge"
    assert submitted.object_ref.name.startswith("edge-")
    assert joined.user is not None
    assert joined.user.username.startswith("system:bootstrap:")
    assert joined.user.extra["muster/certificate-serial"]
    assert joined.source_ips in (("127.0.0.1",), ("::1",))
    assert joined.annotations["authorization.k8s.io/decision"] == "allow"
    assert joined.request_uri == "/muster.registration.v1.Registration/EnsureCluster"


async def test_a_refusal_is_remembered_with_its_reason(stage: RpcStage) -> None:
    async with stage.channel(await stage.bootstrap("edge")) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await stage.join(RegistrationStub(channel), "other")
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    (record,) = await records(stage)
    assert told(record) == ("create", "managedclusters", 403)
    assert record.annotations["authorization.k8s.io/decision"] == "forbid"
    assert 'for cluster "edge"' in record.annotations["authorization.k8s.io/reason"]


async def session(stage: RpcStage) -> list[Record]:
    """The records of a session with two beats and a report, beside those of its registration."""
    credential = await stage.enrol("edge")
    stream = await Stream.open(stage, credential)
    await stream.expect("welcome")
    for sequence in (1, 2):
        await stream.send(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE))
        await stream.expect("beat_ack")
    await stream.send(status=wire.StatusReport(sequence=1, complete=True))
    await stream.expect("report_ack")
    await stream.call.done_writing()
    assert await stream.status() is grpc.StatusCode.OK
    await stream.close()
    return [record for record in await records(stage) if record.request_uri.endswith("/Connect")]


async def test_a_session_is_remembered_when_it_opens_and_when_it_ends(stage: RpcStage) -> None:
    opened, ended = await session(stage)
    assert [told(opened), told(ended)] == [("connect", "managedclusters/session", 200)] * 2
    assert (opened.stage, ended.stage) == (Stage.RESPONSE_STARTED, Stage.RESPONSE_COMPLETE)
    assert opened.audit_id == ended.audit_id
    assert opened.user is not None
    assert opened.user.username == "system:open-cluster-management:edge:agent"


async def test_beats_and_reports_are_remembered_where_the_policy_wants_them(tmp_path: Path) -> None:
    async with audited(tmp_path, ALL) as stage:
        found = await session(stage)
    assert [told(record) for record in found] == [
        ("connect", "managedclusters/session", 200),
        ("update", "leases", 200),
        ("update", "leases", 200),
        ("patch", "managedclusters/status", 200),
        ("connect", "managedclusters/session", 200),
    ]


async def test_a_session_that_is_refused_or_revoked_says_so(stage: RpcStage) -> None:
    credential = await stage.enrol("edge")
    stream = await Stream.open(stage, credential)
    await stream.expect("welcome")
    (record,) = await stage.records("edge")
    await stage.store.run(lambda tx: tx.certificates.revoke([record.serial], tx.now, "Test"))
    assert await stream.status() is grpc.StatusCode.UNAUTHENTICATED
    await stream.close()
    again = await Stream.open(stage, await stage.bootstrap("edge"))
    assert await again.status() is grpc.StatusCode.PERMISSION_DENIED
    await again.close()
    found = [record for record in await records(stage) if record.verb == "connect"]
    assert [told(record)[2] for record in found] == [200, 401, 403]


async def test_what_a_stop_cuts_off_and_what_it_still_answers_is_remembered(stage: RpcStage) -> None:
    credential = await stage.enrol("edge")
    stream = await Stream.open(stage, credential)
    await stream.expect("welcome")
    await stage.door.refuse()
    await stage.door.drain(timedelta(seconds=5))
    assert await stream.status() is grpc.StatusCode.UNAVAILABLE
    await stream.close()
    found = [record for record in await records(stage) if record.verb == "connect"]
    assert [told(record)[2] for record in found] == [200, 503]
