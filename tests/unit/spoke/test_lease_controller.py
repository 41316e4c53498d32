"""Beats: when, with which verdict, and what their silence means."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest

from machinery.clock import SystemClock
from machinery.identity import AgentId, ClusterName, agent_subject
from spoke.controllers.lease import LeaseController
from spoke.ports import ClientIdentity, HubLostError, Loss
from tests.fakes.hub import KnownCluster, MemoryHub, MemorySession
from tests.fakes.stage import until
from tests.fakes.virtual_time import in_virtual_time

CLUSTER = ClusterName("berlin")


def session() -> MemorySession:
    hub = MemoryHub(SystemClock())
    hub.clusters[CLUSTER] = KnownCluster("uid", "cluster-uid", accepted=True)
    credential = hub.credential(agent_subject(CLUSTER, AgentId("abcde")))
    made = MemorySession(hub, CLUSTER, ClientIdentity(credential.chain, credential.key))
    hub.sessions.append(made)
    return made


def controller(
    on: MemorySession,
    *,
    verdict: Callable[[], bool | None] = lambda: True,
    told: list[float] | None = None,
    random: float = 0,
    silence: timedelta = timedelta(milliseconds=60),
) -> LeaseController:
    class Drawn(Random):
        def random(self) -> float:
            return random

    acknowledged = (lambda: told.append(asyncio.get_running_loop().time())) if told is not None else lambda: None
    return LeaseController(on, verdict=verdict, acknowledged=acknowledged, silence=silence, random=Drawn())


@asynccontextmanager
async def running(lease: LeaseController) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(lease.run())
    yield task
    task.cancel()
    await asyncio.wait([task])


async def test_a_cluster_that_is_not_accepted_does_not_beat() -> None:
    on = session()
    lease = controller(on)
    async with running(lease):
        for _ in range(20):
            await asyncio.sleep(0)
        assert on.beats == []
        lease.accept(accepted=True)
        await until(lambda: on.beats)


async def test_the_first_beat_is_sent_at_once_and_every_beat_asks_for_the_verdict() -> None:
    on, verdicts = session(), iter((None, True, False))
    lease = controller(on, verdict=lambda: next(verdicts, False))
    lease.accept(accepted=True)
    async with running(lease):
        await until(lambda: len(on.beats) >= 3)
    assert on.beats[:3] == [None, True, False]


@pytest.mark.parametrize(("drawn", "part"), [(0.0, 1.0), (1.0, 0.75)])
def test_the_interval_is_shortened_by_up_to_a_quarter(drawn: float, part: float) -> None:
    async def play() -> list[float]:
        on, told = session(), list[float]()
        on.hub.beat_interval = timedelta(seconds=8)
        lease = controller(on, told=told, random=drawn)
        lease.accept(accepted=True)
        async with running(lease):
            await asyncio.sleep(40)
        return told

    told = in_virtual_time(play())
    assert [after - before for before, after in pairwise(told)] == pytest.approx([8 * part] * (len(told) - 1))
    assert len(told) >= 4


async def test_a_new_verdict_is_beaten_at_once() -> None:
    on = session()
    on.hub.beat_interval = timedelta(hours=1)
    lease = controller(on)
    lease.accept(accepted=True)
    async with running(lease):
        await until(lambda: len(on.beats) == 1)
        lease.hurry()
        await until(lambda: len(on.beats) == 2)


class Thrifty(MemorySession):
    """Acknowledges nothing by itself: `acknowledge` speaks for all beats so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._heard = asyncio.Event()

    async def beat(self, *, available: bool | None) -> None:
        await super().beat(available=available)
        await self._heard.wait()

    def acknowledge(self) -> None:
        self._heard.set()
        self._heard = asyncio.Event()


def thrifty() -> Thrifty:
    plain = session()
    plain.hub.beat_interval = timedelta(milliseconds=10)
    return Thrifty(plain.hub, plain.cluster, plain.identity)


async def test_beats_keep_their_interval_while_acknowledgements_come_together() -> None:
    on, told = thrifty(), list[float]()
    lease = controller(on, told=told, silence=timedelta(seconds=5))
    lease.accept(accepted=True)
    async with running(lease) as task:
        await until(lambda: len(on.beats) == 4)
        assert told == []
        on.acknowledge()
        await until(lambda: len(told) == 4)
        await until(lambda: len(on.beats) == 8)
        assert not task.done()


def test_the_oldest_beat_that_waits_is_the_one_that_tells_of_silence() -> None:
    async def play() -> tuple[float, int]:
        on, loop = thrifty(), asyncio.get_running_loop()
        lease = controller(on, silence=timedelta(milliseconds=200))
        lease.accept(accepted=True)
        run = asyncio.create_task(lease.run())
        await until(lambda: len(on.beats) == 4)
        on.acknowledge()
        began = loop.time()
        with pytest.raises(HubLostError) as lost:
            await run
        assert lost.value.loss is Loss.SILENT
        return loop.time() - began, len(on.beats)

    took, beats = in_virtual_time(play())
    assert 0.2 <= took < 0.22, "the beat after those that were acknowledged, which came within an interval"
    assert beats > 8


async def test_a_hub_that_does_not_acknowledge_is_lost_as_silent() -> None:
    on = session()
    on.hub.silent = True
    lease = controller(on)
    lease.accept(accepted=True)
    with pytest.raises(HubLostError) as lost:
        await lease.run()
    assert lost.value.loss is Loss.SILENT


def test_silence_about_a_cluster_that_is_accepted_no_longer_is_no_loss() -> None:
    async def play() -> None:
        on = session()
        on.hub.silent = True
        lease = controller(on)
        lease.accept(accepted=True)
        async with running(lease) as task:
            await until(lambda: on.beats)
            lease.accept(accepted=False)
            done, _ = await asyncio.wait([task], timeout=60)
            assert not done

    in_virtual_time(play())
