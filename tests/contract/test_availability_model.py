"""Availability against what must be true of it: 200 agents, random faults, thousands of steps of a second, real services.

Every run is drawn from one seed, which a failure names. `make test` takes few steps, `make soak` 10,000.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

import pytest

from hub.domain.brake import Limits
from hub.domain.taint import Patience
from hub.domain.transition import Damping
from hub.ports import Store
from hub.services import brake
from machinery.clock import ManualClock
from tests.fakes.databases import Database, MemoryDatabase
from tests.fakes.silence_model import Model
from tests.fakes.silent_fleet import SECOND, WINDOW, Agent, Fleet, Setting
from tests.trials import repeated, trials

IN_MEMORY = trials(test=300, soak=10_000)
ON_DISK = trials(test=60, soak=10_000)
"""SQLite's and PostgreSQL's."""


@pytest.fixture
async def engine(database: Database, clock: ManualClock) -> AsyncIterator[tuple[Store, ManualClock, int]]:
    """A store, its clock, and how many steps it is worth."""
    async with database.opened(clock) as store:
        yield store, clock, IN_MEMORY if isinstance(database, MemoryDatabase) else ON_DISK


def fault(fleet: Fleet, random: Random) -> list[Agent]:
    """Agents are killed, paused, partitioned: for a moment, for about a grace, for long; sometimes many at once. Who."""
    chance = random.random()
    struck = random.sample(fleet.agents, random.randint(20, 120)) if chance < 0.004 else []
    struck += [agent for agent in fleet.agents if random.random() < 0.002]
    for agent in struck:
        about = 5 * agent.lease
        length = random.choice((1, about - 1, about, about + 1, about + 2, random.randint(1, 8 * about)))
        agent.quiet_until = max(agent.quiet_until, fleet.step + length)
    return struck


@repeated(test=1, soak=3)
async def test_a_silence_reads_unknown_in_time_and_never_while_beats_are_acknowledged(
    engine: tuple[Store, ManualClock, int], trial: int
) -> None:
    store, clock, steps = engine
    fleet = Fleet(store, clock, trial, Setting(limits=Limits(share=0.0), patience=Patience(damping=Damping(threshold=0))))
    random = Random(trial + 1_000)
    await fleet.begin()
    while fleet.step < steps:
        fleet.tick()
        await fleet.flush()
        await fleet.follow()
        fault(fleet, random)
        fleet.send()
        await fleet.mark()
        await fleet.judge()
        for agent in fleet.agents:
            said = f"seed {trial}, step {fleet.step}, {agent.name}, acknowledged {agent.acknowledged}, now {fleet.now}"
            heard = agent.acknowledged or clock_began(fleet)
            if fleet.status(agent.name) != "Unknown":
                assert fleet.now <= heard + agent.grace + WINDOW + SECOND, f"Available too late: {said}"
            else:
                assert fleet.now >= heard + agent.grace, f"Unknown while beats are acknowledged: {said}"
        if fleet.step % 50 == 0:
            await fleet.forget()


def clock_began(fleet: Fleet) -> datetime:
    return fleet.now - fleet.step * SECOND


@dataclass
class Weather:
    """What befalls the hub: its replicas, its database, its database's clock. One thing at a time, drawn from a seed."""

    random: Random
    until: dict[str, int] = field(default_factory=dict)
    jumped: bool = False

    def change(self, fleet: Fleet, model: Model) -> None:
        """Before a step's work."""
        self._clear_up(fleet)
        self._break(fleet, model)
        self.jumped = self.random.random() < 0.002
        if self.jumped:
            fleet.database.advance(self.random.choice((-100, -10, 10, 100)) * SECOND)
        # what waits, waits by the steady clock: after a jump all is looked at anew, or it would be due at another time
        if fleet.up and (self.jumped or not fleet.is_led or self.random.random() < 0.01):
            fleet.lead(self.random.choice(fleet.up))

    def _clear_up(self, fleet: Fleet) -> None:
        if fleet.store.away and fleet.step >= self.until["away"]:
            fleet.store.away = False
        for number in tuple(fleet.paused):
            if fleet.step >= self.until[f"paused {number}"]:
                fleet.paused.discard(number)
        for number, replica in enumerate(fleet.replicas):
            if replica is None and fleet.step >= self.until[f"killed {number}"]:
                fleet.start(number)

    def _break(self, fleet: Fleet, model: Model) -> None:
        random = self.random
        if random.random() < 0.006:
            fleet.store.away, self.until["away"] = True, fleet.step + random.choice((1, 3, 4, 5, 6, 30))
        if fleet.up and random.random() < 0.006:
            number = random.choice(fleet.up)
            fleet.paused.add(number)
            self.until[f"paused {number}"] = fleet.step + random.choice((1, 3, 4, 5, 6, 40))
        if fleet.up and random.random() < 0.006:
            number = random.choice(fleet.up)
            fleet.kill(number)
            model.heard.restart(number)
            self.until[f"killed {number}"] = fleet.step + random.choice((0, 1, 3, 4, 5, 6, 40))


class Drive:
    """The fleet and its model, step by step."""

    def __init__(self, fleet: Fleet, model: Model, seed: int) -> None:
        self.fleet = fleet
        self.model = model
        self.random = Random(seed + 2_000)
        self.weather = Weather(Random(seed + 3_000))
        self.held: list[dict[str, tuple[Agent, int, bool, bool]]] = [{} for _ in fleet.replicas]
        """By replica what it holds: the newest beat of each agent, when it came by the steady clock, its verdict, its flag."""

    async def step(self) -> None:
        fleet, model = self.fleet, self.model
        fleet.tick()
        replicas = list(fleet.replicas)
        self.weather.change(fleet, model)
        for number, replica in enumerate(fleet.replicas):
            if replica is not replicas[number]:
                self.held[number].clear()
        await self._flush()
        await fleet.follow()
        self._part(fault(fleet, self.random))
        known = {agent.name: fleet.is_silent(agent) for agent in fleet.agents}
        for agent in fleet.send():
            self.held[agent.replica][agent.name] = agent, fleet.step, agent.well, known[agent.name]
        if self.random.random() < 0.3 and not self.weather.jumped:
            await self._judge()
        await self._mark()
        await self._judge()
        await self._report()
        if self.random.random() < 0.003 and not fleet.store.away:
            await fleet.store.run(brake.release, "test")
            model.release(fleet.now)
        await fleet.taint()
        if fleet.is_up(fleet.leader) and not fleet.store.away:
            model.follow(fleet.now)

    def _part(self, struck: list[Agent]) -> None:
        """Some of them with a word, which ends their sessions; what the others have sent is held until it can be stored."""
        for agent in struck:
            if self.random.random() < 0.5:
                self.fleet.part(agent)
                self.held[agent.replica].pop(agent.name, None)

    async def _flush(self) -> None:
        fleet = self.fleet
        await fleet.flush()
        if fleet.store.away:
            return
        for number in fleet.up:
            held, self.held[number] = self.held[number], {}
            for name, (_, step, well, flag) in held.items():
                at = fleet.now - (fleet.step - step) * SECOND
                self.model.beat(name, at, fleet.now, well=well, known_silent=flag)

    async def _mark(self) -> None:
        fleet = self.fleet
        await fleet.mark()
        if fleet.store.away:
            return
        for number in fleet.up:
            if self.model.heard.has_jumped(number, fleet.now, fleet.step):
                self.model.jump(fleet.now)
            self.model.heard.mark(number, fleet.now, fleet.step)

    async def _judge(self) -> None:
        await self.fleet.judge()
        if self.fleet.is_up(self.fleet.leader) and not self.fleet.store.away:
            self.model.judge(self.fleet.now)

    async def _report(self) -> None:
        fleet = self.fleet
        for agent in fleet.agents:
            if self.random.random() < 0.002:
                agent.well = not agent.well
                if not fleet.store.away and fleet.status(agent.name) != "Unknown":
                    await fleet.report(agent)
                    self.model.change(self.model.clusters[agent.name], "True" if agent.well else "False", fleet.now)
        await fleet.follow()


@repeated(test=1, soak=5)
async def test_a_fleet_is_at_every_step_what_the_model_says(engine: tuple[Store, ManualClock, int], trial: int) -> None:
    store, clock, steps = engine
    damping = Damping(threshold=3, window=timedelta(seconds=200), hold=timedelta(seconds=40))
    patience = Patience(delay=timedelta(seconds=6), damping=damping)
    limits = Limits(share=0.2, at_least=10, window=timedelta(seconds=60))
    fleet = Fleet(store, clock, trial, Setting(replicas=3 - trial % 3, patience=patience, limits=limits))
    await fleet.begin()
    model = Model({agent.name: agent.grace for agent in fleet.agents}, fleet.now, patience, limits)
    drive = Drive(fleet, model, trial)
    while fleet.step < steps:
        await drive.step()
        said = f"seed {trial}, step {fleet.step}, at {fleet.now}"
        if fleet.store.away:
            continue
        assert (await fleet.store.read(brake.now)).holds is (model.held is not None), f"the brake: {said}"
        shown = {agent.name: (fleet.status(agent.name), fleet.taints(agent.name)) for agent in fleet.agents}
        expected = {name: (each.status, (each.taint,) if each.taint else ()) for name, each in model.clusters.items()}
        wrong = {name: (shown[name], each, model.clusters[name]) for name, each in expected.items() if shown[name] != each}  # type: ignore[index]
        assert not wrong, f"{said}: {wrong}"
        if fleet.step % 50 == 0:
            await fleet.forget()
