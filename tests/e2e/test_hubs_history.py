"""Random failovers of two copies of an agent on one secret: no two hubs ever accept a write of a cluster in the same epoch."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.e2e.hubs import Hub, Hubs, hubs_in, now
from tests.e2e.processes import Program, until
from tests.e2e.recorder import Recorder, backwards, shared
from tests.trials import soaked, trials

pytestmark = [pytest.mark.e2e]

COPIES = ("one", "two")
FAILOVERS = trials(test=3, soak=300)
TOGETHER = ("--leader-elect=false",)


@dataclass
class Duel:
    """Both copies, and the hub that was seen to have the cluster last."""

    hubs: Hubs
    copies: list[Program]
    random: Random
    stopped: list[Program] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)

    async def owner(self) -> Hub:
        """The one whose beat is the newest, once one has come since now."""
        since = now()

        async def beating() -> Hub | None:
            newest = max(self.hubs.all, key=lambda hub: hub.row("duel").beat)
            return newest if newest.row("duel").beat > since else None

        found = await until(beating, what="a hub has the cluster", within=60)
        assert isinstance(found, Hub)
        return found

    async def failover(self) -> None:
        """One random way to lose the owner, with a random thing done to a copy before and after; and the way back."""
        await self._disturb()
        owner = await self.owner()
        others = [hub for hub in self.hubs.all if hub is not owner]
        way = self.random.choice([self._kill, self._cut, self._silence])
        since = now()
        self.happened.append(f"{way.__name__} {owner.name}")
        async with way(owner):
            await self._disturb()

            async def arrived() -> bool:
                return any(hub.row("duel").beat > since for hub in others)

            await until(arrived, what="the cluster is on another hub", within=90)
        await self._disturb()

    async def _disturb(self) -> None:
        """At most one copy stands still."""
        await asyncio.sleep(self.random.uniform(0, 0.3))
        if self.stopped and self.random.random() < 0.7:
            self.stopped.pop().send(signal.SIGCONT)
        elif not self.stopped and self.random.random() < 0.5:
            copy = self.random.choice(self.copies)
            copy.send(signal.SIGSTOP)
            self.stopped.append(copy)
        elif not self.stopped and self.random.random() < 0.3:
            copy = self.random.choice(self.copies)
            await copy.kill()
            await copy.start()

    @asynccontextmanager
    async def _kill(self, hub: Hub) -> AsyncIterator[None]:
        await hub.kill()
        yield
        await hub.start()

    @asynccontextmanager
    async def _cut(self, hub: Hub) -> AsyncIterator[None]:
        await hub.path.refuse()
        yield
        await hub.path.take()

    @asynccontextmanager
    async def _silence(self, hub: Hub) -> AsyncIterator[None]:
        hub.path.silence()
        yield
        hub.path.resume()


@soaked(FAILOVERS)
@pytest.mark.timeout(trials(test=180, soak=7200))
async def test_no_two_hubs_accept_a_write_of_one_cluster_in_the_same_epoch(tmp_path: Path) -> None:
    async with hubs_in(tmp_path) as hubs:
        await hubs.start(2)
        copies = [await hubs.prepared("duel", *TOGETHER, name=f"spoke-{copy}") for copy in COPIES]
        recorder = Recorder(hubs.all)
        async with recorder.recording():
            await copies[0].start()
            await hubs.reserve("duel")
            await copies[1].start()
            duel = Duel(hubs, copies, Random(FAILOVERS))
            for _ in range(FAILOVERS):
                await duel.failover()
            for copy in duel.stopped:
                copy.send(signal.SIGCONT)
            await duel.owner()
        assert shared(recorder.writes) == {}, duel.happened
        assert backwards(recorder.writes) == [], duel.happened
        assert len({write.epoch for write in recorder.writes}) > FAILOVERS / 2  # a history, not silence
        assert all(copy.running for copy in copies)
