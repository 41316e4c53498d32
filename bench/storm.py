"""Reconnection of agents after one of two replicas is killed: delay, rate, and processor time of the other replica.

    python -m bench storm [--agents 1000]

Two `hub serve` processes on one PostgreSQL behind a TCP balancer, and whole agents (the program's own loop, with clusters in
memory) in one other process. One replica gets SIGKILL. An agent is back when a beat that it sent afterwards is acknowledged.
"""

import asyncio
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from bench.stage import cpu_seconds, postgres_for_hubs, report
from machinery.observability import logs
from machinery.observability.logs import LogFormat
from tests.e2e.crowd import Crowd, crowd_of
from tests.e2e.processes import Bench
from tests.e2e.replicas import Replicas, replicas_of

FLAGS = ("--auto-approve=*", "--default-lease-duration=10s", "--beat-interval=2s", "--identity-rate=0")
POLL_SECONDS = 0.02
BACK_WITHIN = 120.0
SETTLE_SECONDS = 5.0


@click.command()
@click.option("--agents", default=1000, show_default=True)
def storm(agents: int) -> None:
    """Reconnection of agents after one of two replicas is killed."""
    logs.configure("critical", LogFormat.JSON)
    with postgres_for_hubs() as (url, _), tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        report(_storm(Path(folder), url, agents))


async def _storm(folder: Path, database: str, agents: int) -> dict[str, float]:
    bench = Bench(folder)
    try:
        async with replicas_of(bench, database, *FLAGS) as replicas:
            await replicas.start(2)
            crowd = await crowd_of(bench.admin, agents)
            async with crowd.running():
                await crowd.all_heard()
                await asyncio.sleep(SETTLE_SECONDS)
                return await _killed(replicas, crowd)
    finally:
        await bench.close()


async def _killed(replicas: Replicas, crowd: Crowd) -> dict[str, float]:
    victim, left = replicas.all
    opened = {name: tally.opened for name, tally in crowd.use_counts.items()}
    before = cpu_seconds(left.process.pid)
    killed = time.monotonic()
    victim.process.send(signal.SIGKILL)
    reopened: dict[str, float] = {}
    back: dict[str, float] = {}
    while time.monotonic() - killed < BACK_WITHIN and (not back or len(back) < len(reopened) or _lost(crowd, opened, killed)):
        now = time.monotonic() - killed
        for name, tally in crowd.use_counts.items():
            if tally.opened > opened[name]:
                reopened.setdefault(name, now)
                if tally.heard > killed + reopened[name] and name not in back:
                    back[name] = tally.heard - killed
        await asyncio.sleep(POLL_SECONDS)
    await victim.process.ended()
    return {
        "agents": len(crowd.use_counts),
        "of_the_dead_replica": len(reopened),
        **_spread("session_open", reopened),
        **_spread("back", back),
        "most_sessions_in_a_second": max(Counter(int(at) for at in reopened.values()).values(), default=0),
        "most_sessions_in_100_ms": max(Counter(int(at * 10) for at in reopened.values()).values(), default=0),
        "hub_cpu_milliseconds_each": round((cpu_seconds(left.process.pid) - before) / max(len(reopened), 1) * 1000, 2),
    }


def _lost(crowd: Crowd, opened: Mapping[str, int], killed: float) -> bool:
    """Whether an agent has neither beaten nor reconnected since."""
    return any(tally.heard <= killed + 2.0 and tally.opened == opened[name] for name, tally in crowd.use_counts.items())


def _spread(name: str, found: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(found.values())
    if not ordered:
        return {}
    points = {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)], "last": ordered[-1]}
    return {f"{name}_{point}_seconds": round(at, 2) for point, at in points.items()}
