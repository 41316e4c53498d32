"""Several processes of one agent: one works, the others stand by; in the loop's time, on one lock and one set of secrets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from machinery.clock import ManualClock
from machinery.election import Candidate, Timings
from machinery.errors import InvalidError, NotLeaderError
from spoke.agent import SpokeAgent
from spoke.elected import ElectedAgent, Tenure
from spoke.options import Options, World
from spoke.ports import HubLostError, Loss
from spoke.progress import Progress
from tests.fakes.hub import MemoryHub
from tests.fakes.memory_lock import MemoryLock, Way
from tests.fakes.stage import Stage, until
from tests.fakes.virtual_time import LoopClock, VirtualLoop, in_virtual_time
from tests.trials import soaked, trials

TIMINGS = Timings(poll=timedelta(seconds=2))
ROLLS = trials(5, 50)


def held(world: World, tenure: Tenure) -> World:
    dial, secrets = tenure.dial(world.dial), tenure.secrets(world.secrets)
    return replace(world, dial=dial, secrets=secrets, addon_secrets=lambda addon: tenure.secrets(world.addon_secrets(addon)))


class Process:
    """One process of the agent, and its way to the lock."""

    def __init__(self, cast: "Cast", name: str) -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        self.way: Way = cast.lock.way()
        self.tenures: list[Tenure] = []
        progress = Progress(clock)

        def make(tenure: Tenure) -> SpokeAgent:
            self.tenures.append(tenure)
            return SpokeAgent(cast.stage.options, held(cast.stage.world(), tenure), progress)

        self.agent = ElectedAgent(
            make,
            self.way,
            Candidate(name, f"{name}-{len(cast.processes)}"),
            timings=TIMINGS,
            clock=clock,
            progress=progress,
            watching=cast.watching,
        )
        self.task = asyncio.create_task(self.agent.run(), name=name)

    async def stop(self) -> None:
        """As after SIGTERM."""
        self.task.cancel()
        await asyncio.wait([self.task])

    async def kill(self) -> None:
        """As SIGKILL: nothing is released, and the hub's side of the session is gone."""
        self.way.swallows = True
        self.task.cancel()
        await asyncio.wait([self.task])


class Cast:
    """Processes on one lock, beside the stage of one agent."""

    def __init__(self, stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.stage = stage
        self.lock = MemoryLock(LoopClock(loop))
        self.processes: list[Process] = []
        self._bells: set[Callable[[], object]] = set()

    @property
    def hub(self) -> MemoryHub:
        return self.stage.hub

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        return process

    @asynccontextmanager
    async def watching(self, released: Callable[[], object]) -> AsyncIterator[None]:
        self._bells.add(released)
        try:
            yield
        finally:
            self._bells.discard(released)

    def ring(self) -> None:
        for bell in tuple(self._bells):
            bell()

    async def works(self, process: Process, within: float = 60) -> float:
        """When `process` had a session that carried a beat."""
        progress = process.agent.progress
        await until(lambda: self.hub.open_sessions and progress.has_session and self.hub.session.beats, within)
        return self.loop.time()

    async def superseded(self) -> int:
        """How many sessions were ended by a newer one: two were open at once."""
        ended = [await session.ended() for session in self.hub.sessions if session.over]
        return sum(isinstance(error, HubLostError) and error.loss is Loss.SUPERSEDED for error in ended)


def is_ready(process: Process) -> bool:
    return process.agent.progress.ready().ok


def played(tmp_path: Path, play: Callable[[Cast], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        hub = MemoryHub(clock)
        hub.beat_interval = timedelta(seconds=5)
        file = tmp_path / "bootstrap.kubeconfig"
        file.write_bytes(hub.bootstrap_kubeconfig())
        cast = Cast(Stage(hub, clock, file, options=Options()))
        try:
            await play(cast)
        finally:
            for process in cast.processes:
                await process.stop()

    in_virtual_time(run())


def test_of_two_processes_one_works_and_the_other_is_ready_to(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        two = cast.process("two")
        await asyncio.sleep(3600)
        assert len(cast.hub.sessions) == 1
        assert len(cast.hub.issued) == 1
        ready = two.agent.progress.ready()
        assert ready.ok, "a rolling update waits for this"
        assert "one holds the agent's Lease" in ready.text
        assert two.agent.progress.live().ok

    played(tmp_path, play)


def test_a_released_lease_is_taken_over_within_half_a_second_and_never_twice_at_once(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        two = cast.process("two")
        await asyncio.sleep(7)
        before = cast.loop.time()
        stopping = asyncio.create_task(one.stop())
        while cast.lock.record is None or cast.lock.record.holder:
            assert cast.hub.open_sessions or two.agent.leadership.term is None, "the session ends before the lock is let go of"
            await asyncio.sleep(0.001)
        assert not cast.hub.open_sessions
        cast.ring()
        assert await cast.works(two) - before < 0.5
        await stopping
        assert await cast.superseded() == 0

    played(tmp_path, play)


@soaked(ROLLS)
def test_rolling_updates_never_open_two_sessions_nor_leave_a_gap(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        present = cast.process("pod-0")
        await cast.works(present)
        for number in range(1, ROLLS + 1):
            following = cast.process(f"pod-{number}")
            await until(partial(is_ready, following), 5)
            await asyncio.sleep(Random(number).uniform(0, 10))
            stopping = asyncio.create_task(present.stop())
            await until(lambda: not cast.hub.open_sessions)
            since = cast.loop.time()
            await stopping
            cast.ring()
            assert await cast.works(following) - since < 0.5
            present = following
        assert await cast.superseded() == 0
        assert len(cast.hub.sessions) == ROLLS + 1
        assert len(cast.hub.issued) == 1, "nobody registered anew"

    played(tmp_path, play)


def test_a_hub_that_is_away_for_an_hour_has_no_prober_restart_an_agent(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        two = cast.process("two")
        cast.hub.away = True
        cast.hub.session.end(HubLostError("the hub is gone"))
        since = cast.loop.time()
        while cast.loop.time() < since + 3600:
            await asyncio.sleep(10)  # as the chart's liveness probe
            assert one.agent.progress.live().ok
            assert two.agent.progress.live().ok
        assert not one.agent.progress.ready().ok
        assert len(one.tenures) == 1, "its Lease is no business of the hub's"
        cast.hub.away = False
        assert await cast.works(one, within=60) > since + 3600

    played(tmp_path, play)


def test_a_killed_process_is_followed_after_its_lease(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        two = cast.process("two")
        await asyncio.sleep(5)
        await one.kill()
        before = cast.loop.time()
        assert 10 < await cast.works(two) - before < 15 + 2 * 2 + 0.5

    played(tmp_path, play)


def test_its_own_api_server_being_away_does_not_cost_the_session_but_every_write(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        one.way.away = True
        await asyncio.sleep(9)
        one.tenures[-1].require_writing()
        await asyncio.sleep(3600)
        assert len(cast.hub.open_sessions) == 1
        mine = held(cast.stage.world(), one.tenures[-1])
        for write in (mine.secrets.write("any", {}, None), mine.secrets.delete("any")):
            with pytest.raises(NotLeaderError):
                await write
        one.tenures[-1].require_dialling()  # a hub that drains is left for its next replica
        one.way.away = False
        await asyncio.sleep(3)
        one.tenures[-1].require_writing()
        assert len(cast.hub.sessions) == 1, "nobody noticed"

    played(tmp_path, play)


def test_a_session_that_is_lost_while_the_api_server_is_away_is_not_opened_anew_before_the_lease_is_held(
    tmp_path: Path,
) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        one.way.away = True
        await asyncio.sleep(30)
        cast.hub.session.end(HubLostError("the hub is gone"))
        await asyncio.sleep(600)
        assert len(cast.hub.sessions) == 1
        ready = one.agent.progress.ready()
        assert not ready.ok
        assert "the database does not answer" in ready.text, "what is wrong with the lock is told"
        one.way.away = False
        await cast.works(one)
        assert len(cast.hub.sessions) == 2

    played(tmp_path, play)


def test_who_was_cut_off_gives_way_to_the_process_that_took_over(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        two = cast.process("two")
        await asyncio.sleep(1)
        one.way.away = True
        await until(lambda: len(cast.hub.sessions) == 2, 30)
        await cast.works(two)
        await asyncio.sleep(600)
        assert len(cast.hub.sessions) == 2, "the one that was ended did not come back for the place"
        assert len(cast.hub.open_sessions) == 1
        one.way.away = False
        await asyncio.sleep(60)
        assert one.agent.progress.ready().ok
        assert len(cast.hub.sessions) == 2

    played(tmp_path, play)


def test_a_bootstrap_kubeconfig_that_cannot_be_used_ends_the_first_start_and_no_later_term(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        good = cast.stage.file.read_bytes()
        cast.stage.file.write_bytes(b"not a kubeconfig")
        first = cast.process("one")
        with pytest.raises(InvalidError):
            await asyncio.wait_for(first.task, 60)
        assert cast.lock.record is not None
        assert not cast.lock.record.holder, "the lock is free for the next"
        cast.stage.file.write_bytes(good)
        again = cast.process("one")
        await cast.works(again)

    played(tmp_path, play)


def test_a_lease_that_another_took_ends_the_work_and_the_process_runs_for_it_again(tmp_path: Path) -> None:
    async def play(cast: Cast) -> None:
        one = cast.process("one")
        await cast.works(one)
        other = cast.lock.way()
        taken = await other.take(cast.lock.record, Candidate("other", "other-1"), timedelta(seconds=15))
        await asyncio.sleep(3)
        assert not cast.hub.open_sessions
        assert not one.task.done()
        assert one.agent.progress.standing.owner is None, "what it knew is the past's"
        await other.release(taken)
        cast.ring()
        await cast.works(one)

    played(tmp_path, play)
