"""The limits of the agents' door: a level that is full refuses its own and leaves the others alone."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.access.limits import REGISTRATIONS, REPORTS, SESSIONS
from hub.grpc_door.registration.csr_follower import MAX_STREAMS
from machinery.runtime.tls import client_context
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as wire
from tests.fakes.rpc_stage import PENDING, RpcStage, Stream, following, joining, refusal, rpc_stage, submission, until_found
from tests.fakes.stage import until

ALWAYS = timedelta(seconds=30)
SILENT = {
    "nothing is sent": (b"", False, b""),
    "the handshake comes byte by byte": (b"\x16\x03\x01\x02\x00", False, b"\x01"),
    "no HTTP/2 after the handshake": (b"", True, b""),
    "HTTP/2 without a call": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", True, b""),
}  # what a connection begins with, whether over TLS, and what it goes on with
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def full(stage: RpcStage, level: str) -> AsyncIterator[None]:
    """The one seat of a level is taken."""
    pool = stage.parts.limits.pools[level]
    await pool.take("somebody", ALWAYS)
    yield
    pool.give("somebody")


async def one_waits(stage: RpcStage, level: str) -> None:
    await until(lambda: stage.parts.limits.snapshot()[level]["waiting"])


async def test_new_calls_are_refused_while_writes_wait_and_heartbeats_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.access.limits.CALL_WAIT", timedelta(milliseconds=50))
    async with rpc_stage(tmp_path) as stage:
        credential = await stage.enrol("edge")
        stream, congestion = await stage.welcomed(credential), stage.parts.limits._congestion
        gate, seen, before = stage.parts.gate, list[int](), stage.parts.gate.in_flight

        def delay() -> float:
            seen.append(gate.in_flight)
            return 1.0

        monkeypatch.setattr(congestion, "_delay", delay)
        congestion.admit()  # measures from now on
        await asyncio.sleep(0)
        refused = await refusal(stage.stub(credential).GetHub(registration.GetHubRequest(), timeout=8))
        assert refused.reason == (EXHAUSTED, "TooManyRequests")
        assert int(refused.trailing["grpc-retry-pushback-ms"]) >= 1000
        assert max(seen) == before + 1, "a call that waits is in flight: a stop waits for it"
        await stream.beat(1)


async def test_full_registration_level_refuses_with_a_pushback_and_leaves_agents_alone(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, max_registrations_inflight=1) as stage:
        credential, bootstrap = await stage.enrol("edge"), await stage.bootstrap("new")
        storm, agent, stream = stage.stub(bootstrap), stage.stub(credential), await stage.welcomed(credential)
        async with full(stage, REGISTRATIONS):
            calls = (
                storm.EnsureCluster(joining("new", "uid-2"), timeout=8),
                storm.SubmitRequest(submission("new"), timeout=8),
                storm.GetHub(registration.GetHubRequest(), timeout=8),
            )
            for refused in await asyncio.gather(*map(refusal, calls)):
                assert refused.reason == (EXHAUSTED, "TooManyRequests")
                assert int(refused.trailing["grpc-retry-pushback-ms"]) >= 1000
            await agent.SubmitRequest(submission("edge"), timeout=20)
            await stream.beat(1)
            assert (await stream.report(complete=True)).reason == ""
        assert stage.parts.limits.snapshot()[REGISTRATIONS]["refused"] == 3

        async with full(stage, REGISTRATIONS):
            waiting = asyncio.ensure_future(storm.EnsureCluster(joining("new", "uid-2")))
            await one_waits(stage, REGISTRATIONS)
        assert (await waiting).created

        async with full(stage, REGISTRATIONS):
            waiting = asyncio.ensure_future(stage.stub(await stage.bootstrap("newer")).EnsureCluster(joining("newer", "uid-3")))
            await one_waits(stage, REGISTRATIONS)
            await stage.door.refuse()
            draining = asyncio.ensure_future(stage.door.drain(timedelta(seconds=5)))
        assert (await waiting).created, "a call that waits when the hub stops is answered"
        await draining


async def test_sessions_of_a_cluster_and_starts_of_sessions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a refusal waits for the Hello, which comes in each of these sessions, however late on a busy machine
    monkeypatch.setattr("hub.grpc_door.session.servicer.REFUSED_WITHIN", ALWAYS)
    async with rpc_stage(tmp_path, max_sessions_per_cluster=1, max_session_starts_inflight=1) as stage:
        limits = stage.parts.limits
        one, other = await stage.enrol("edge"), await stage.enrol("far", uid="uid-2")
        first = await stage.welcomed(one)
        assert await (await Stream.open(stage, one)).status() is EXHAUSTED
        assert limits.snapshot()["sessions per cluster"]["refused"] == 1
        await stage.welcomed(other, uid="uid-2")
        await first.call.done_writing()
        assert await first.status() is grpc.StatusCode.OK
        await (await stage.welcomed(one)).close()
        await until(lambda: limits.snapshot()["sessions per cluster"]["open"] == 1)

        monkeypatch.setattr("hub.access.limits.REQUEST_LIMIT", timedelta(seconds=2))  # of which a session waits for a quarter
        async with full(stage, SESSIONS):
            assert await (await Stream.open(stage, one)).status() is EXHAUSTED
        refused = [limits.snapshot()[name]["refused"] for name in (SESSIONS, "sessions per cluster")]
        assert refused == [1, 1], "it had to wait for a start, and was refused that"


async def test_beat_does_not_wait_behind_reports_which_are_stored_in_order_when_there_is_room(tmp_path: Path) -> None:
    """A report may wait for its turn for longer than an agent waits for its hub."""
    async with rpc_stage(tmp_path, max_status_reports_inflight=1) as stage:
        stream = await stage.welcomed(await stage.enrol("edge"))
        async with full(stage, REPORTS):
            await stream.send(status=wire.StatusReport(sequence=1, complete=True, kubernetes_version="v1.30.0"))
            await one_waits(stage, REPORTS)
            await stream.send(status=wire.StatusReport(sequence=2, complete=True, kubernetes_version="v1.31.0"))
            await stream.beat(1)
        await stream.call.done_writing()
        acks = [await stream.expect("report_ack") for _ in range(2)]
        assert [(ack.sequence, ack.reason) for ack in acks] == [(1, ""), (2, "")]
        assert (await stage.cluster("edge"))["status"]["version"]["kubernetes"] == "v1.31.0"


async def test_request_is_followed_in_a_bounded_number_of_streams(stage: RpcStage) -> None:
    stub = stage.stub(await stage.bootstrap("new"))
    await stage.join(stub, "new")
    followed = following((await stub.SubmitRequest(submission("new"))).name)
    streams: list[Any] = [stub.FollowRequest(followed) for _ in range(MAX_STREAMS)]
    for stream in streams:
        assert (await stream.read()).state == PENDING
    assert (await refusal(stub.FollowRequest(followed).read())).reason == (EXHAUSTED, "TooManyRequests")
    streams[0].cancel()

    async def has_room() -> bool:
        try:
            return bool((await stub.FollowRequest(followed).read()).state == PENDING)
        except aio.AioRpcError:
            return False

    await until_found(has_room)


async def connected(
    stage: RpcStage, first: bytes = b"", tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.door.port, ssl=tls, server_hostname=name)
    writer.write(first)
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> None:
    """Raises TimeoutError when the hub keeps the connection."""
    async with asyncio.timeout(15):
        with suppress(ConnectionResetError):
            await reader.read()


async def test_connections_above_the_bound_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.grpc_door.server.HANDSHAKE", timedelta(minutes=1))
    monkeypatch.setattr("hub.grpc_door.server.most_connections", lambda: 2)
    async with rpc_stage(tmp_path) as stage:
        held = [await connected(stage) for _ in range(2)]
        reader, writer = await connected(stage)
        await ended(reader)
        assert not any(reader.at_eof() for reader, _ in held)
        for each in (writer, *(writer for _, writer in held)):
            each.transport.abort()


async def test_idle_connections_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr("hub.grpc_door.server.HANDSHAKE", timedelta(seconds=2))
    monkeypatch.setattr("hub.grpc_door.server.IDLE", timedelta(seconds=1))
    async with rpc_stage(tmp_path) as stage:
        credential = await stage.bootstrap("edge1")
        context = client_context(stage.issuer.trust_bundle, credential.chain, credential.key)
        context.set_alpn_protocols(["h2"])
        held = {name: await connected(stage, first, context if tls else None) for name, (first, tls, _) in SILENT.items()}
        for name, (reader, writer) in held.items():
            with subtests.test(name):
                reading = asyncio.create_task(ended(reader))
                while not (await asyncio.wait((reading,), timeout=0.05))[0]:
                    writer.write(SILENT[name][2])
                await reading
            writer.transport.abort()
        assert (await stage.stub(credential).GetHub(registration.GetHubRequest())).hub_id
