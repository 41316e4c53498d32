"""Fail-over of agents to another hub, and memory and processor time of an agent with two hubs.

    python -m bench failover [--agents 5] [--trials 10] [--silent 8]

Everything runs on one machine with default settings: two hubs on SQLite that approve by rule, hollow clusters, and real agents
with both hubs in their list. A trial kills the owner of all agents (SIGKILL), or drops all packets between the owner and the
agents. The time of an agent runs from this fault to its first beat that the other hub has stored and acknowledged. Then the
first hub returns, the agents get standby registrations there, and the next trial does the same with the other hub.
"""

import asyncio
import os
import signal
import sqlite3
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import Annotated, Any

import click

from bench.stage import CLUSTERS, Stage, cpu_seconds, free_port, memory_mib, staged
from hollow.demo.processes import Child
from machinery.errors import MusterError
from tests.fakes.forwarder import Forwarder

POLL_SECONDS = 0.005
REST_SECONDS = 60.0
SETTLE_SECONDS = 5.0
PERIOD_SECONDS = 10.0
"""Longest interval between two heartbeats of an agent. The faults of a row of trials are spread over this interval, because an
agent detects a silent hub only at its next heartbeat."""
WITHIN = 120.0


@dataclass
class Hub:
    """One hub on its own stage, behind a forwarder that can drop all packets."""

    stage: Stage
    path: Forwarder

    async def start(self) -> None:
        await self.stage.start_hub("--auto-approve=*", f"--grpc-advertised=127.0.0.1:{self.path.port}")

    async def restart(self) -> None:
        if self.stage.hub is not None:
            await self.stage.hub.ended()
        await self.start()

    def kill(self) -> None:
        if self.stage.hub is not None:
            self.stage.hub.send(signal.SIGKILL)

    def beats(self) -> dict[str, int]:
        """Return the newest beat of each cluster, in microseconds since 1970."""
        with closing(sqlite3.connect(f"file:{self.stage.folder / 'hub' / 'hub.db'}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT cluster, at FROM heartbeats WHERE at IS NOT NULL"))


@dataclass
class TwoHubs:
    """The hubs and their agents. `owner`: index of the hub that owns all agents."""

    hubs: list[Hub] = field(default_factory=list)
    agents: dict[str, Child] = field(default_factory=dict)
    owner: int = 0

    async def settled(self) -> None:
        """Wait until all clusters are Available at the owner, and have standby registrations at the other hub."""
        await asyncio.gather(
            self._until_all(self.hubs[self.owner], "ManagedClusterAvailable"),
            self._until_all(self.hubs[1 - self.owner], "ManagedClusterStandby", "ManagedClusterMoved"),
        )

    async def _until_all(self, hub: Hub, *reasons: str) -> None:
        async def all_have() -> bool:
            try:
                async with hub.stage.client() as client:
                    return all([_reason(await client.get(f"{CLUSTERS}/{name}")) in reasons for name in self.agents])
            except (MusterError, OSError):
                return False

        await hub.stage.until(all_have, f"every cluster is {' or '.join(reasons)}", within=WITHIN, every=0.2)

    async def arrivals(self, fault: Callable[[Hub], None]) -> list[float]:
        """Cause the fault at the owner. Return the seconds until each agent's first beat at the other hub."""
        left, other = self.hubs[self.owner], self.hubs[1 - self.owner]
        began, clock = time.time(), time.monotonic()
        fault(left)
        took: dict[str, float] = {}
        while len(took) < len(self.agents):
            for name, beat in other.beats().items():
                if name not in took and beat > began * 1e6:
                    took[name] = time.monotonic() - clock
            if time.monotonic() - clock > WITHIN:
                raise RuntimeError(f"no beat of {sorted(set(self.agents) - set(took))} within {WITHIN:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        self.owner = 1 - self.owner
        return list(took.values())


def _reason(cluster: Mapping[str, Any]) -> str:
    conditions = cluster.get("status", {}).get("conditions", [])
    return next((each["reason"] for each in conditions if each["type"] == "ManagedClusterConditionAvailable"), "")


async def _built(stage: Stage, stack: AsyncExitStack, agents: int) -> TwoHubs:
    pair = TwoHubs()
    for number in range(2):
        folder = stage.folder / f"hub-{number}"
        folder.mkdir()
        own = Stage(folder, stage.children, free_port(), free_port())
        path = await stack.enter_async_context(Forwarder(own.grpc_port).serving())
        pair.hubs.append(Hub(own, path))
    await asyncio.gather(*(hub.start() for hub in pair.hubs))
    for name in (f"edge-{number}" for number in range(agents)):
        kubeconfig = await pair.hubs[0].stage.start_hollow(name)
        bootstraps = [await hub.stage.bootstrap(name) for hub in pair.hubs]
        pair.agents[name] = await stage.start(
            f"spoke-{name}",
            *("spoke", "run", f"--cluster-name={name}", f"--kubeconfig={kubeconfig}"),
            *(f"--bootstrap-kubeconfig={file}" for file in bootstraps),
        )
    await pair.settled()
    return pair


async def _trials(pair: TwoHubs, count: int, *, crash: bool) -> list[float]:
    took = []
    for number in range(count):
        left = pair.hubs[pair.owner]
        await asyncio.sleep(PERIOD_SECONDS * number / count)
        took += await pair.arrivals(Hub.kill if crash else lambda hub: hub.path.silence())
        if crash:
            await left.restart()
        else:
            left.path.resume()
        await pair.settled()
        click.echo(f"{number + 1:3d}: {max(took[-len(pair.agents) :]):.2f} s at most", err=True)
    return took


async def _rest(pair: TwoHubs) -> dict[str, float]:
    await asyncio.sleep(SETTLE_SECONDS)
    before = {child.pid: cpu_seconds(child.pid) for child in pair.agents.values()}
    await asyncio.sleep(REST_SECONDS)
    used = [(cpu_seconds(pid) - begun) / REST_SECONDS * 1000 for pid, begun in before.items()]
    return {
        "agent_pss_mib": round(max(memory_mib(child.pid)[0] for child in pair.agents.values()), 1),
        "agent_cpu_at_rest_m": round(statistics.median(used), 1),
    }


def _summary(name: str, took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        f"{name}_failovers": len(ordered),
        f"{name}_p50_seconds": round(statistics.median(ordered), 2),
        f"{name}_p99_seconds": round(ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], 2),
    }


async def failover(
    agents: int = 5,
    trials: Annotated[int, "Trials that kill a hub."] = 10,
    silent: Annotated[int, "Trials that drop all packets."] = 8,
) -> dict[str, float]:
    """Fail-over of agents to another hub; memory and processor time of an agent with two hubs."""
    async with staged() as stage, AsyncExitStack() as stack:
        pair = await _built(stage, stack, agents)
        found: dict[str, float] = {"cores": os.cpu_count() or 0, "load": round(os.getloadavg()[0], 1), **await _rest(pair)}
        if trials:
            found |= _summary("crash", await _trials(pair, trials, crash=True))
        if silent:
            found |= _summary("silent_link", await _trials(pair, silent, crash=False))
        return found
