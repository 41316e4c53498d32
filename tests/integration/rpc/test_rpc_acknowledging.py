"""Acknowledgements name the newest stored beat: a session that beats fast hears of several at once, and of each in time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from hub.ports import Transaction
from hub.rpc.acknowledging import MOST_PATIENT, PATIENCE, TICK, Acknowledgements, Deferred, spacing
from hub.services import clusters
from machinery import conditions
from machinery.clock import SystemClock
from machinery.errors import ConflictError
from machinery.identity import cluster_name
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.patience import Detection
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import ClientIdentity, Greeting, HubAddress
from tests.fakes.rpc_stage import ADMIN, RpcStage, Stream, rpc_stage
from tests.fakes.stage import until

EDGE = cluster_name("edge1")
LONGEST = 2.0
"""Seconds; agents that say nothing of their patience."""
UNKNOWN = conditions.Condition(conditions.AVAILABLE, conditions.UNKNOWN, "ManagedClusterLeaseUpdateStopped", "")


SHORT_LEASE = timedelta(seconds=4)
SHORT = spacing(SHORT_LEASE, timedelta(seconds=1))


async def next_ack(stream: Stream) -> tuple[int, float]:
    """The sequence it names, and when it came."""
    sequence = (await stream.expect("beat_ack")).sequence
    return sequence, asyncio.get_running_loop().time()


async def until_stored(stage: RpcStage, *, available: bool) -> None:
    async with asyncio.timeout(20):
        while True:
            last = await stage.store.read(lambda tx: tx.heartbeats.of(EDGE))
            if last is not None and last.available is available:
                return
            await asyncio.sleep(0.01)


async def set_lease(stage: RpcStage, seconds: int) -> None:
    def change(tx: Transaction) -> None:
        stored = clusters.find(tx, EDGE)
        spec = {**stored.document["spec"], "leaseDurationSeconds": seconds}
        clusters.put(tx, {**stored.document, "spec": spec}, stored, ADMIN)

    await stage.store.run(change)


async def acks_until(stream: Stream, newest: int) -> list[tuple[int, float]]:
    acks = [await next_ack(stream)]
    while acks[-1][0] < newest:
        acks.append(await next_ack(stream))
    return acks


async def test_the_first_beat_is_acknowledged_at_once_and_those_that_follow_fast_together(stage: RpcStage) -> None:
    """How far apart to the millisecond: tests/unit/hub/test_acknowledging.py. A slow machine takes longer to send them."""
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.send(beat=wire.Beat(sequence=1))
    first, at = await next_ack(stream)
    hearing = asyncio.create_task(acks_until(stream, 7))
    for sequence in range(2, 8):
        await stream.send(beat=wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE))
        await asyncio.sleep(0.1)  # two flush windows: each beat is stored by a flush of its own
    sent = asyncio.get_running_loop().time()
    acks = await hearing
    assert first == 1
    assert len(acks) <= 1 + (sent - at) / LONGEST
    moments = [at, *(moment for _, moment in acks)]
    assert all(later - earlier > LONGEST / 2 for earlier, later in pairwise(moments))
    assert acks[-1][1] - sent < PATIENCE.total_seconds()
    await stream.close()


class Noted(Deferred):
    """Counts what has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def call_at(self, when: float, tell: Callable[[], None]) -> None:
        self.waits += 1
        super().call_at(when, tell)


async def test_a_beat_after_a_pause_is_acknowledged_as_soon_as_it_is_stored(stage: RpcStage) -> None:
    """That it does not wait is counted, not measured: a machine that is busy may take a second to store it."""
    credential, noted = await stage.enrol("edge1"), Noted()
    object.__setattr__(stage.parts, "deferred", noted)  # the same parts are the running door's
    await set_lease(stage, int(SHORT_LEASE.total_seconds()))
    stream = await Stream.open(stage, credential)
    for sequence, pause in ((1, SHORT + TICK), (2, 0)):
        await stream.send(beat=wire.Beat(sequence=sequence))
        assert (await next_ack(stream))[0] == sequence
        assert noted.waits == 0
        await asyncio.sleep(pause)
    await stream.close()


async def test_the_first_beat_of_every_session_is_acknowledged_at_once(tmp_path: Path) -> None:
    """One that waited for its turn, since the session began or since the one before was told of a beat, would come later."""
    interval = timedelta(seconds=1)
    waited = spacing(timedelta(seconds=60), interval, MOST_PATIENT)
    assert waited > 2 * LONGEST
    async with rpc_stage(tmp_path, interval=interval) as stage:
        credential = await stage.enrol("edge1")
        before = asyncio.get_running_loop().time()
        for _ in range(2):
            stream = await Stream.open(stage, credential, patience_seconds=int(MOST_PATIENT.total_seconds()))
            await stream.send(beat=wire.Beat(sequence=1))
            told, at = await next_ack(stream)
            assert told == 1
            assert at - before < 0.9 * waited
            before = at
            await stream.close()


async def test_a_session_that_ends_is_told_what_is_stored(stage: RpcStage) -> None:
    stream = await Stream.open(stage, await stage.enrol("edge1"))
    await stream.send(beat=wire.Beat(sequence=1))
    await next_ack(stream)
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_UNAVAILABLE))
    await until(lambda: stage.parts.beats.counts.stored == 2)  # the session knows: others may read it a moment earlier
    for session in stage.parts.sessions.all():
        session.end(ConflictError("superseded"))
    assert (await next_ack(stream))[0] == 2
    await stream.close()


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[RpcStage]:
    """A door that lets beats lie for a second."""
    async with rpc_stage(tmp_path, window=timedelta(seconds=1)) as stage:
        yield stage


@pytest.mark.parametrize("least", [1, 2], ids=["while it lies in the buffer", "when it was acknowledged"])
async def test_a_silence_that_is_told_in_the_moment_in_which_a_beat_comes_ends_with_that_beat(
    slow: RpcStage, least: int
) -> None:
    """The agent was acknowledged, and may not beat again for half a minute."""
    stream = await Stream.open(slow, await slow.enrol("edge1"))
    await stream.send(beat=wire.Beat(sequence=1, verdict=wire.VERDICT_UNAVAILABLE))
    await next_ack(stream)
    await stream.send(beat=wire.Beat(sequence=2, verdict=wire.VERDICT_AVAILABLE))
    beats = slow.parts.beats
    await until(lambda: beats.counts.stored >= least and len(beats) + beats.counts.stored == 2)
    await slow.store.run(clusters.set_condition, EDGE, UNKNOWN, ADMIN)
    async with asyncio.timeout(20):
        while await availability(slow) != conditions.TRUE:  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.02)
    await stream.close()


async def availability(stage: RpcStage) -> str:
    found = conditions.find((await stage.cluster("edge1"))["status"]["conditions"], conditions.AVAILABLE)
    return found.status if found else ""


@pytest.mark.parametrize(("silence", "expected"), [(2, 4), (5, 10), (60, 10)])
async def test_an_agent_says_for_how_long_it_really_waits(
    stage: RpcStage, monkeypatch: pytest.MonkeyPatch, silence: int, expected: int
) -> None:
    """`--hub-silence` is the operator's, and the hub is to be faster than that."""
    told: list[timedelta] = []
    monkeypatch.setattr(Acknowledgements, "begin", lambda _, patience: told.append(patience))
    credential = await stage.enrol("edge1")
    client = GrpcHubClient(
        HubAddress(f"localhost:{stage.door.port}", stage.issuer.trust_bundle),
        ClientIdentity(credential.chain, credential.key),
        SystemClock(),
        Detection(silence=timedelta(seconds=silence)),
    )
    try:
        async with client.session(Greeting("uid-1")):
            assert told == [timedelta(seconds=expected)]
    finally:
        await client.close()
