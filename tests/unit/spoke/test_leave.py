"""Leaving the hubs: in order, again, with a hub that is away, and with an agent that runs, or comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from machinery.election import Candidate
from machinery.identity import ClusterName
from spoke.agent.loop import SpokeAgent
from spoke.agent.unregistration import LeftMark, ResidentAgent, mark_in
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.cli.findings import DoctorStep
from spoke.cli.leave import Ground, Leave
from spoke.domain.credential import LEFT
from spoke.observability.progress import AgentProgress
from tests.fakes.credentials import MemoryRemains, MemorySecrets
from tests.fakes.memory_lock import MemoryLock
from tests.fakes.stage import OWNER, Stage, is_available, until


class Scene:
    """A resident agent on a stage, and whoever leaves."""

    def __init__(self, stage: Stage) -> None:
        assert isinstance(stage.secrets, MemorySecrets)
        self.stage = stage
        self.secrets = stage.secrets
        self.remains = MemoryRemains(stage.secrets, stage.addon_secrets)
        self.lock = MemoryLock(stage.clock)
        self.ground = Ground(
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
        return Bootstraps([BootstrapFile(self.stage.file)])

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
        return {step.name: step async for step in Leave(replace(self.ground, force=force)).steps()}


@pytest.fixture
def scene(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("spoke.agent.unregistration.LOOK", timedelta(milliseconds=20))
    return Scene(stage)


async def joined(scene: Scene) -> None:
    async with scene.stage.running():
        await until(lambda: is_available(scene.stage))
    await scene.stage.addon_secrets.write("work-hub-kubeconfig", {"tls.key": b"a key"}, None)


async def test_leaving_deletes_everything_but_the_mark_here_and_the_cluster_at_the_hub(scene: Scene) -> None:
    steps = await scene.leave()
    assert all(step.ok for step in steps.values()), "an agent that never joined can leave"
    assert scene.secrets.names == {OWNER}
    await scene.secrets.delete(OWNER)
    await joined(scene)
    held = await scene.lock.take(scene.lock.record, Candidate("pod-1", "pod-1-1"), timedelta(seconds=15))
    steps = await scene.leave()
    assert list(steps) == ["agent", "session"]
    assert not steps["session"].ok
    assert "pod-1 still holds" in steps["session"].said
    assert scene.stage.hub.clusters, "nothing is said to the hub while a process still works"
    await scene.lock.release(held)
    scene.stage.hub.away = True
    steps = await scene.leave()
    (told,) = [step for name, step in steps.items() if name.startswith("hub ")]
    assert not told.ok
    assert "hubctl delete cluster" in told.advice
    assert scene.secrets.names == {OWNER, f"{OWNER}-0f1e2d3c"}, "the slot stays until the hub was told"
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
        assert scene.secrets.names == {OWNER}
        assert set((await scene.secrets.read(OWNER)).contents) == {LEFT}


async def test_a_running_agent_ends_its_session_first_and_does_not_register_anew(scene: Scene) -> None:
    async with scene.resident() as agent:
        await until(lambda: is_available(scene.stage))
        steps = await scene.leave()
        assert all(step.ok for step in steps.values())
        await until(lambda: not scene.stage.hub.open_sessions)
        await until(lambda: "has left its hubs" in agent.progress.ready().text)
        calls = len(scene.stage.hub.calls)
        await asyncio.sleep(0.1)  # time in which it would come back
        assert len(scene.stage.hub.calls) == calls
        assert agent.progress.live().ok
        assert agent.progress.standing.owner is None
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
    steps = await scene.leave(force=force)
    return next(step for name, step in steps.items() if name.startswith("hub "))


async def test_hub_where_the_agent_only_registered_forgets_its_cluster_and_request_or_is_named(scene: Scene) -> None:
    hub, slot = scene.stage.hub, f"{OWNER}-0f1e2d3c"
    await registered(scene)
    assert (await left(scene)).ok
    assert (hub.clusters, hub.requests, scene.secrets.names) == ({}, {}, {OWNER})
    cluster, request = await registered(scene)
    commands = (f"hubctl delete cluster {cluster} ", f"kubectl delete csr {request}")
    hub.away = True
    for _ in range(2):
        told = await left(scene)
        assert (told.ok, [words for words in commands if words not in told.advice]) == (False, [])
        assert slot in scene.secrets.names, "the hub is told by a later call"
    hub.away = False
    assert (await left(scene)).ok
    assert (hub.clusters, hub.requests, scene.secrets.names) == ({}, {}, {OWNER})
    await registered(scene)
    listed, scene.ground = scene.ground, replace(scene.ground, bootstraps=Bootstraps([]))
    told = await left(scene)
    assert (told.ok, "not on the list" in told.said, slot in scene.secrets.names) == (False, True, True)
    assert not (await left(scene, force=True)).ok
    assert scene.secrets.names == {OWNER}
    scene.ground = listed
    cluster, _ = await registered(scene)
    hub.set_accepted(ClusterName(cluster), accepted=True)
    told = await left(scene)
    assert (told.ok, f"hubctl delete cluster {cluster} " in told.advice, hub.requests, scene.secrets.names) == (
        False,
        True,
        {},
        {OWNER},
    )
    await registered(scene)
    hub.plain = True
    told = await left(scene)
    assert (told.ok, "kubectl delete csr" in told.advice, scene.secrets.names) == (False, True, {OWNER})


async def walked(leave: Leave) -> list[DoctorStep]:
    return [step async for step in leave.steps()]


async def test_agent_registers_anew_under_its_names_by_rejoin_and_keeps_its_hub(scene: Scene) -> None:
    async with scene.resident() as agent:
        await until(lambda: is_available(scene.stage))
        before = (await scene.secrets.read(OWNER)).contents
        held = await scene.lock.take(scene.lock.record, Candidate("pod-1", "pod-1-1"), timedelta(seconds=15))
        rejoining = asyncio.create_task(walked(Leave(replace(scene.ground, rejoin=True))))
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
    (told,) = [step for name, step in steps.items() if name.startswith("hub ")]
    assert not told.ok
    assert "it cannot be told" in told.said
    assert scene.secrets.names == {OWNER}, "another call would not do better"


def test_a_mark_tells_new_bootstrap_credentials_from_known_ones() -> None:
    mark = LeftMark("2026-01-01T00:00:00Z", frozenset({"a", "b"}))
    assert mark_in({LEFT: mark.content()}) == mark
    assert mark.stands({"a"})
    assert mark.stands(())
    assert not mark.stands({"a", "c"})
    assert mark_in({LEFT: b"nonsense"}) == LeftMark("", frozenset())
    assert mark_in({}) is None
