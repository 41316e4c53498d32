"""What becomes of beats that cannot be stored, or end no silence; and when a replica says that it can store them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import structlog

from hub.api.managedclusters import cluster as rules
from hub.heartbeat import BeatBuffer, BeatSink, HeartbeatCoverage
from hub.heartbeat.buffer import TOGETHER
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import ConflictError, InvalidError, StaleEpochError, UnavailableError
from machinery.identity import ClusterName
from machinery.meta.conditions import TRUE, UNKNOWN, Condition
from machinery.runtime.clock import Clock, ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import LoopClock, in_the_loops_time, in_virtual_time
from tests.unit.hub.conftest import failing

SECOND = timedelta(seconds=1)
GRACE = 300 * SECOND
NAMES = tuple(ClusterName(name) for name in ("c1", "c2", "c3"))
C1, C2, _ = NAMES
AWAY = UnavailableError("the database is away")
DEFECTS, TROUBLES = (InvalidError("it breaks a rule"), ValueError("a defect")), (AWAY, ConflictError("another was faster"))


@dataclass
class Acks(BeatSink):
    """`seen`: what was acknowledged, and whether that ended a silence."""

    epoch: int = 0
    seen: list[tuple[int, bool]] = field(default_factory=list)
    refused: list[StaleEpochError] = field(default_factory=list)

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        self.seen.append((sequence, ended_silence))

    def refuse(self, error: StaleEpochError) -> None:
        self.refused.append(error)


class World:
    """One replica's buffer and hearing, over a store that can be away; three clusters, all of them silent."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = fresh_store(self.clock)
        self.beats = BeatBuffer(self.store, self.clock, SECOND)
        self.hearing = HeartbeatCoverage(self.store, self.clock, "r", lambda: self.beats.storing)
        self.acks = Acks()
        for name in NAMES:
            self.store.transact(clusters.put, {"metadata": {"name": name}, "spec": {"hubAcceptsClient": True}}, None, "admin")
            self.set(name, rules.ACCEPTED, rules.SILENT)

    def set(self, name: ClusterName, *conditions: Condition) -> None:
        for condition in conditions:
            self.store.ask(partial(clusters.set_condition, name=name, condition=condition, actor="test"))

    def hold(self, name: ClusterName, *, ends_silence: bool = True, sequence: int = 1) -> None:
        self.beats.hold(name, sequence, self.acks, available=True, ends_silence=ends_silence)

    def status(self, name: ClusterName) -> str:
        found = rules.availability(self.store.ask(lambda tx: clusters.find(tx, name)).document)
        return found.status if found else ""

    async def is_heard(self) -> bool:
        await self.hearing.mark()
        return self.store.ask(self.hearing.since) is not None

    async def lose_database(self) -> None:
        """While everybody's beat ends a silence; it is away for longer than a mark is fresh."""
        for name in NAMES:
            self.hold(name)
        self.store.failure = AWAY
        await self.beats.flush()
        self.clock.advance(10 * SECOND)
        assert not await self.is_heard()


@pytest.fixture
def world() -> World:
    return World()


def wrong(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Callable[[], None]:
    """Has the end of c1's silence fail until what is returned is called."""
    return failing(monkeypatch, heartbeats, "revive", error, lambda beat, *_: beat.cluster == C1)


async def test_replica_hears_again_when_nothing_that_waited_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent may be left whose later beat would show that the database is back."""
    await world.lose_database()
    world.store.failure = None
    for name in NAMES:
        assert not await world.is_heard()
        world.beats.drop(name, world.acks)
    assert await world.is_heard()
    await world.lose_database()
    world.store.failure = None
    for name in (C2, NAMES[2]):
        world.beats.drop(name, world.acks)
    mend = wrong(monkeypatch, heartbeats.stale_epoch_error(7))
    await world.beats.flush()
    assert [error.epoch for error in world.acks.refused] == [7]
    assert await world.is_heard()
    mend()
    await world.lose_database()
    world.store.failure = None
    await world.beats.flush()
    assert [world.status(name) for name in NAMES] == [TRUE] * 3
    assert await world.is_heard()
    world.hold(C1, ends_silence=False, sequence=2)
    assert world.beats.storing, "the next beat has not failed"


async def test_what_is_being_stored_is_not_stored_yet(world: World) -> None:
    for name in NAMES:
        world.set(name, rules.AVAILABLE)
        world.hold(name, ends_silence=False)
    world.store.failure = AWAY
    await world.beats.flush()
    world.store.failure, seen = None, list[bool]()
    run_first = world.store.run_first

    async def looked_at(*asked: Any, **more: Any) -> Any:
        seen.append(world.beats.storing)
        return await run_first(*asked, **more)

    world.store.run_first = looked_at  # type: ignore[method-assign]
    await world.beats.flush()
    assert (seen, world.beats.storing) == ([False], True)


async def test_a_beat_that_waited_for_a_whole_grace_ends_no_silence(world: World) -> None:
    await world.lose_database()
    world.clock.advance(GRACE - 11 * SECOND)
    world.hold(C2, sequence=2)
    world.clock.advance(SECOND)
    world.store.failure = None
    await world.beats.flush()
    assert [world.status(name) for name in NAMES] == [UNKNOWN, TRUE, UNKNOWN]
    assert sorted(world.acks.seen) == [(1, False), (1, False), (2, True)], "whose session lives tries again with its next beat"
    assert world.beats.counts.revived == 1


@pytest.mark.parametrize("error", [*DEFECTS, *TROUBLES])
async def test_silence_that_cannot_end_costs_no_beat(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    mend = wrong(monkeypatch, error)
    with structlog.testing.capture_logs() as lines:
        for sequence in range(1, 4):
            world.hold(C1, sequence=sequence)
            world.hold(C2, ends_silence=False, sequence=sequence)
            await world.beats.flush()
            assert len(world.beats) == 0
            assert await world.is_heard()
    assert world.status(C1) == UNKNOWN
    assert world.store.state.beats[C1].at == world.clock.now(), "its beats are stored all the same"
    assert world.acks.seen == [(sequence, False) for sequence in (1, 1, 2, 2, 3, 3)]
    expected = [("a silence cannot be ended", C1)] if error in DEFECTS else []
    assert [(line["event"], line["cluster"]) for line in lines] == expected
    mend()
    world.hold(C1, sequence=4)
    await world.beats.flush()
    assert (world.status(C1), world.acks.seen[-1]) == (TRUE, (4, True))


async def test_silence_that_is_noticed_after_a_beat_was_stored_ends_with_that_beat_or_a_newer_one(world: World) -> None:
    received = world.beats.hold(C1, 1, world.acks, available=True)
    await world.beats.flush()
    assert world.acks.seen == [(1, False)]
    world.clock.advance(GRACE)
    world.beats.hold_again(received)
    await world.beats.flush()
    assert (world.status(C1), world.acks.seen[-1]) == (UNKNOWN, (1, False)), "the beat is older than the grace"
    received = world.beats.hold(C1, 2, world.acks, available=True)
    await world.beats.flush()
    world.set(C1, rules.SILENT)
    world.clock.advance(3 * SECOND)
    world.beats.hold_again(received)
    await world.beats.flush()
    assert (world.status(C1), world.acks.seen[-1]) == (TRUE, (2, True))
    assert world.store.state.beats[C1].at == world.clock.now() - 3 * SECOND, "as old as it is"
    world.set(C1, rules.SILENT)
    received = world.beats.hold(C1, 3, world.acks, available=True)
    world.clock.advance(SECOND)
    world.beats.hold(C1, 4, world.acks, available=False)
    world.beats.hold_again(received)
    await world.beats.flush()
    assert (world.status(C1), world.acks.seen[-1]) == ("False", (4, True))


class SlowStore(InlineStore):
    """Takes so many seconds for each transaction, one after the other."""

    def __init__(self, clock: Clock, takes: float = 0.01) -> None:
        super().__init__(clock)
        self._turn, self._takes = asyncio.Lock(), takes
        self.revived: list[ClusterName] = []

    async def run_first(self, use_case: Any, *args: Any, **_: Any) -> Any:
        async with self._turn:
            await asyncio.sleep(self._takes)
        if use_case is not heartbeats.revive:
            return {}
        self.revived.append(args[0].cluster)
        return True


class Awaited(Acks):
    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        super().acknowledge(sequence, ended_silence=ended_silence)
        self.came.set()


def test_beats_of_others_are_stored_in_time_while_a_thousand_clusters_come_back() -> None:
    async def waited() -> tuple[float, int]:
        loop, clock = asyncio.get_running_loop(), LoopClock(asyncio.get_running_loop())
        store, returning = SlowStore(clock), [Awaited() for _ in range(1_000)]
        beats = BeatBuffer(store, clock, SECOND)
        running = asyncio.create_task(beats.run())
        for number, acks in enumerate(returning):
            beats.hold(ClusterName(f"c{number}"), 1, acks, available=True, ends_silence=True)
        await asyncio.sleep(0.5)
        longest = 0.0
        while len(store.revived) < len(returning):
            other, began = Awaited(), loop.time()
            beats.hold(ClusterName("other"), 1, other, available=True)
            await other.came.wait()
            longest = max(longest, loop.time() - began)
        for acks in returning:
            await acks.came.wait()
        running.cancel()
        assert all(acks.seen == [(1, True)] for acks in returning)
        return longest, len(store.revived)

    longest, revived = in_virtual_time(waited())
    assert longest <= 3
    assert revived == 1_000


def test_a_silence_ends_though_its_beat_comes_while_another_silence_is_being_ended() -> None:
    """Stored among the others it would be acknowledged, and the cluster read Unknown until its next beat."""

    async def reported() -> list[Acks]:
        clock, came = LoopClock(asyncio.get_running_loop()), [Awaited(), Awaited()]
        store = SlowStore(clock)
        beats = BeatBuffer(store, clock, SECOND)
        running = asyncio.create_task(beats.run())
        beats.hold(C1, 1, came[0], available=True, ends_silence=True)
        await asyncio.sleep(0.005)
        beats.hold(C2, 1, came[1], available=True, ends_silence=True)
        async with asyncio.timeout(0.05):
            for acks in came:
                await acks.came.wait()
        running.cancel()
        assert store.revived == [C1, C2]
        return [*came]

    assert [acks.seen for acks in in_virtual_time(reported())] == [[(1, True)]] * 2


@in_the_loops_time
async def test_beat_that_ends_a_silence_is_acknowledged_although_the_window_ends_while_it_is_stored() -> None:
    clock, acks = LoopClock(asyncio.get_running_loop()), Acks()
    beats = BeatBuffer(SlowStore(clock, takes=1), clock, SECOND / 50)
    running = asyncio.create_task(beats.run())
    beats.hold(C2, 2, acks, available=True, ends_silence=True)
    await asyncio.sleep(0.9)
    assert acks.seen == []
    await asyncio.sleep(0.2)
    assert acks.seen == [(2, True)]
    running.cancel()


def test_a_database_that_is_away_is_not_asked_all_the_time_by_many_that_come_back() -> None:
    async def asked() -> int:
        clock = LoopClock(asyncio.get_running_loop())
        store = fresh_store(clock)
        store.failure = AWAY
        beats = BeatBuffer(store, clock, SECOND)
        for number in range(1_000):
            beats.hold(ClusterName(f"c{number}"), 1, Acks(), available=True, ends_silence=True)
        running = asyncio.create_task(beats.run())
        await asyncio.sleep(10)
        running.cancel()
        return beats.counts.failures

    assert in_virtual_time(asked()) <= 12 * (TOGETHER + 1)


def test_what_comes_in_step_is_stored_together_soon_after_its_first_beat_but_no_silence_waits_for_that() -> None:
    async def reported() -> list[tuple[str, float, float]]:
        loop, clock = asyncio.get_running_loop(), LoopClock(asyncio.get_running_loop())
        store, came = SlowStore(clock), list[tuple[str, float, float]]()
        beats = BeatBuffer(store, clock, SECOND)
        running = asyncio.create_task(beats.run())

        async def beat(name: str, at: float, *, ends_silence: bool = False) -> None:
            await asyncio.sleep(at)
            acks, began = Awaited(), loop.time()
            beats.hold(ClusterName(name), 1, acks, available=True, ends_silence=ends_silence)
            await acks.came.wait()
            came.append((name, loop.time() - began, loop.time()))

        await asyncio.gather(
            beat("first", 10.0),
            beat("second", 10.02),
            beat("third", 10.05),
            beat("alone", 20.0),
            beat("back", 20.01, ends_silence=True),
        )
        running.cancel()
        assert beats.counts.rows.count == 2, "flushes: the one that came back took a transaction of its own"
        return came

    came = in_virtual_time(reported())
    assert len({moment for name, _, moment in came if name in ("first", "second", "third")}) == 1
    waited = {name: seconds for name, seconds, _ in came}
    assert waited["first"] < 0.2
    assert waited["back"] < 0.05
