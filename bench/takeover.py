"""Time without a leader, by cause: two replicas as processes on a PostgreSQL of the tests, with the default timings.

    python -m bench takeover [--trials 5]

The time runs from the signal to the commit of the next term, as another session of the database reads it. Then the processor
time of an idle leader and an idle follower is measured.
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

from bench.stage import Stage, cpu_seconds, free_port, is_ready, postgres_for_hubs, staged
from hollow.demo.processes import Child
from hub.store.writer.leader_lock_connection import SqlLeaderLockConnection
from machinery.election import KUBERNETES

if TYPE_CHECKING:
    from tests.fakes.postgres_path import Way

REPLICAS = ("hub-0", "hub-1")
POLL_SECONDS = 0.005
WARM_SECONDS = 3.0
IDLE_SECONDS = 20.0


@dataclass
class Trial:
    """Two replicas, and a database session that reads the leader."""

    stage: Stage
    ways: Mapping[str, tuple["Way", str]]
    """Each replica's own way to the database, and its URL."""
    lifeline: SqlLeaderLockConnection
    replicas: dict[str, Child] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        """Start a replica; return when it is ready."""
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
        await self.stage.until(lambda: is_ready(data / "admin.kubeconfig"), f"{name} is ready")

    async def leader(self) -> tuple[str, int]:
        record = await self.lifeline.ask(lambda leaders: leaders.record())
        return (record.holder, record.term) if record is not None else ("", 0)

    async def followed(self, term: int) -> float:
        """Wait for a later term; return the instant."""
        while not ((now := await self.leader())[0] and now[1] > term):  # noqa: ASYNC110 - the database is what is watched
            await asyncio.sleep(POLL_SECONDS)
        return monotonic()


async def _end(trial: Trial, number: signal.Signals, *, again: bool = False) -> float:
    """Seconds without a leader after the leader received this signal. `again`: it is restarted at once under its name."""
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
    """Seconds without a leader after all packets between the leader and the database are dropped."""
    name, term = await trial.leader()
    begun = monotonic()
    way, _ = trial.ways[name]
    way.silence()
    took = await trial.followed(term) - begun
    way.resume()
    await asyncio.sleep(WARM_SECONDS)
    return took


CAUSES: Mapping[str, Callable[[Trial], Awaitable[float]]] = {
    "stopped (SIGTERM)": lambda trial: _end(trial, signal.SIGTERM),
    "killed (SIGKILL)": lambda trial: _end(trial, signal.SIGKILL),
    "frozen (SIGSTOP)": lambda trial: _end(trial, signal.SIGSTOP),
    "cut off from the database": _cut_off,
    "killed and restarted": lambda trial: _end(trial, signal.SIGKILL, again=True),
}


async def _measure(trials: int) -> None:
    from tests.fakes.postgres_path import postgres_path  # noqa: PLC0415 - beside the server of the tests

    with postgres_for_hubs() as (url, _):
        async with AsyncExitStack() as stack, staged() as stage:
            stage.shared_keys()
            ways = {name: await stack.enter_async_context(postgres_path(url)) for name in REPLICAS}
            trial = Trial(stage, ways, SqlLeaderLockConnection(url, lease=KUBERNETES.lease))
            for name in REPLICAS:
                await trial.start(name)
            click.echo(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
            for cause, happens in CAUSES.items():
                took = [await happens(trial) for _ in range(trials)]
                click.echo(f"{cause}: median {statistics.median(took):.2f} s, longest {max(took):.2f} s, of {trials}")
            await _idle(trial)
            await trial.lifeline.close()


async def _idle(trial: Trial) -> None:
    """Processor time of leader and follower while nothing happens."""
    leader, _ = await trial.leader()
    before = {name: cpu_seconds(child.pid) for name, child in trial.replicas.items()}
    await asyncio.sleep(IDLE_SECONDS)
    for name, child in trial.replicas.items():
        cost = (cpu_seconds(child.pid) - before[name]) / IDLE_SECONDS * 1000
        click.echo(f"idle {'leader' if name == leader else 'follower'}: {cost:.1f} ms of CPU a second, the whole process")


@click.command()
@click.option("--trials", default=5, show_default=True, help="Of each cause; a kill takes 15 s.")
def takeover(trials: int) -> None:
    """Time without a leader after each kind of failure of the leader."""
    asyncio.run(_measure(trials))
