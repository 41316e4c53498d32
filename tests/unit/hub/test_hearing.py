"""Which silence is an agent's, and which is the hub's own."""

from datetime import timedelta

import pytest

from hub.heartbeat import BeatBuffer, Hearing
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.fakes.memory_store import MemoryStore

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


class World:
    """A hub's clock, and a database's that may go its own way."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.database = ManualClock()
        self.store = MemoryStore(self.database)
        self.beats = BeatBuffer(self.store, self.clock, SECOND)
        self.started = self.database.now()
        self.hearing = Hearing(self.clock, self.beats, self.started)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(SECOND)
            self.database.advance(SECOND)
            self.hearing.pulse()


@pytest.fixture
def world() -> World:
    return World()


class Deaf:
    def acknowledge(self, sequence: int, *, ended_silence: bool) -> None:
        """Nobody waits for it."""


def test_while_all_is_well_it_is_the_start(world: World) -> None:
    world.pass_time(30)
    assert world.hearing.since(world.database.now()) == world.started
    world.pass_time(600)
    assert world.hearing.since(world.database.now()) == world.started


def test_a_jump_of_the_databases_clock_begins_anew(world: World) -> None:
    world.pass_time(30)
    world.hearing.since(world.database.now())
    world.database.advance(MINUTE)
    jumped = world.database.now()
    assert world.hearing.since(jumped) == jumped
    world.pass_time(30)
    assert world.hearing.since(world.database.now()) == jumped


def test_a_standstill_begins_anew_even_when_the_first_pulse_comes_before_the_first_look(world: World) -> None:
    world.pass_time(30)
    world.hearing.since(world.database.now())
    for clock in (world.clock, world.database):
        clock.advance(MINUTE)
    assert world.hearing.since(world.database.now()) == world.database.now()
    for clock in (world.clock, world.database):
        clock.advance(MINUTE)
    world.hearing.pulse()
    world.pass_time(3)
    assert world.hearing.since(world.database.now()) == world.database.now()


async def test_a_database_that_cannot_be_written_says_so_and_begins_anew_when_it_can(world: World) -> None:
    world.pass_time(30)
    world.beats.hold(ClusterName("c1"), 1, Deaf(), available=True)
    world.store.failure = UnavailableError("the database is locked")
    await world.beats.flush()
    assert world.hearing.since(world.database.now()) is None
    world.pass_time(30)
    world.store.failure = None
    await world.beats.flush()
    assert world.hearing.since(world.database.now()) == world.database.now()
