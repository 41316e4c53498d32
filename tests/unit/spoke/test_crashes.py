"""An agent of two hubs that is killed around any write, and started again: while it joins, renews, and changes its hub.

Never a lost key, never a second certificate per approval.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from machinery.pki import key_matches, parse_certificate
from machinery.runtime.clock import Clock
from spoke.options import AgentOptions
from tests.fakes.credentials import DyingSecrets, KilledError
from tests.fakes.hub import MemoryHub
from tests.fakes.several import CLUSTER, Several
from tests.fakes.stage import OWNER
from tests.fakes.virtual_time import LoopClock
from tests.trials import repeated

PATIENCE = 3600.0
"""Virtual seconds."""
MOST_WRITES = 9
"""Of a registration at two hubs: five at the owner, four at the other."""


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
        options = AgentOptions(cluster_name=CLUSTER)
        second = timedelta(seconds=1)
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
            died, self.secrets.dead = self.secrets.dead, True  # nothing is tidied up by whoever is killed
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
        hub = self.hubs[owner]
        contents = self.contents(OWNER)
        assert key_matches(contents["tls.crt"], contents["tls.key"])
        assert contents["hub-id"].decode() == hub.hub_id
        assert contents["tls.crt"] == self.contents(self.slot(hub))["tls.crt"]
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
async def test_whatever_write_kills_it_the_next_life_has_a_credential_of_each_hub_and_no_second_registration(
    tmp_path: Path, scene: Scene, fewest: int, trial: int
) -> None:
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
