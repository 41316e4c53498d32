"""What ten questions about a fleet cost at the HTTPS door: `bench.asking_questions`, each a hundred times over one connection.

    python -m bench asking [--clusters 10000] [--rounds 100] [--database postgresql://...]

A real `hub serve` over a database that was filled before (`bench.asking_fleet`). Wall time is the client's, from before it asks
until it has the last byte; processor time is the hub's, user and system, for each answer.
"""

import asyncio
import json
import os
import time
from typing import Any

import click

from bench.asking_fleet import fill
from bench.asking_questions import QUESTIONS
from bench.door import Client, settle
from bench.stage import CLUSTERS, Stage, cpu_seconds, staged

WARM = 5


@click.command()
@click.option("--clusters", default=10_000, show_default=True)
@click.option("--rounds", default=100, show_default=True)
@click.option("--database", default="", help="An empty PostgreSQL database; without it SQLite.")
def asking(clusters: int, rounds: int, database: str) -> None:
    """Ten questions about a fleet, at the door."""
    click.echo(json.dumps(asyncio.run(measure(clusters, rounds, database)), indent=2))


def asked(client: Client, hub: int, rounds: int, parameters: str) -> dict[str, float]:
    """In milliseconds: the middle, the 99th of a hundred, and the hub's processor time for one."""
    path = f"{CLUSTERS}?{parameters}"
    for _ in range(WARM):
        size = len(client.get(path))
    walls, cpu = [], cpu_seconds(hub)
    for _ in range(rounds):
        began = time.perf_counter()
        client.get(path)
        walls.append(time.perf_counter() - began)
    spent = (cpu_seconds(hub) - cpu) / rounds
    walls.sort()
    return {
        "p50_ms": round(walls[len(walls) // 2] * 1e3, 1),
        "p99_ms": round(walls[int(len(walls) * 0.99) - 1] * 1e3, 1),
        "hub_cpu_ms": round(spent * 1e3, 1),
        "kb": size // 1000,
    }


def ask(stage: Stage, hub: int, rounds: int) -> dict[str, Any]:
    settle(hub)
    client = Client(stage.admin, stage.https_port)
    return {question.name: asked(client, hub, rounds, question.parameters) for question in QUESTIONS}


async def measure(clusters: int, rounds: int, database: str) -> dict[str, Any]:
    async with staged() as stage:
        folder = stage.folder / "hub"
        folder.mkdir(mode=0o700)
        await fill(database or f"sqlite:///{folder / 'hub.db'}", clusters)
        if database:
            os.environ["HUB_DATABASE_URL"] = database  # it may hold a password, so that there is no flag for it
        hub = await stage.start_hub()
        return await asyncio.to_thread(ask, stage, hub.pid, rounds)
