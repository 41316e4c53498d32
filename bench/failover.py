"""How long agents take to another hub when theirs is gone, and what an agent with several hubs holds and uses.

    python -m bench failover [--agents 5] [--trials 10] [--silent 3]

Everything runs on one machine with default settings: two hubs on SQLite that approve by rule, hollow clusters, and real agents
that know both hubs. A trial kills the hub that all agents are with (SIGKILL), or makes the way to it silent in both
directions; the time of each agent runs from then to its first beat that the other hub has stored, which is when it
acknowledges it. Then the hub comes back, the agents stand by there, and the next trial does the same to the other one.
"""

import asyncio
import json
import os
import signal
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import click

from bench.stage import CLUSTERS, Stage, cpu_seconds, free_port, memory_mib, staged
from hollow.demo.processes import Child
from machinery.errors import MusterError
from tests.fakes.forwarder import Forwarder

LOOK = 0.005
REST_SECONDS = 60.0
SETTLE_SECONDS = 5.0
WITHIN = 120.0


@dataclass
class Place:
    """One hub: a stage of its own in the folder of all, and the way to it."""

    stage: Stage
    path: Forwarder

    async def start(self) -> None:
        await self.stage.start_hub("--auto-approve=*", f"--grpc-advertised=127.0.0.1:{self.path.port}")

    def beats(self) -> dict[str, int]:
        """The newest beat of each cluster, in microseconds since 1970."""
        with closing(sqlite3.connect(f"file:{self.stage.folder / 'hub' / 'hub.db'}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT cluster, at FROM heartbeats WHERE at IS NOT NULL"))


@dataclass
class Theatre:
    """Two hubs and their agents."""

    places: list[Place] = field(default_factory=list)
    agents: dict[str, Child] = field(default_factory=dict)
    owner: int = 0

    async def settled(self) -> None:
        """Returns when all agents are with the owner, and stand by at the other hub."""
        await asyncio.gather(
            self._all_say(self.places[self.owner], "ManagedClusterAvailable"),
            self._all_say(self.places[1 - self.owner], "ManagedClusterStandby", "ManagedClusterMoved"),
        )

    async def _all_say(self, place: Place, *reasons: str) -> None:
        async def all_do() -> bool:
            try:
                async with place.stage.client() as client:
                    return all([_reason(await client.get(f"{CLUSTERS}/{name}")) in reasons for name in self.agents])
            except (MusterError, OSError):
                return False

        await place.stage.until(all_do, f"every cluster is {' or '.join(reasons)}", within=WITHIN, every=0.2)

    async def arrivals(self, happens: Callable[[Place], Awaitable[None]]) -> list[float]:
        """Seconds until each agent's first beat at the other hub, after this has happened to the owner."""
        left, other = self.places[self.owner], self.places[1 - self.owner]
        began, clock = time.time(), time.monotonic()
        await happens(left)
        took: dict[str, float] = {}
        while len(took) < len(self.agents):
            for name, beat in other.beats().items():
                if name not in took and beat > began * 1e6:
                    took[name] = time.monotonic() - clock
            if time.monotonic() - clock > WITHIN:
                raise RuntimeError(f"no beat of {sorted(set(self.agents) - set(took))} within {WITHIN:.0f} s")
            await asyncio.sleep(LOOK)
        self.owner = 1 - self.owner
        return list(took.values())


def _reason(cluster: Mapping[str, Any]) -> str:
    conditions = cluster.get("status", {}).get("conditions", [])
    return next((each["reason"] for each in conditions if each["type"] == "ManagedClusterConditionAvailable"), "")


async def _built(stage: Stage, stack: AsyncExitStack, agents: int) -> Theatre:
    theatre = Theatre()
    for number in range(2):
        folder = stage.folder / f"place-{number}"
        folder.mkdir()
        own = Stage(folder, stage.children, free_port(), free_port())
        path = await stack.enter_async_context(Forwarder(own.grpc_port).serving())
        theatre.places.append(Place(own, path))
    await asyncio.gather(*(place.start() for place in theatre.places))
    for name in (f"edge-{number}" for number in range(agents)):
        kubeconfig = await theatre.places[0].stage.start_hollow(name)
        bootstraps = [await place.stage.bootstrap(name) for place in theatre.places]
        theatre.agents[name] = await stage.start(
            f"spoke-{name}",
            *("spoke", "run", f"--cluster-name={name}", f"--kubeconfig={kubeconfig}"),
            *(f"--bootstrap-kubeconfig={file}" for file in bootstraps),
        )
    await theatre.settled()
    return theatre


async def _kill(place: Place) -> None:
    hub = place.stage.hub
    if hub is None:
        raise AssertionError
    hub.send(signal.SIGKILL)


async def _revive(place: Place) -> None:
    if place.stage.hub is not None:
        await place.stage.hub.ended()
    await place.start()


async def _silence(place: Place) -> None:
    place.path.silence()


async def _speak(place: Place) -> None:
    place.path.resume()


Happening = Callable[[Place], Awaitable[None]]


async def _trials(theatre: Theatre, count: int, happens: Happening, ends: Happening) -> list[float]:
    took = []
    for number in range(count):
        left = theatre.places[theatre.owner]
        took += await theatre.arrivals(happens)
        await ends(left)
        await theatre.settled()
        click.echo(f"{number + 1:3d}: {max(took[-len(theatre.agents) :]):.2f} s at most", err=True)
    return took


async def _rest(theatre: Theatre) -> dict[str, float]:
    """Memory of an agent, and its processor time in thousandths of a core, while nothing happens."""
    await asyncio.sleep(SETTLE_SECONDS)
    before = {child.pid: cpu_seconds(child.pid) for child in theatre.agents.values()}
    await asyncio.sleep(REST_SECONDS)
    used = [(cpu_seconds(pid) - begun) / REST_SECONDS * 1000 for pid, begun in before.items()]
    return {
        "agent_pss_mib": round(max(memory_mib(child.pid)[0] for child in theatre.agents.values()), 1),
        "agent_cpu_at_rest_m": round(statistics.median(used), 1),
    }


def _summary(name: str, took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        f"{name}_failovers": len(ordered),
        f"{name}_p50_seconds": round(statistics.median(ordered), 2),
        f"{name}_p99_seconds": round(ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], 2),
    }


async def measure(agents: int, trials: int, silent: int) -> dict[str, float]:
    async with staged() as stage, AsyncExitStack() as stack:
        theatre = await _built(stage, stack, agents)
        found: dict[str, float] = {"cores": os.cpu_count() or 0, "load": round(os.getloadavg()[0], 1), **await _rest(theatre)}
        if trials:
            found |= _summary("crash", await _trials(theatre, trials, _kill, _revive))
        if silent:
            found |= _summary("silent_link", await _trials(theatre, silent, _silence, _speak))
        return found


@click.command()
@click.option("--agents", default=5, show_default=True)
@click.option("--trials", default=10, show_default=True, help="In which a hub is killed.")
@click.option("--silent", default=3, show_default=True, help="Trials in which the way to a hub falls silent.")
def failover(agents: int, trials: int, silent: int) -> None:
    """How long agents take to another hub; memory and processor time of an agent with two."""
    click.echo(json.dumps(asyncio.run(measure(agents, trials, silent)), indent=2))
