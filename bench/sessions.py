"""Processor time of the hub per session start: TLS handshake, welcome, first acknowledged heartbeat, end.

    python -m bench sessions [--agents 200] [--rounds 3]

A real `hub serve` on SQLite with default settings. All agents have their certificates before the measurement begins.
"""

import asyncio
import json
import time
from typing import Any

import click

from bench.agents import Agent, Target, bootstrap, register_many
from bench.stage import cpu_seconds, staged
from machinery.wire.session.v1 import session_pb2 as wire

AT_ONCE = 16


@click.command()
@click.option("--agents", default=200, show_default=True)
@click.option("--rounds", default=3, show_default=True, help="How often each agent opens a session.")
def sessions(agents: int, rounds: int) -> None:
    """Processor time of the hub per session start."""
    click.echo(json.dumps(asyncio.run(measure(agents, rounds)), indent=2))


async def measure(agents: int, rounds: int) -> dict[str, float]:
    """Open `agents` sessions `rounds` times, each on a connection of its own."""
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*")
        target, credential = await bootstrap(stage)
        registered = await register_many(target, credential, [f"bench-{number:05}" for number in range(agents)])
        await _open_all(target, registered)  # the first session of a cluster writes more than the later ones
        spent, began = cpu_seconds(hub.pid), time.monotonic()
        for _ in range(rounds):
            await _open_all(target, registered)
        spent, took = cpu_seconds(hub.pid) - spent, time.monotonic() - began
    count = agents * rounds
    return {
        "sessions": count,
        "seconds": round(took, 2),
        "hub_cpu_milliseconds_per_session_start": round(spent / count * 1e3, 2),
    }


async def _open_all(target: Target, agents: list[Agent]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(agent: Agent) -> None:
        async with slots:
            await _open(target, agent)

    await asyncio.gather(*(one(agent) for agent in agents))


async def _open(target: Target, agent: Agent) -> None:
    """One session until its first heartbeat is acknowledged."""
    async with target.channel(agent.credential) as channel:
        call: Any = channel.stream_stream("/muster.session.v1.Session/Connect")()
        hello = wire.Hello(agent_version="bench", cluster_uid=f"uid-{agent.cluster}", patience_seconds=10)
        await call.write(wire.AgentMessage(hello=hello).SerializeToString())
        beat = wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE)
        await call.write(wire.AgentMessage(beat=beat).SerializeToString())
        while wire.HubMessage.FromString(await call.read()).WhichOneof("message") != "beat_ack":
            pass
        call.cancel()
