"""How long 300 certificates take when all are asked for at once.

    python -m bench issuance [--requests 300]

A real `hub serve` on SQLite that approves by rule. Each request has a connection of its own; keys and requests are made before.
The time runs from the first dial to the last certificate: TLS handshakes, registration of the cluster, the request, its
approval, the signatures (agent and recovery certificate each) and the answer.
"""

import asyncio
import json
import time

import click

from bench.agents import bootstrap, register, request_for
from bench.stage import cpu_seconds, staged


@click.command()
@click.option("--requests", default=300, show_default=True)
def issuance(requests: int) -> None:
    """Time until many certificates are issued that were asked for at once."""
    click.echo(json.dumps(asyncio.run(measure(requests)), indent=2))


async def measure(requests: int) -> dict[str, float]:
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*")
        target, credential = await bootstrap(stage)
        names = [f"bench-{number:05}" for number in range(requests)]
        prepared = [(name, *request_for(name)) for name in names]
        channels = [target.channel(credential) for _ in names]
        spent, began = cpu_seconds(hub.pid), time.monotonic()
        agents = await asyncio.gather(*(register(channel, *one) for channel, one in zip(channels, prepared, strict=True)))
        took, spent = time.monotonic() - began, cpu_seconds(hub.pid) - spent
        assert len({agent.credential.chain for agent in agents}) == requests
        await asyncio.gather(*(channel.close() for channel in channels))
    return {
        "requests": requests,
        "seconds": round(took, 2),
        "hub_cpu_milliseconds_per_certificate": round(spent / requests * 1e3, 2),
    }
