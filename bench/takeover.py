"""How long nobody leads, by cause: replicas of a hub as processes on a PostgreSQL of their own, with the default timings.

The clock runs from the signal to the commit of the next term, as another session of the database sees it; the CPU figure is a
follower's own, for looking whether the lock was released.
"""

import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import click

from bench.stage import Stage, cpu_seconds, free_port, staged
from hollow.demo.processes import Child
from hub.api.certificates import Lifetimes
from hub.ports import Leaders
from hub.replica.keys import create_keys
from hub.store.writer.leader_lock_connection import SqlLifeline
from machinery.client.kubeconfig_documents import read_document
from machinery.client.rest import KubeClient
from machinery.election import KUBERNETES
from machinery.runtime.clock import SystemClock

if TYPE_CHECKING:
    from tests.fakes.postgres_path import Way

REPLICAS = ("hub-0", "hub-1")
LOOK = 0.005
WARM_SECONDS = 3.0
IDLE_SECONDS = 20.0


@dataclass
class Trial:
    """Two replicas, and a session of our own that sees the lock."""

    stage: Stage
    ways: Mapping[str, tuple["Way", str]]
    """Each replica's own way to the database, and its URL."""
    lifeline: SqlLifeline
    replicas: dict[str, Child] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Returns when it is ready."""
        port = self.ports.setdefault(name, free_port())
        data = self.stage.folder / name
        self.replicas[name] = await self.stage.children.start(
            name,
            [
                *("env", f"HUB_DATABASE_URL={self.ways[name][1]}", sys.executable, "-m", "hub", "serve", f"--data-dir={data}"),
                *(f"--replica-name={name}", f"--keys-dir={self.stage.folder / 'keys'}"),
                *(f"--grpc-listen=127.0.0.1:{free_port()}", f"--https-listen=127.0.0.1:{port}"),
            ],
        )

        async def ready() -> bool:
            try:
                document = read_document(data / "admin.kubeconfig")
                async with await KubeClient.from_document(document) as client:
                    return (await client.raw("GET", "/readyz")).status == 200
            except Exception:  # noqa: BLE001 - not yet
                return False

        await self.stage.until(ready, f"{name} is ready")

    async def leader(self) -> tuple[str, int]:
        return await self.lifeline.ask(_leader)

    async def followed(self, term: int) -> float:
        """The instant at which a later term had begun."""
        while not ((now := await self.leader())[0] and now[1] > term):  # noqa: ASYNC110 - the database is what is watched
            await asyncio.sleep(LOOK)
        return monotonic()


def _leader(leaders: Leaders) -> tuple[str, int]:
    record = leaders.record()
    return (record.holder, record.term) if record is not None else ("", 0)


async def _end(trial: Trial, number: signal.Signals, *, again: bool = False) -> float:
    """How long nobody led after the leader got this signal; `again`: it is started at once, under its name."""
    name, term = await trial.leader()
    child = trial.replicas[name]
    begun = monotonic()
    following = asyncio.create_task(trial.followed(term))
    child.send(number)
    if again:
        await child.ended()
        await trial.start(name)
    took = await following - begun
    if number is signal.SIGSTOP:
        child.send(signal.SIGCONT)
    elif not again:
        await child.ended()
        await trial.start(name)
    await asyncio.sleep(WARM_SECONDS)
    return took


async def _cut_off(trial: Trial) -> float:
    """How long nobody led after the leader's way to the database was cut: nothing arrives any more, and nobody is told."""
    name, term = await trial.leader()
    begun = monotonic()
    way, _ = trial.ways[name]
    way.silence()
    took = await trial.followed(term) - begun
    way.resume()
    await asyncio.sleep(WARM_SECONDS)
    return took


CAUSES: Mapping[str, Callable[[Trial], Awaitable[float]]] = {
    "told to stop (SIGTERM)": lambda trial: _end(trial, signal.SIGTERM),
    "killed (SIGKILL)": lambda trial: _end(trial, signal.SIGKILL),
    "frozen (SIGSTOP)": lambda trial: _end(trial, signal.SIGSTOP),
    "cut off from the database": _cut_off,
    "killed and started again": lambda trial: _end(trial, signal.SIGKILL, again=True),
}


async def _measure(trials: int) -> None:
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - a package of the tests
    from tests.fakes.postgres_path import postgres_path  # noqa: PLC0415 - the same

    with postgres_server(flushing=True) as url:
        async with AsyncExitStack() as stack, staged() as stage:
            create_keys(stage.folder / "keys", Lifetimes(), SystemClock().now())
            ways = {name: await stack.enter_async_context(postgres_path(url)) for name in REPLICAS}
            trial = Trial(stage, ways, SqlLifeline(url, lease=KUBERNETES.lease))
            for name in REPLICAS:
                await trial.start(name)
            click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
            for cause, happens in CAUSES.items():
                took = [await happens(trial) for _ in range(trials)]
                click.echo(f"{cause}: median {statistics.median(took):.2f} s, longest {max(took):.2f} s, of {trials}")
            await _idle(trial)
            await trial.lifeline.close()


async def _idle(trial: Trial) -> None:
    """What it costs to follow, and to lead, while nothing happens."""
    leader, _ = await trial.leader()
    before = {name: cpu_seconds(child.pid) for name, child in trial.replicas.items()}
    await asyncio.sleep(IDLE_SECONDS)
    for name, child in trial.replicas.items():
        cost = (cpu_seconds(child.pid) - before[name]) / IDLE_SECONDS * 1000
        click.echo(f"idle {'leader' if name == leader else 'follower'}: {cost:.1f} ms of CPU a second, the whole process")


@click.command()
@click.option("--trials", default=5, show_default=True, help="Of each cause; a kill takes 15 s.")
def takeover(trials: int) -> None:
    """Measure how long nobody leads after each kind of end of a leader."""
    asyncio.run(_measure(trials))
