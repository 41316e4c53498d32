"""Candidates for one lock, in the loop's time: hours in no time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta

from machinery.election import Candidate, Elector, Leadership, Term, Timings
from machinery.runtime.clock import Clock
from tests.fakes.memory_lock import MemoryLock, Way
from tests.fakes.virtual_time import LoopClock, VirtualLoop, in_virtual_time

LEASE, DEADLINE, RETRY, POLL = 15.0, 10.0, 2.0, 0.25
SOON = 0.001


@dataclass
class Replica:
    """A candidate with its flag, its way to the lock, and a diary of its terms."""

    name: str
    elector: Elector
    flag: Leadership
    way: Way
    diary: list[str]
    terms: list[int] = field(default_factory=list)
    work_ends_after: float = 0.0
    work_fails: bool = False

    async def work(self, term: Term) -> None:
        assert self.flag.term == term.number, "the flag stands before the work begins"
        self.terms.append(term.number)
        self.diary.append(f"{self.name} works: {term.because}")
        try:
            if self.work_fails:
                raise RuntimeError("the work fell")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.work_ends_after)
            leads = "leading" if self.flag.term is not None else "not leading"
            self.diary.append(f"{self.name} stopped, {leads}")


class World:
    """Replicas on one lock, in the loop's time."""

    def __init__(self, lock_clock: Clock | None = None) -> None:
        """`lock_clock`: the lock's own; None: it goes as everybody's."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clock = LoopClock(loop)
        self.lock = MemoryLock(lock_clock or self.clock)
        self.diary: list[str] = []
        self._stack = AsyncExitStack()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def replica(self, name: str, incarnation: str = "", *, alone: bool = False, stop_within: float = 5) -> Replica:
        """A candidate that runs."""
        way, flag = self.lock.way(), Leadership(self.clock)
        replica: Replica
        elector = Elector(
            way,
            Candidate(name, incarnation or f"{name}-1"),
            lambda term: replica.work(term),  # noqa: PLW0108 - it exists by then
            timings=Timings(),
            clock=self.clock,
            leadership=flag,
            alone=alone,
            stop_within=timedelta(seconds=stop_within),
        )
        replica = Replica(name, elector, flag, way, self.diary)
        self._tasks[name + incarnation] = asyncio.create_task(elector.run(), name=name)
        return replica

    async def leader(self, name: str, incarnation: str = "", *, stop_within: float = 5) -> Replica:
        """A candidate that runs and leads."""
        replica = self.replica(name, incarnation, stop_within=stop_within)
        await self.until(lambda: replica.flag.term)
        return replica

    async def kill(self, name: str) -> None:
        """As SIGKILL: nothing is released."""
        task, held = self._tasks[name], self.lock.record
        task.cancel()
        await asyncio.wait((task,))
        self.lock.record = held

    async def until(self, condition: Callable[[], object]) -> float:
        """How many seconds passed until it held."""
        begun = self.loop.time()
        async with asyncio.timeout(600):
            while not condition():  # noqa: ASYNC110 - in no time
                await asyncio.sleep(SOON)
        return self.loop.time() - begun

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())


def played(story: Callable[[World], Awaitable[None]]) -> None:
    """Play a story in virtual time, in a world of its own."""

    async def play() -> None:
        world = World()
        try:
            await story(world)
        finally:
            await world.end()

    in_virtual_time(play())
