"""What one cluster costs the hub while nothing happens to it: processor time per cluster and minute.

    python -m bench availability [--clusters 1000] [--seconds 120] [--database postgresql://... --postgres-pid PID]

A real `hub serve` with default settings, and as many clusters with a session each, beating as the spoke does: as often as the
hub asks it to, each at its own moment. Everything the hub does is counted: sessions, flushes, the judgement of silences, marks,
controllers, its idle cost.
What a hub without clusters costs is measured first, and listed beside it. With `--postgres-pid`, the database's
postmaster on this machine, the time of all its processes is listed too.
"""

import asyncio
import json
import time
from pathlib import Path

import click

from bench.agents import bootstrap, register_many
from bench.heartbeats import Fleet
from bench.stage import cpu_seconds, staged

WARM_UP_SECONDS = 45.0
"""Longer than newcomers' taints and Events take."""


@click.command()
@click.option("--clusters", default=1_000, show_default=True)
@click.option("--seconds", default=120.0, show_default=True)
@click.option("--database", default="", help="SQLAlchemy URL of an empty database. Without it: SQLite.")
@click.option("--postgres-pid", type=int, help="The postmaster behind --database.")
def availability(clusters: int, seconds: float, database: str, postgres_pid: int | None) -> None:
    """Processor time of the hub per cluster and minute."""
    click.echo(json.dumps(asyncio.run(measure(clusters, seconds, database, postgres_pid)), indent=2))


async def measure(clusters: int, seconds: float, database: str, postgres_pid: int | None) -> dict[str, float]:
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*", *([f"--database-url={database}"] if database else []))
        await asyncio.sleep(5)
        idle, _, _ = await _spent(hub.pid, None, min(seconds, 30.0))
        target, credential = await bootstrap(stage)
        agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(clusters)])
        fleet = Fleet(target, agents)
        running = asyncio.create_task(fleet.run())
        try:
            while fleet.open < clusters:
                await asyncio.sleep(0.1)
                if running.done():
                    running.result()
            await asyncio.sleep(WARM_UP_SECONDS)
            beats = fleet.acknowledged
            spent, theirs, took = await _spent(hub.pid, postgres_pid, seconds)
            beats = fleet.acknowledged - beats
        finally:
            running.cancel()
            await asyncio.wait({running})
    minutes = clusters * took / 60
    found = {
        "clusters": float(clusters),
        "beats_per_second": round(beats / took, 1),
        "hub_cpu_ms_per_cluster_minute": round(spent / minutes * 1e3, 3),
        "hub_cpu_ms_per_minute_without_clusters": round(idle / min(seconds, 30.0) * 60e3, 1),
    }
    return found if postgres_pid is None else found | {"postgres_cpu_ms_per_cluster_minute": round(theirs / minutes * 1e3, 3)}


async def _spent(hub: int, postgres: int | None, seconds: float) -> tuple[float, float, float]:
    """What the hub and the database used, and for how long they were watched; all in seconds."""
    before, database, began = cpu_seconds(hub), _family(postgres), time.monotonic()
    await asyncio.sleep(seconds)
    return cpu_seconds(hub) - before, _family(postgres) - database, time.monotonic() - began


def _family(postmaster: int | None) -> float:
    """Of a process and its children; none of PostgreSQL's ends while a hub is connected."""
    if postmaster is None:
        return 0.0
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text("ascii").split()
    return cpu_seconds(postmaster) + sum(cpu_seconds(int(child)) for child in children)
