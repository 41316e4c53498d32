"""Several hubs in memory, and copies of one agent that share its secrets."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random

from machinery.clock import Clock
from machinery.identity import HubId
from spoke.agent import SpokeAgent
from spoke.bootstraps import BootstrapFile, Bootstraps
from spoke.options import Options, World
from spoke.ports import ClientIdentity, HubAddress, HubClient, HubLostError, Secrets
from tests.fakes.cluster import MemoryCluster
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.lagging import Gate, LaggingClient, LaggingSecrets
from tests.fakes.timetable import LoopTimetable

CLUSTER = "edge"


def hub_ids(count: int) -> list[HubId]:
    return [HubId(f"{number}0000000-0000-4000-8000-000000000001") for number in range(1, count + 1)]


@dataclass
class SeveralHubs:
    """Hubs in the order in which agents prefer them; agents find each by its CA."""

    clock: Clock
    folder: Path
    count: int = 2
    secrets: Secrets = field(default_factory=MemorySecrets)
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    hubs: list[MemoryHub] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, hub_id in enumerate(hub_ids(self.count)):
            hub = MemoryHub(self.clock, hub_id=hub_id)
            hub.beat_interval = timedelta(seconds=1)
            (self.folder / f"hub-{number}.kubeconfig").write_bytes(hub.bootstrap_kubeconfig())
            self.hubs.append(hub)

    def by_ca(self, address: HubAddress) -> MemoryHub:
        return next(hub for hub in self.hubs if hub.authority.certificate == address.ca)

    def agent(self, random: Random, gate: Gate | None = None, options: Options | None = None) -> SpokeAgent:
        """A copy of the agent; with a gate it may be made to stand still."""

        def dial(address: HubAddress, identity: ClientIdentity) -> HubClient:
            hub = self.by_ca(address)
            if gate is None:
                return hub.dial(address, identity)
            return LaggingClient(hub, identity, gate)

        secrets = self.secrets if gate is None else LaggingSecrets(self.secrets, gate)
        files = [BootstrapFile(self.folder / f"hub-{number}.kubeconfig") for number in range(self.count)]
        world = World(
            bootstrap=Bootstraps(files),
            dial=dial,
            spoke=self.cluster,
            management=self.cluster,
            secrets=secrets,
            addon_secrets=lambda _: MemorySecrets(),
            directory=None,
            clock=self.clock,
            timetable=LoopTimetable(self.clock),
            random=random,
        )
        return SpokeAgent(options or Options(cluster_name=CLUSTER), world)

    def go(self, hub: MemoryHub) -> None:
        """The hub is away, and so are its sessions."""
        hub.away = True
        for session in hub.open_sessions:
            session.end(HubLostError("connection reset by peer"))

    def come(self, hub: MemoryHub) -> None:
        hub.away = hub.silent = False

    def accepted(self) -> Mapping[HubId, Sequence[int]]:
        """The epochs of all writes that each hub took, in their order."""
        return {hub.hub_id: [epoch for _, epoch in hub.accepted_writes] for hub in self.hubs}

    @property
    def owner(self) -> MemoryHub | None:
        """The hub that has a session which beats."""
        return next((hub for hub in self.hubs if any(session.beats for session in hub.open_sessions)), None)


async def sleep(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())
