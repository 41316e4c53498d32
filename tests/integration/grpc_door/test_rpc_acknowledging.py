"""An acknowledgement names the newest stored beat: a session that beats fast gets one for several beats."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from hub.grpc_door.session.acknowledgements import Acknowledgements, Deferred, spacing
from hub.grpc_door.session.stream import Session
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError
from machinery.identity import cluster_name
from machinery.meta import conditions
from machinery.runtime.clock import SystemClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.schedule import Detection
from spoke.ports.hub import ClientIdentity, Greeting, HubAddress
from spoke.transports.grpc.client import GrpcHubClient
from tests.fakes.rpc_stage import ADMIN, INTERVAL, RpcStage, Stream, rpc_stage, until_found
from tests.fakes.stage import until

EDGE = cluster_name("edge1")
UNKNOWN = conditions.Condition(conditions.AVAILABLE, conditions.UNKNOWN, "ManagedClusterLeaseUpdateStopped", "")
SPACING = spacing(timedelta(seconds=60), INTERVAL)


class Recorded(Deferred):
    """Calls back only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_at(self, when: float, tell: Callable[[], None]) -> None:
        self.calls.append((when, tell))


async def test_fast_beats_share_an_acknowledgement_and_the_first_beat_of_a_session_has_its_own(stage: RpcStage) -> None:
    credential, deferred, time = await stage.enrol("edge1"), Recorded(), 1000.0
    object.__setattr__(stage.parts, "deferred", deferred)  # the same parts are the running door's

    async def opened(patience: int) -> Stream:
        before = stage.parts.sessions.all()
        stream = await Stream.open(stage, credential, patience_seconds=patience)
        await stream.expect("desired")
        (session,) = (each for each in stage.parts.sessions.all() if each not in before)
        cast("Session", session)._told._now = lambda: time
        return stream

    stream = await opened(0)
    await stream.beat(1)
    assert deferred.calls == []

    for sequence in range(2, 8):
        await stream.send(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE))
        await until(lambda: stage.parts.beats.counts.stored == sequence)  # noqa: B023 - each beat is stored by its own flush
    ((due, acknowledge),) = deferred.calls
    assert due == time + SPACING
    time = due
    acknowledge()
    assert (await stream.expect("beat_ack")).sequence == 7

    time += SPACING
    await stream.beat(8)
    assert len(deferred.calls) == 1, "a beat after a pause does not wait"

    again = await opened(10)
    await again.beat(1)
    assert len(deferred.calls) == 1, "neither does the first beat of a session"


async def test_session_that_ends_is_sent_what_is_stored(stage: RpcStage) -> None:
    stream = await stage.welcomed(await stage.enrol("edge1"))
    await stream.beat(1)
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_UNAVAILABLE))
    await until(lambda: stage.parts.beats.counts.stored == 2)
    for session in stage.parts.sessions.all():
        session.end(ConflictError("superseded"))
    assert (await stream.expect("beat_ack")).sequence == 2


@pytest.mark.parametrize("is_stored", [False, True], ids=["while it lies in the buffer", "when it was acknowledged"])
async def test_silence_noticed_at_the_moment_of_a_beat_ends_with_that_beat(tmp_path: Path, *, is_stored: bool) -> None:
    """The agent was acknowledged, and may not beat again for half a minute."""
    async with rpc_stage(tmp_path, flush_window=timedelta(minutes=1)) as stage:
        stream = await stage.welcomed(await stage.enrol("edge1"))
        await stream.beat(1, wire.VERDICT_UNAVAILABLE)
        await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_AVAILABLE))
        await until(lambda: len(stage.parts.beats) == 1)
        if is_stored:
            await stage.parts.beats.flush()
        await stage.store.run(clusters.set_condition, EDGE, UNKNOWN, ADMIN)

        async def is_available() -> bool:
            await stage.parts.beats.flush()
            found = conditions.find((await stage.cluster("edge1"))["status"]["conditions"], conditions.AVAILABLE)
            return found is not None and found.status == conditions.TRUE

        await until_found(is_available)


async def test_agent_reports_how_long_it_really_waits(stage: RpcStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--hub-silence` is the operator's, and the hub is to be faster than that."""
    reported: list[timedelta] = []
    monkeypatch.setattr(Acknowledgements, "begin", lambda _, patience: reported.append(patience))
    credential = await stage.enrol("edge1")
    address = HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle)
    identity = ClientIdentity(credential.chain, credential.key)
    for silence in (2, 5, 60):
        client = GrpcHubClient(address, identity, SystemClock(), Detection(silence=timedelta(seconds=silence)))
        async with asyncio.timeout(20), client.session(Greeting("uid-1")):
            pass
        await client.close()
    assert reported == [timedelta(seconds=seconds) for seconds in (4, 10, 10)]
