"""Which silence is an agent's, and which is the hub's own, with one replica and with several."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from hub.domain.heartbeat import Beat
from hub.heartbeat import Hearing
from hub.services import heartbeats
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
C1 = ClusterName("c1")


class World:
    """A database whose clock may go its own way, and replicas on it; each is up or not."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = ManualClock()
        self.store = MemoryStore(self.database)
        self.started = self.now
        self.storing = True
        self.up: dict[str, Hearing] = {}

    @property
    def now(self) -> datetime:
        return self.database.now()

    def start(self, replica: str = "a") -> Hearing:
        self.up[replica] = Hearing(self.store, self.clock, replica, lambda: self.storing)
        return self.up[replica]

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(SECOND)
            self.database.advance(SECOND)
            for hearing in self.up.values():
                await hearing.mark()

    def stand_still(self, seconds: int) -> None:
        for clock in (self.clock, self.database):
            clock.advance(timedelta(seconds=seconds))

    async def since(self, hearing: Hearing) -> datetime | None:
        return await self.store.read(hearing.since)


@pytest.fixture
def world() -> World:
    return World()


async def test_while_all_is_well_it_is_the_start(world: World) -> None:
    hearing = world.start()
    await hearing.mark()
    await world.pass_time(600)
    assert await world.since(hearing) == world.started


async def test_before_the_first_mark_nobody_is_judged(world: World) -> None:
    assert await world.since(world.start()) is None


@pytest.mark.parametrize("jump", [MINUTE, 3 * SECOND, -3 * SECOND, -MINUTE], ids=str)
async def test_a_jump_of_the_databases_clock_begins_anew(world: World, jump: timedelta) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.database.advance(jump)
    await hearing.mark()
    jumped = world.now
    assert await world.since(hearing) == jumped
    await world.pass_time(30)
    assert await world.since(hearing) == jumped


@pytest.mark.parametrize("jump", [MINUTE, 3 * SECOND], ids=str)
async def test_nobody_is_judged_between_a_jump_forwards_and_the_next_mark(world: World, jump: timedelta) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.database.advance(jump)
    assert await world.since(hearing) is None


async def test_after_a_jump_backwards_no_beat_is_of_the_future(world: World) -> None:
    """Or the beats of the next hour would not count, and a silence would be told an hour late."""
    hearing = world.start()
    await world.pass_time(30)
    await world.store.run(heartbeats.flush, [Beat(C1, timedelta(), available=True)])
    world.database.advance(-timedelta(hours=1))
    await hearing.mark()
    assert world.store.state.beats[C1].at == world.now
    await world.pass_time(5)
    await world.store.run(heartbeats.flush, [Beat(C1, timedelta(), available=True)])
    assert world.store.state.beats[C1].at == world.now


async def test_a_transaction_that_waits_for_its_turn_is_no_jump(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = world.start()
    await world.pass_time(30)
    run = world.store.run

    async def late(*args: Any, **kwargs: Any) -> Any:
        world.clock.advance(3 * SECOND)
        outcome = await run(*args, **kwargs)
        world.database.advance(3 * SECOND)
        return outcome

    monkeypatch.setattr(world.store, "run", late)
    await hearing.mark()
    monkeypatch.undo()
    await world.pass_time(1)
    assert await world.since(hearing) == world.started + SECOND


async def test_a_standstill_begins_anew(world: World) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.stand_still(60)
    assert await world.since(hearing) is None
    await hearing.mark()
    assert await world.since(hearing) == world.now


async def test_a_database_that_cannot_be_written_begins_anew_when_it_can(world: World) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.store.failure = UnavailableError("the database is locked")
    await world.pass_time(30)
    world.store.failure = None
    assert await world.since(hearing) is None
    await hearing.mark()
    assert await world.since(hearing) == world.now


async def test_a_replica_whose_beats_cannot_be_stored_does_not_say_that_it_listens(world: World) -> None:
    hearing = world.start()
    await world.pass_time(30)
    world.storing = False
    await world.pass_time(6)
    assert await world.since(hearing) is None


async def test_a_hub_that_was_away_gives_a_whole_grace_however_short_it_was(world: World) -> None:
    world.start()
    await world.pass_time(30)
    world.stand_still(2)
    again = world.start()
    await again.mark()
    assert await world.since(again) == world.now


async def test_a_new_leader_judges_at_once_from_what_all_have_heard(world: World) -> None:
    world.start("a")
    await world.pass_time(30)
    leader = world.start("b")
    assert await world.since(leader) == world.started + SECOND
    del world.up["a"]
    await world.pass_time(30)
    assert await world.since(leader) == world.started + SECOND


async def test_replicas_that_are_replaced_one_by_one_give_nobody_a_new_grace(world: World) -> None:
    for replica in "abc":
        world.start(replica)
    await world.pass_time(30)
    for replica in "abc":
        world.stand_still(2)
        world.start(replica)
        await world.pass_time(3)
    assert {await world.since(hearing) for hearing in world.up.values()} == {world.started + SECOND}


async def test_one_replica_that_stands_still_is_heard_for_by_the_others(world: World) -> None:
    standing, other = world.start("a"), world.start("b")
    await world.pass_time(10)
    del world.up["a"]
    await world.pass_time(60)
    assert await world.since(standing) == world.started + SECOND
    await standing.mark()
    assert await world.since(standing) == await world.since(other) == world.started + SECOND


async def test_when_all_stood_still_all_begin_anew(world: World) -> None:
    first, second = world.start("a"), world.start("b")
    await world.pass_time(10)
    world.stand_still(20)
    await second.mark()
    anew = world.now
    await world.pass_time(3)
    assert await world.since(first) == await world.since(second) == anew


async def test_replicas_that_are_gone_are_forgotten(world: World) -> None:
    world.start("a")
    await world.pass_time(1)
    del world.up["a"]
    world.stand_still(100_000)
    await world.start("b").mark()
    assert list(world.store.state.marks) == ["b"]
