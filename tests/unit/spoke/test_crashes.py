"""Agents that are killed around any write, and copies of one among hubs that fail at random; crowds come back apart."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from machinery.identity import HubId
from machinery.pki import key_matches, parse_certificate
from machinery.runtime.clock import Clock
from spoke.options import AgentOptions, Pauses
from tests.fakes.credentials import DyingSecrets, KilledError
from tests.fakes.hub import MemoryHub
from tests.fakes.several import CLUSTER, Gate, Several
from tests.fakes.stage import OWNER
from tests.fakes.virtual_time import LoopClock
from tests.trials import repeated, soaked, trials

PATIENCE = 3600.0  # virtual seconds
MOST_WRITES = 9  # of a registration at two hubs: five at the owner, four at the other
FAILOVERS = trials(test=10, soak=300)

"""Virtual seconds in which a session must beat again, whatever happened."""
AGENTS = 60
WINDOW, AWAY = 0.1, 60.0
AT_ONCE = 20
"""Of these agents, in a window. Spread over a second, six are to be expected there; 20 were the most in 10,000 drawn crowds."""


class LaterClock(LoopClock):
    """The loop's time, and so much later."""

    later = timedelta()

    def now(self) -> datetime:
        return super().now() + self.later


@dataclass
class Mortal:
    """Two hubs, and an agent that has one life after the other."""

    folder: Path
    random: Random
    clock: Clock = field(init=False)
    secrets: DyingSecrets = field(default_factory=DyingSecrets)
    hubs: Several = field(init=False)

    def __post_init__(self) -> None:
        self.clock = LaterClock(asyncio.get_running_loop())
        options, second = AgentOptions(cluster_name=CLUSTER), timedelta(seconds=1)
        self.hubs = Several(self.folder, 2, options, secrets=self.secrets, clock=self.clock, beat_interval=second)

    async def life(self, arrived: Callable[[], object], *, fatal: int = 0, before: bool = True) -> bool:
        """Until the agent is killed at its n-th write (True), or has arrived."""
        self.secrets.live(fatal, before=before)
        agent = asyncio.create_task(self.hubs.agent(self.random).run())
        try:
            async with asyncio.timeout(PATIENCE):
                while not (self.secrets.dead or arrived()):
                    assert not agent.done(), agent.exception()
                    await asyncio.sleep(0.01)
        finally:
            died, self.secrets.dead = self.secrets.dead, True  # a killed process cleans nothing up
            agent.cancel()
            with suppress(asyncio.CancelledError, KilledError, BaseExceptionGroup):
                await agent
        return died

    def slot(self, hub: MemoryHub) -> str:
        return f"{OWNER}-{hub.hub_id[:8]}"

    def contents(self, name: str) -> dict[str, bytes]:
        return dict(self.secrets.inner.contents(name))

    def holds(self, hub: MemoryHub, certificates: int) -> bool:
        """The slot has the newest certificate of that hub, the hub has issued so many, and nothing is pending."""
        contents = self.contents(self.slot(hub))
        if len(hub.issued) != certificates or "tls.crt" not in contents or any("pending" in key for key in contents):
            return False
        return parse_certificate(contents["tls.crt"]).serial == hub.issued[-1]

    def at_work(self, owner: str = "a", certificates: int = 1) -> bool:
        """A session that beats at the owner; each hub's newest certificate in its slot, and of each so many."""
        beats = any(session.beats for session in self.hubs[owner].open_sessions)
        return beats and all(self.holds(hub, certificates) for hub in self.hubs.hubs.values() if not hub.away)

    def assert_whole(self, owner: str, certificates: int) -> None:
        hub, contents = self.hubs[owner], self.contents(OWNER)
        assert key_matches(contents["tls.crt"], contents["tls.key"])
        assert (contents["hub-id"].decode(), contents["tls.crt"]) == (hub.hub_id, self.contents(self.slot(hub))["tls.crt"])
        for each in self.hubs.hubs.values():
            kept = self.contents(self.slot(each))
            assert key_matches(kept["tls.crt"], kept["tls.key"])
            assert len(each.clusters) == 1
            assert len(each.requests) == len(each.issued) == certificates
            assert [len(each.open_sessions) for each in self.hubs.hubs.values()].count(0) >= 1
        assert self.secrets.inner.names == {OWNER, *(self.slot(each) for each in self.hubs.hubs.values())}


Scene = Callable[[Mortal], Awaitable[tuple[Callable[[], object], str, int]]]
"""Prepares; returns what it means to have arrived, and then the name of the owner and the number of each hub's certificates."""


async def joins(mortal: Mortal) -> tuple[Callable[[], object], str, int]:
    return mortal.at_work, "a", 1


async def joins_with_approvals(mortal: Mortal) -> tuple[Callable[[], object], str, int]:
    """A person approves each request some time after it was submitted."""
    for hub in mortal.hubs.hubs.values():
        hub.approve = False

    def arrived() -> object:
        for hub in mortal.hubs.hubs.values():
            for request in tuple(hub.requests.values()):
                if request.state == "pending":
                    hub.approve_request(request.name)
        return mortal.at_work()

    return arrived, "a", 1


async def renews(mortal: Mortal) -> tuple[Callable[[], object], str, int]:
    await mortal.life(mortal.at_work)
    assert isinstance(mortal.clock, LaterClock)
    mortal.clock.later = timedelta(days=25)
    return lambda: mortal.at_work(certificates=2), "a", 2


async def changes_hub(mortal: Mortal) -> tuple[Callable[[], object], str, int]:
    await mortal.life(mortal.at_work)
    mortal.hubs.kill("a")
    return lambda: mortal.at_work(owner="b"), "b", 1


@pytest.mark.parametrize(("scene", "fewest"), [(joins, 6), (joins_with_approvals, 6), (renews, 6), (changes_hub, 1)])
@repeated(1, 20)
async def test_whatever_write_kills_it_no_life_registers_twice(tmp_path: Path, scene: Scene, fewest: int, trial: int) -> None:
    write = 0
    while True:
        write += 1
        died = [await _killed_once(tmp_path, scene, write, before=before, seed=trial) for before in (True, False)]
        if not all(died):
            break
    assert write > fewest


async def _killed_once(folder: Path, scene: Scene, write: int, *, before: bool, seed: int) -> bool:
    """Whether there was such a write."""
    mortal = Mortal(folder, Random(seed))
    arrived, owner, certificates = await scene(mortal)
    died = await mortal.life(arrived, fatal=write, before=before)
    await mortal.life(arrived)
    mortal.assert_whole(owner, certificates)
    return died


@repeated(10, 1000)
async def test_any_row_of_crashes_costs_no_key_and_no_certificate(tmp_path: Path, trial: int) -> None:
    """Killed around drawn writes, up to six times in a row, then left alone: while it joins, and while it renews."""
    random = Random(trial)
    mortal = Mortal(tmp_path, random)
    for certificates in (1, 2):
        assert isinstance(mortal.clock, LaterClock)
        mortal.clock.later = timedelta(days=25 * (certificates - 1))
        for _ in range(random.randrange(1, 7)):
            fatal, before = random.randint(1, MOST_WRITES), random.random() < 0.5
            await mortal.life(lambda: mortal.at_work(certificates=certificates), fatal=fatal, before=before)  # noqa: B023
        await mortal.life(lambda: mortal.at_work(certificates=certificates))  # noqa: B023
    mortal.assert_whole("a", 2)


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
    recorded: list[str] = field(default_factory=list)

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
        await self.world.until(self._beating_now)
        hub = self._beating_now()[0]
        self._disturb()
        lose = self.random.choice([self.world.kill, self._fall_silent, self._drain])
        self.recorded.append(f"{lose.__name__} {hub}")
        lose(hub)
        await asyncio.sleep(self.random.uniform(0, 20))
        self._disturb()
        await asyncio.sleep(self.random.uniform(0, 20))
        self.world.revive(hub)
        for copy in self.copies:
            copy.gate.open()
        await self._beats()

    def _beating_now(self) -> list[str]:
        return [name for name, hub in self.world.hubs.items() if any(session.beats for session in hub.open_sessions)]

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
            while not (at := self._beating(marks)):  # noqa: ASYNC110 - no Event
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
            assert not taken & other, history.recorded
    assert sum(before != after for before, after in zip(history.owners, history.owners[1:], strict=False)) > FAILOVERS / 3
    for order in orders:
        assert order == sorted(order), "a hub took a write of a lower epoch than before"


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
    attempts: list[float] = []
    for seed in range(1000):
        pauses, now = Pauses().retry.backoff(Random(seed)), 0.0
        while (now := now + pauses.next().total_seconds()) < AWAY:
            attempts.append(now)
    assert _peak(attempts, WINDOW) < 400, "of a thousand in a tenth of a second"
    late = [moment for moment in attempts if moment > AWAY / 2]
    assert len(late) / (AWAY / 2) < 150, "a second"
    assert _peak(late, WINDOW) < 50
