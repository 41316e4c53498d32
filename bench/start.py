"""Time from the start of `hub serve` on an existing data directory until it is ready, and its processor time until then.

    python -m bench start [--trials 5]

A hub on SQLite with default settings, started and stopped; the first start, which migrates and makes the CA, is not counted.
Ready: the first answer 200 of /readyz, asked every 10 ms.
"""

import asyncio
import json
import signal
import statistics
import time

import click

from bench.stage import cpu_seconds, staged


@click.command()
@click.option("--trials", default=5, show_default=True)
def start(trials: int) -> None:
    """Start of a hub until it is ready."""
    click.echo(json.dumps(asyncio.run(measure(trials)), indent=2))


async def measure(trials: int) -> dict[str, float]:
    """`trials` starts of one hub."""
    times, spent = [], []
    async with staged() as stage:
        for _ in range(trials + 1):
            began = time.monotonic()
            hub = await stage.start_hub()
            times.append(time.monotonic() - began)
            spent.append(cpu_seconds(hub.pid))
            hub.send(signal.SIGTERM)
            await hub.ended()
    return {
        "trials": trials,
        "ready_p50_seconds": round(statistics.median(times[1:]), 2),
        "ready_cpu_p50_seconds": round(statistics.median(spent[1:]), 2),
    }
