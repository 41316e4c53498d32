"""Several processes of one agent, of which one works, on one lock and one set of secrets; and how an agent leaves its hubs."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from machinery.election import Candidate, Timings
from machinery.errors import ForbiddenError, InvalidError, NotLeaderError
from machinery.identity import ClusterName
from machinery.runtime.clock import ManualClock
from spoke.agent.leader_election import ElectedAgent, OwnLock, TermFence, candidate_of, is_gone
from spoke.agent.loop import SpokeAgent
from spoke.agent.unregistration import LeftMark, ResidentAgent, mark_in
from spoke.bootstraps.listing import BootstrapFile, Bootstraps, BootstrapSecret
from spoke.cli.findings import DoctorStep
from spoke.cli.leave import Leave
from spoke.domain.credential import LEFT
from spoke.domain.next_step import SessionLoss
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions, AgentPorts
from spoke.ports.hub import HubLostError
from tests.checks import check_refusal_of, present
from tests.fakes.credentials import MemoryRemains, MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.memory_lock import MemoryLock, Way
from tests.fakes.stage import OWNER, Stage, is_available, until
from tests.fakes.virtual_time import LoopClock, VirtualLoop
from tests.trials import soaked, trials

ROLLS = trials(5, 50)
SECONDS = timedelta(seconds=15)


def held(world: AgentPorts, tenure: TermFence) -> AgentPorts:
    dial, secrets = tenure.dial(world.dial), tenure.secrets(world.secrets)
    return replace(world, dial=dial, secrets=secrets, addon_secrets=lambda addon: tenure.secrets(world.addon_secrets(addon)))


class Process:
    """One process of the agent, and its way to the lock."""

    def __init__(self, cast: "Cast", name: str) -> None:
        clock = LoopClock(asyncio.get_running_loop())
        self.way: Way = cast.lock.way()
        self.tenures: list[TermFence] = []
        progress = AgentProgress(clock)

        def make(tenure: TermFence) -> SpokeAgent:
            self.tenures.append(tenure)
            return SpokeAgent(cast.stage.options, held(cast.stage.world(), tenure), progress)

        self.agent = ElectedAgent(
            make,
            self.way,
            Candidate(name, f"{name}-{len(cast.processes)}"),
            timings=Timings(poll=timedelta(seconds=2)),
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
        return sum(isinstance(error, HubLostError) and error.loss is SessionLoss.SUPERSEDED for error in ended)


@pytest_asyncio.fixture(loop_scope="function")
async def cast(stage: Stage) -> AsyncIterator[Cast]:
    stage.hub.beat_interval, stage.options = timedelta(seconds=5), AgentOptions()
    made = Cast(stage)
    yield made
    for process in made.processes:
        await process.stop()


async def test_of_two_processes_one_works_and_a_hub_that_is_away_for_an_hour_restarts_neither(cast: Cast) -> None:
    one = cast.process("one")
    await cast.works(one)
    two = cast.process("two")
    await asyncio.sleep(3600)
    assert (len(cast.hub.sessions), len(cast.hub.issued)) == (1, 1)
    ready = two.agent.progress.ready()
    assert ready.ok, "a rolling update waits for this"
    assert "one holds the agent's Lease" in ready.text
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


async def test_released_lease_is_taken_over_within_half_a_second_and_a_killed_processs_after_its_duration(cast: Cast) -> None:
    one = cast.process("one")
    await cast.works(one)
    two = cast.process("two")
    await asyncio.sleep(7)
    before, stopping = cast.loop.time(), asyncio.create_task(one.stop())
    while cast.lock.record is None or cast.lock.record.holder:
        assert cast.hub.open_sessions or two.agent.leadership.term is None, "the session ends before the lock is let go of"
        await asyncio.sleep(0.001)
    assert not cast.hub.open_sessions
    cast.ring()
    assert await cast.works(two) - before < 0.5
    await stopping
    assert await cast.superseded() == 0
    three = cast.process("three")
    await asyncio.sleep(5)
    await two.kill()
    before = cast.loop.time()
    assert 10 < await cast.works(three) - before < 15 + 2 * 2 + 0.5, "a killed process is followed after its Lease"


@soaked(ROLLS)
async def test_rolling_updates_never_open_two_sessions_nor_leave_a_gap(cast: Cast) -> None:
    present = cast.process("pod-0")
    await cast.works(present)
    for number in range(1, ROLLS + 1):
        following = cast.process(f"pod-{number}")
        await until(lambda following=following: following.agent.progress.ready().ok, 5)  # type: ignore[misc]
        await asyncio.sleep(Random(number).uniform(0, 10))
        stopping = asyncio.create_task(present.stop())
        await until(lambda: not cast.hub.open_sessions)
        since = cast.loop.time()
        await stopping
        cast.ring()
        assert await cast.works(following) - since < 0.5
        present = following
    assert (await cast.superseded(), len(cast.hub.sessions)) == (0, ROLLS + 1)
    assert len(cast.hub.issued) == 1, "nobody registered anew"


async def test_api_server_that_is_away_costs_every_write_and_new_sessions_but_not_the_open_one(cast: Cast) -> None:
    one = cast.process("one")
    await cast.works(one)
    one.way.away = True
    await asyncio.sleep(9)
    one.tenures[-1].require_writing()
    await asyncio.sleep(3600)
    assert len(cast.hub.open_sessions) == 1
    mine = held(cast.stage.world(), one.tenures[-1])
    for write in (mine.secrets.write("any", {}, None), mine.secrets.delete("any")):
        await check_refusal_of(NotLeaderError, write)
    one.tenures[-1].require_dialling()  # a hub that drains is left for its next replica
    one.way.away = False
    await asyncio.sleep(3)
    one.tenures[-1].require_writing()
    assert len(cast.hub.sessions) == 1, "nobody noticed"
    one.way.away = True
    await asyncio.sleep(30)
    cast.hub.session.end(HubLostError("the hub is gone"))
    await asyncio.sleep(600)
    assert len(cast.hub.sessions) == 1, "no new session before the Lease is held"
    ready = one.agent.progress.ready()
    assert not ready.ok
    assert "the database does not answer" in ready.text, "the fault of the lock is reported"
    one.way.away = False
    await cast.works(one)
    assert len(cast.hub.sessions) == 2


async def test_who_was_cut_off_gives_way_to_the_process_that_took_over(cast: Cast) -> None:
    one = cast.process("one")
    await cast.works(one)
    two = cast.process("two")
    await asyncio.sleep(1)
    one.way.away = True
    await until(lambda: len(cast.hub.sessions) == 2, 30)
    await cast.works(two)
    for away in (True, False):
        one.way.away = away
        await asyncio.sleep(600)
        assert len(cast.hub.sessions) == 2, "the one that was ended did not come back for the place"
    assert len(cast.hub.open_sessions) == 1
    assert one.agent.progress.ready().ok


async def test_a_bootstrap_kubeconfig_that_cannot_be_used_ends_the_first_start_and_no_later_term(cast: Cast) -> None:
    good = cast.stage.file.read_bytes()
    cast.stage.file.write_bytes(b"not a kubeconfig")
    await check_refusal_of(InvalidError, asyncio.wait_for(cast.process("one").task, 60))
    assert cast.lock.record is not None
    assert not cast.lock.record.holder, "the lock is free for the next"
    cast.stage.file.write_bytes(good)
    await cast.works(cast.process("one"))


async def test_a_lease_that_another_took_ends_the_work_and_the_process_runs_for_it_again(cast: Cast) -> None:
    one = cast.process("one")
    await cast.works(one)
    other = cast.lock.way()
    taken = await other.take(cast.lock.record, Candidate("other", "other-1"), timedelta(seconds=15))
    await asyncio.sleep(3)
    assert not cast.hub.open_sessions
    assert not one.task.done()
    assert one.agent.progress.hubs_status.owner is None, "what it knew is the past's"
    await other.release(taken)
    cast.ring()
    await cast.works(one)


def test_each_process_has_an_incarnation_of_its_own_under_its_pods_name() -> None:
    one, two = (candidate_of({"POD_NAME": "spoke-7d9f-x2x4k"}) for _ in range(2))
    assert one.identity == two.identity == "spoke-7d9f-x2x4k"
    assert one.incarnation != two.incarnation
    one, two = (candidate_of({}) for _ in range(2))
    assert one.identity != two.identity, "two processes of one machine"


async def test_what_a_killed_process_of_this_machine_held_is_free_at_once() -> None:
    lock, pipe = MemoryLock(ManualClock()), asyncio.subprocess.PIPE
    code = "print(candidate_of({}).incarnation, flush=True)"
    program = f"import sys; from spoke.agent.leader_election import candidate_of; {code}; sys.stdin.read()"
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe)
    assert running.stdout is not None
    held = await lock.take(None, Candidate("it", (await running.stdout.readline()).decode().strip()), SECONDS)
    assert await OwnLock(lock).read() == held, "it lives"
    running.send_signal(signal.SIGKILL)
    await running.wait()
    free = present(await OwnLock(lock).read())
    assert (free.holder, (await OwnLock(lock).take(free, candidate_of({}), SECONDS)).term) == ("", 2)


def proc_of(folder: Path, *, stat: str | None) -> Path:
    """A /proc with this process in it, and with process 7 as `stat` has it; None: there is none."""
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("boot-1\n")
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to("pid:[1]")
    rest = " ".join("0" * 18)
    for number, text in ((os.getpid(), f"{os.getpid()} (python) R"), (7, stat)):
        if text is not None:
            (folder / str(number)).mkdir()
            (folder / str(number) / "stat").write_text(f"{text} {rest} 500 0")
    return folder


def test_process_is_gone_only_where_that_can_be_known(tmp_path: Path) -> None:
    lives, mine = "7 (spoke (x)) S", "process boot-1/pid:[1] 7 500 x"
    rows = [(mine, lives, False), (mine, None, True), (mine, "7 (spoke) Z", True)]
    rows += [("process boot-1/pid:[1] 7 499 x", lives, True)]
    processes = ("boot-0/pid:[1] 7", "boot-1/pid:[2] 7", "boot-1/pid:[1] seven")
    others = ("a uuid", "", *(f"process {each} 500 x" for each in processes))
    rows += [(other, None, False) for other in others]
    found = [is_gone(name, proc_of(tmp_path / str(at), stat=stat)) for at, (name, stat, _) in enumerate(rows)]
    assert found == [gone for _, _, gone in rows]
    assert not is_gone(candidate_of({}).incarnation, tmp_path), "without /proc nobody is known to be gone"
    assert not is_gone(candidate_of({}, tmp_path).incarnation)


async def test_missing_rights_are_reported_with_what_to_do() -> None:
    def refused(_call: str) -> None:
        raise ForbiddenError('leases.coordination.k8s.io "spoke-agent" is forbidden')

    way = MemoryLock(ManualClock()).way()
    way.before = refused
    with pytest.raises(ForbiddenError, match=r"is forbidden; .*upgrade the chart.*--leader-elect=false"):
        await OwnLock(way).read()


class Scene:
    """A resident agent on a stage, and one that leaves."""

    def __init__(self, stage: Stage) -> None:
        assert isinstance(stage.secrets, MemorySecrets)
        self.stage = stage
        self.secrets = stage.secrets
        self.remains = MemoryRemains(stage.secrets, stage.addon_secrets)
        self.lock = MemoryLock(stage.clock)
        self.leaving = Leave(
            secrets=stage.secrets,
            remains=self.remains,
            cluster=stage.cluster,
            bootstraps=self.bootstraps(),
            dial=lambda address, identity: stage.hub.dial(address, identity),  # noqa: PLW0108 - the hub may be exchanged
            clock=stage.clock,
            lock=self.lock,
            candidate=Candidate("leave", "leave-1"),
            directory=stage.directory,
            within=timedelta(seconds=2),
        )

    def bootstraps(self) -> Bootstraps:
        return Bootstraps([BootstrapSecret(self.secrets, "boot"), BootstrapFile(self.stage.file)])

    @asynccontextmanager
    async def resident(self, *, rejoin: bool = False) -> AsyncIterator[ResidentAgent]:
        progress = AgentProgress(self.stage.clock)

        def make() -> SpokeAgent:
            return SpokeAgent(self.stage.options, self.stage.world(), progress)

        agent = ResidentAgent(make, self.secrets, self.bootstraps, progress, rejoin=rejoin)
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def leave(self, *, force: bool = False) -> dict[str, DoctorStep]:
        return {step.name: step async for step in replace(self.leaving, force=force).steps()}


@pytest.fixture
def scene(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("spoke.agent.unregistration.POLL", timedelta(milliseconds=20))
    return Scene(stage)


async def joined(scene: Scene) -> None:
    await scene.stage.joins()
    await scene.stage.addon_secrets.write("work-hub-kubeconfig", {"tls.key": b"a key"}, None)


async def test_leaving_deletes_everything_but_the_mark_here_and_the_cluster_at_the_hub(scene: Scene) -> None:
    steps = await scene.leave()
    assert all(step.ok for step in steps.values()), "an agent that never joined can leave"
    assert scene.secrets.names == {OWNER}
    await scene.secrets.delete(OWNER)
    await joined(scene)
    await scene.lock.take(scene.lock.record, Candidate("pod-1", "pod-1-1"), timedelta(seconds=15))
    steps = await scene.leave()
    assert list(steps) == ["agent", "session"]
    assert (steps["session"].ok, "pod-1 still holds" in steps["session"].said) == (False, True), steps["session"]
    assert scene.stage.hub.clusters, "nothing is said to the hub while a process still works"
    scene.leaving = replace(scene.leaving, clock=LoopClock(asyncio.get_running_loop()), within=timedelta(minutes=1))
    await scene.lock.take(scene.lock.record, Candidate("pod-1", "pod-1-2"), timedelta(milliseconds=100))  # and it dies
    scene.stage.hub.away = True
    steps = await scene.leave()
    (reported,) = [step for name, step in steps.items() if name.startswith("hub ")]
    assert (reported.ok, "hubctl delete cluster" in reported.advice) == (False, True), reported
    assert scene.secrets.names == {OWNER, f"{OWNER}-0f1e2d3c"}, "the slot stays until the hub has the request"
    assert set((await scene.secrets.read(OWNER)).contents) == {LEFT}
    assert "work-hub-kubeconfig" in steps["add-ons"].said
    assert not scene.stage.addon_secrets.names
    assert not scene.stage.directory.contents
    assert scene.remains.lease_forgotten
    scene.stage.hub.away = False
    for _ in range(2):  # it can be called again
        steps = await scene.leave()
        assert all(step.ok for step in steps.values()), steps
        assert not scene.stage.hub.clusters
        assert (scene.secrets.names, set((await scene.secrets.read(OWNER)).contents)) == ({OWNER}, {LEFT})


async def test_a_running_agent_ends_its_session_first_and_does_not_register_anew(scene: Scene) -> None:
    async with scene.resident() as agent:
        await until(lambda: is_available(scene.stage))
        assert all(step.ok for step in (await scene.leave()).values())
        await until(lambda: not scene.stage.hub.open_sessions)
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        calls = len(scene.stage.hub.calls)
        await asyncio.sleep(0.1)  # time in which it would come back
        assert len(scene.stage.hub.calls) == calls
        assert agent.progress.live().ok
        assert agent.progress.hubs_status.owner is None
    async with scene.resident() as agent:
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        assert len(scene.stage.hub.calls) == calls, "nor after a restart"
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "departure/news"]


async def test_a_new_bootstrap_kubeconfig_brings_it_back_and_so_does_an_explicit_word(scene: Scene) -> None:
    await joined(scene)
    await scene.leave()
    async with scene.resident() as agent:
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        scene.stage.file.write_bytes(scene.stage.hub.bootstrap_kubeconfig())
        await until(lambda: scene.stage.hub.open_sessions)
    assert mark_in((await scene.secrets.read(OWNER)).contents) is None
    await scene.leave()
    async with scene.resident() as agent:
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        await scene.secrets.write("boot", {"kubeconfig": scene.stage.hub.bootstrap_kubeconfig()}, None)
        await until(lambda: scene.stage.hub.open_sessions)
    await scene.secrets.delete("boot")
    await scene.leave()
    async with scene.resident(rejoin=True):
        await until(lambda: scene.stage.hub.open_sessions)
    await scene.leave()
    async with scene.resident() as agent:
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        await scene.secrets.delete(OWNER)
        await until(lambda: scene.stage.hub.open_sessions)


async def registered(scene: Scene) -> tuple[str, str]:
    """The hub has no decision yet about the agent; its cluster and its request there."""
    hub = scene.stage.hub
    hub.approve = hub.accept = hub.away = hub.plain = False
    await scene.secrets.delete(OWNER)
    hub.requests.clear()
    hub.clusters.clear()
    async with scene.stage.running():
        await until(lambda: hub.requests and "request-name" in scene.secrets.contents(f"{OWNER}-0f1e2d3c"))
    return next(iter(hub.clusters)), next(iter(hub.requests))


async def left(scene: Scene, *, force: bool = False) -> DoctorStep:
    """What a leaving says of the hub."""
    return next(step for name, step in (await scene.leave(force=force)).items() if name.startswith("hub "))


async def test_hub_where_the_agent_only_registered_forgets_its_cluster_and_request_or_is_named(scene: Scene) -> None:
    hub, slot = scene.stage.hub, f"{OWNER}-0f1e2d3c"
    await registered(scene)
    assert (await left(scene)).ok
    assert (hub.clusters, hub.requests, scene.secrets.names) == ({}, {}, {OWNER})
    cluster, request = await registered(scene)
    commands = (f"hubctl delete cluster {cluster} ", f"kubectl delete csr {request}")
    hub.away = True
    for _ in range(2):
        outcome = await left(scene)
        assert (outcome.ok, [words for words in commands if words not in outcome.advice]) == (False, [])
        assert slot in scene.secrets.names, "a later call informs the hub"
    hub.away = False
    assert (await left(scene)).ok
    assert (hub.clusters, hub.requests, scene.secrets.names) == ({}, {}, {OWNER})
    await registered(scene)
    listed, scene.leaving = scene.leaving, replace(scene.leaving, bootstraps=Bootstraps([]))
    outcome = await left(scene)
    assert (outcome.ok, "not on the list" in outcome.said, slot in scene.secrets.names) == (False, True, True)
    assert ((await left(scene, force=True)).ok, scene.secrets.names) == (False, {OWNER})
    scene.leaving = listed
    cluster, _ = await registered(scene)
    hub.set_accepted(ClusterName(cluster), accepted=True)
    outcome = await left(scene)
    is_advised = f"hubctl delete cluster {cluster} " in outcome.advice
    assert (outcome.ok, is_advised, hub.requests, scene.secrets.names) == (False, True, {}, {OWNER})
    await registered(scene)
    hub.plain = True
    outcome = await left(scene)
    assert (outcome.ok, "kubectl delete csr" in outcome.advice, scene.secrets.names) == (False, True, {OWNER})


async def walked(leave: Leave) -> list[DoctorStep]:
    return [step async for step in leave.steps()]


async def test_agent_registers_anew_under_its_names_by_rejoin_and_keeps_its_hub(scene: Scene) -> None:
    async with scene.resident() as agent:
        await until(lambda: is_available(scene.stage))
        before = (await scene.secrets.read(OWNER)).contents
        held = await scene.lock.take(scene.lock.record, Candidate("pod-1", "pod-1-1"), timedelta(seconds=15))
        rejoining = asyncio.create_task(walked(replace(scene.leaving, rejoin=True)))
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        await scene.lock.release(held)  # as an elected agent does
        steps = await rejoining
        assert all(step.ok for step in steps), steps
        assert scene.stage.hub.clusters, "the cluster stays at its hub"
        await until(lambda: len(scene.stage.hub.sessions) == 2 and is_available(scene.stage))
        after = (await scene.secrets.read(OWNER)).contents
        assert after["tls.key"] != before["tls.key"]
        assert [after[name] for name in ("cluster-name", "agent-name")] == [
            before[name] for name in ("cluster-name", "agent-name")
        ]
        assert agent.progress.ready().ok


async def test_hub_is_not_waited_for_by_force_or_where_it_does_not_know_the_call(scene: Scene) -> None:
    await joined(scene)
    scene.stage.hub.away = True
    steps = await scene.leave(force=True)
    assert any("hubctl delete cluster" in step.advice for step in steps.values())
    assert scene.secrets.names == {OWNER}
    await scene.secrets.delete(OWNER)
    scene.stage.hub.away, scene.stage.hub.plain = False, True
    scene.stage.file.write_bytes(scene.stage.hub.bootstrap_kubeconfig())
    await scene.stage.joins()
    steps = await scene.leave()
    (reported,) = [step for name, step in steps.items() if name.startswith("hub ")]
    assert (reported.ok, "it cannot be notified" in reported.said) == (False, True), reported
    assert scene.secrets.names == {OWNER}, "another call would not do better"


def test_a_mark_tells_new_bootstrap_credentials_from_known_ones() -> None:
    mark = LeftMark("2026-01-01T00:00:00Z", frozenset({"a", "b"}))
    assert mark_in({LEFT: mark.content()}) == mark
    assert mark.covers({"a"})
    assert mark.covers(())
    assert not mark.covers({"a", "c"})
    assert (mark_in({LEFT: b"nonsense"}), mark_in({})) == (LeftMark("", frozenset()), None)
