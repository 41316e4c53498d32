"""Copies of an agent among hubs that fail at random never have two hubs take a write in one epoch; crowds come back apart."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from machinery.identity import HubId
from spoke.options import AgentOptions, Pauses
from tests.fakes.hub import MemoryHub
from tests.fakes.several import CLUSTER, Gate, Several
from tests.trials import soaked, trials

FAILOVERS = trials(test=10, soak=300)
PATIENCE = 3600.0
"""Virtual seconds in which a session must beat again, whatever happened."""


@dataclass
class Copy:
    """One copy of the agent: it may stand still, die, and be started again."""

    world: Several
    random: Random
    gate: Gate = field(init=False)
    life: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.gate = Gate(self.random)

    def start(self) -> None:
        self.life = asyncio.create_task(self.world.agent(self.random, self.gate).run())

    async def die(self) -> None:
        assert self.life is not None
        self.gate.open()
        self.life.cancel()
        await asyncio.wait([self.life])


@dataclass
class History:
    """What happens to hubs and copies, drawn from one seed."""

    world: Several
    random: Random
    copies: list[Copy] = field(default_factory=list)
    owners: list[HubId] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    async def live(self, failovers: int) -> None:
        self.copies = [Copy(self.world, Random(self.random.random())) for _ in range(2)]
        for copy in self.copies:
            copy.start()
        await self._beats()
        for _ in range(failovers):
            await self._fail()
        for copy in self.copies:
            await copy.die()

    async def _fail(self) -> None:
        hub = next(name for name, each in self.world.hubs.items() if any(session.beats for session in each.open_sessions))
        self._disturb()
        lose = self.random.choice([self.world.kill, self._fall_silent, self._drain])
        self.told.append(f"{lose.__name__} {hub}")
        lose(hub)
        await asyncio.sleep(self.random.uniform(0, 20))
        self._disturb()
        await asyncio.sleep(self.random.uniform(0, 20))
        self.world.revive(hub)
        for copy in self.copies:
            copy.gate.open()
        await self._beats()

    def _disturb(self) -> None:
        """One copy stands still, or all go on."""
        chosen = self.random.choice([*self.copies, None])
        for copy in self.copies:
            (copy.gate.shut if copy is chosen else copy.gate.open)()

    def _fall_silent(self, hub: str) -> None:
        self.world[hub].silent = True

    def _drain(self, hub: str) -> None:
        others = [other.hub_id for name, other in self.world.hubs.items() if name != hub]
        for session in self.world[hub].open_sessions:
            session.drain(self.random.choice(others))

    async def _beats(self) -> None:
        """Returns when a session beats."""
        marks = {hub.hub_id: len(hub.accepted_writes) for hub in self.world.hubs.values()}
        async with asyncio.timeout(PATIENCE):
            while not (at := self._beating(marks)):  # noqa: ASYNC110 - told by nobody
                await asyncio.sleep(0.1)
        self.owners.append(at[0].hub_id)

    def _beating(self, marks: Mapping[HubId, int]) -> list[MemoryHub]:
        return [hub for hub in self.world.hubs.values() if len(hub.accepted_writes) > marks[hub.hub_id] + 1]


@soaked(FAILOVERS)
@pytest.mark.timeout(trials(test=60, soak=1800))
async def test_no_two_hubs_take_a_write_in_the_same_epoch_however_they_and_the_copies_fail(tmp_path: Path) -> None:
    world = Several(tmp_path, 3, AgentOptions(cluster_name=CLUSTER), beat_interval=timedelta(seconds=1))
    history = History(world, Random(FAILOVERS))
    await history.live(FAILOVERS)
    orders = [[epoch for _, epoch in hub.accepted_writes] for hub in history.world.hubs.values()]
    epochs = [set(taken) for taken in orders]
    for number, taken in enumerate(epochs):
        for other in epochs[number + 1 :]:
            assert not taken & other, history.told
    assert sum(before != after for before, after in zip(history.owners, history.owners[1:], strict=False)) > FAILOVERS / 3
    for order in orders:
        assert order == sorted(order), "a hub took a write of a lower epoch than before"


AGENTS = 60
WINDOW, AWAY = 0.1, 60.0
AT_ONCE = 20
"""Of these agents, in a window. Spread over a second, six are to be expected there; 20 were the most in 10,000 drawn crowds."""


def _peak(moments: Sequence[float], window: float) -> int:
    """The most of these within any `window`."""
    ordered = sorted(moments)
    most = first = 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


async def test_agents_whose_hub_is_killed_do_not_come_to_the_other_one_at_one_moment(tmp_path: Path) -> None:
    moments = []
    for seed in range(AGENTS):
        world = Several(tmp_path, random=Random(seed))
        async with world.running():
            await world.ready()
            world.kill("a")
            moments.append(await world.arrived("b"))
    assert _peak(moments, WINDOW) <= AT_ONCE
    assert max(moments) < 3


async def test_agents_whose_replica_is_killed_do_not_come_to_the_others_at_one_moment(tmp_path: Path) -> None:
    moments = []
    for seed in range(AGENTS):
        world = Several(tmp_path, 1, random=Random(seed))
        async with world.running():
            await world.arrived("a")
            world.kill("a")
            world.revive("a")  # behind one address: another replica answers at once
            moments.append(await world.arrived("a"))
    assert _peak(moments, WINDOW) <= 2 * AT_ONCE
    assert max(moments) < 1


def test_a_thousand_agents_whose_hub_is_away_knock_seldom_and_never_together() -> None:
    knocks: list[float] = []
    for seed in range(1000):
        pauses, now = Pauses().retry.backoff(Random(seed)), 0.0
        while (now := now + pauses.next().total_seconds()) < AWAY:
            knocks.append(now)
    assert _peak(knocks, WINDOW) < 400, "of a thousand in a tenth of a second"
    late = [moment for moment in knocks if moment > AWAY / 2]
    assert len(late) / (AWAY / 2) < 150, "a second"
    assert _peak(late, WINDOW) < 50
