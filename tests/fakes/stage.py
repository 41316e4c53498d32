"""An agent among fakes: everything around it can be set, and it runs as long as a block."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from machinery.meta.conditions import AVAILABLE, TRUE
from machinery.runtime.clock import Clock, ManualClock
from spoke.agent.loop import SpokeAgent
from spoke.bootstraps.listing import BootstrapFile, Bootstraps
from spoke.domain.credential import PENDING_KEY, PENDING_REQUEST, REQUEST_NAME
from spoke.domain.report import NodeResources
from spoke.options import AgentOptions, AgentPorts, Pause, Pauses
from spoke.ports.cluster import Attest, Secrets
from tests.fakes.credentials import MemoryCluster, MemoryDirectory, MemorySecrets
from tests.fakes.hub import MemoryHub, MemorySession
from tests.fakes.virtual_time import LoopScheduler, ManualScheduler

OWNER = "hub-kubeconfig-secret"
SLOT = "hub-kubeconfig-secret-0f1e2d3c"
AT_ONCE = Pause(timedelta(milliseconds=1), timedelta(milliseconds=5))
NODE = NodeResources("a", {"cpu": "4"}, {"cpu": "3"}, schedulable=True)


def world_of(clock: Clock, secrets: Secrets, **others: Any) -> AgentPorts:
    """Of an agent without a bootstrap kubeconfig, whose cluster in memory manages itself; `others` are fields of a world."""
    cluster = others.pop("managed_cluster", None) or MemoryCluster()
    usual = {"bootstrap": Bootstraps([]), "managed_cluster": cluster, "management": cluster, "addon_secrets": lambda _: secrets}
    usual |= {"directory": None, "scheduler": LoopScheduler(clock), "random": Random(1)}
    return AgentPorts(clock=clock, secrets=secrets, **{**usual, **others})


@dataclass
class Stage:
    """Everything around one agent, and the agent itself while it runs."""

    hub: MemoryHub
    clock: ManualClock
    file: Path
    secrets: Secrets = field(default_factory=MemorySecrets)
    cluster: MemoryCluster = field(default_factory=lambda: MemoryCluster(nodes=[NODE]))
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    addon_secrets: MemorySecrets = field(default_factory=MemorySecrets)
    scheduler: ManualScheduler = field(default_factory=ManualScheduler)
    attest: Attest | None = None
    options: AgentOptions = field(default_factory=lambda: AgentOptions(pauses=Pauses(AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE)))

    def world(self) -> AgentPorts:
        return world_of(
            self.clock,
            self.secrets,
            bootstrap=Bootstraps([BootstrapFile(self.file, self.options.reach)]),
            dial=lambda address, identity: self.hub.dial(address, identity),  # noqa: PLW0108 - the hub may be exchanged
            managed_cluster=self.cluster,
            addon_secrets=lambda _: self.addon_secrets,
            directory=self.directory,
            scheduler=self.scheduler,
            attest=self.attest,
        )

    def agent(self) -> SpokeAgent:
        return SpokeAgent(self.options, self.world())

    def running(self) -> AbstractAsyncContextManager[SpokeAgent]:
        """The agent runs for the length of the block; its error, if it ends by itself, is raised."""
        return running(self.agent())

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[SpokeAgent]:
        """The same, from when it has a new session that reported the cluster as available."""
        before = len(self.hub.sessions)
        async with self.running() as agent:
            await until(lambda: len(self.hub.sessions) > before and is_available(self))
            yield agent

    async def joins(self) -> None:
        """The agent runs until it is at work."""
        async with self.at_work():
            pass

    def replace_bootstrap(self, text: bytes) -> None:
        self.file.write_bytes(text)
        self.scheduler.wake("bootstrap-kubeconfig")


def availability(session: MemorySession) -> str | None:
    """As it was reported last; a beat with the same verdict comes sooner or later than that."""
    return {entry.type: entry.status for report in session.reports[-1:] for entry in report.conditions}.get(AVAILABLE)


def is_available(stage: Stage) -> bool:
    """The newest session has reported the cluster as available, and has carried a beat."""
    if not stage.hub.sessions or stage.hub.session.over:
        return False
    return availability(stage.hub.session) == TRUE and bool(stage.hub.session.beats)


async def nothing_pends(secrets: Secrets, slot: str = SLOT) -> bool:
    """No request is kept in the slot."""
    return not {PENDING_KEY, PENDING_REQUEST, REQUEST_NAME} & set((await secrets.read(slot)).contents)


async def until(holds: Callable[[], object], within: float = 10) -> None:
    """Waits for a condition. Raises TimeoutError."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - any condition, without an Event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(agent: SpokeAgent) -> AsyncIterator[SpokeAgent]:
    """Its error, if it ends by itself, is raised."""
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait([task])
