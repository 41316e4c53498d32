"""What one cluster costs the hub while nothing happens to it: processor time per cluster and minute.

    python -m bench availability [--clusters 1000] [--seconds 120] [--postgres]

A real `hub serve` with default settings, and as many clusters with a session each, beating as the spoke does: as often as the
hub asks it to, each at its own moment. Everything the hub does is counted: sessions, flushes, the judgement of silences, marks,
controllers, its idle cost.
What a hub without clusters costs is measured first, and listed beside it. With `--postgres` the hub is on a PostgreSQL of
the tests, and the time of all its processes is listed too.
"""

import asyncio
import json
import time

import click

from bench.agents import bootstrap, register_many
from bench.heartbeats import Fleet
from bench.spread import postgres_cpu, postmaster_of, told_to_hubs
from bench.stage import cpu_seconds, staged
from hub.api.certificates import Lifetimes
from hub.replica.keys import create_keys
from machinery.runtime.clock import SystemClock

WARM_UP_SECONDS = 45.0
"""Longer than newcomers' taints and Events take."""


@click.command()
@click.option("--clusters", default=1_000, show_default=True)
@click.option("--seconds", default=120.0, show_default=True)
@click.option("--postgres", is_flag=True, help="On a PostgreSQL of the tests. Without it: SQLite.")
def availability(clusters: int, seconds: float, *, postgres: bool) -> None:
    """Processor time of the hub per cluster and minute."""
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - a package of the tests

    if not postgres:
        click.echo(json.dumps(asyncio.run(measure(clusters, seconds, None)), indent=2))
        return
    with postgres_server(flushing=True) as url, told_to_hubs(url):
        click.echo(json.dumps(asyncio.run(measure(clusters, seconds, postmaster_of(url))), indent=2))


async def measure(clusters: int, seconds: float, postgres_pid: int | None) -> dict[str, float]:
    """`postgres_pid`: the postmaster of the hub's database; None: it has none."""
    async with staged() as stage:
        keys = stage.folder / "keys"
        if postgres_pid is not None:
            create_keys(keys, Lifetimes(), SystemClock().now())
        hub = await stage.start_hub("--auto-approve=*", *([f"--keys-dir={keys}"] if postgres_pid is not None else []))
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
    before, database, began = cpu_seconds(hub), _database(postgres), time.monotonic()
    await asyncio.sleep(seconds)
    return cpu_seconds(hub) - before, _database(postgres) - database, time.monotonic() - began


def _database(postmaster: int | None) -> float:
    return 0.0 if postmaster is None else postgres_cpu(postmaster)
