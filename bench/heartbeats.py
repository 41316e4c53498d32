"""What one heartbeat costs the hub: processor time of its process, user and system, per beat.

    python -m bench heartbeats [--sessions 1000] [--seconds 60] [--warm-up 120]

A real `hub serve` on SQLite, and as many clusters with a certificate and a connection of their own, each beating once a second
at its own moment; all in one other process. The time includes gRPC and TLS, the flush and the acknowledgement of every beat,
and whatever else the hub does meanwhile.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import click
from grpc import aio

from bench.agents import Agent, Target, bootstrap, register_many
from bench.stage import cpu_seconds, memory_mib, staged
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.beats import pause

OPENING_AT_ONCE = 50
PATIENCE_SECONDS = 10
"""As the spoke's."""


@click.command()
@click.option("--sessions", default=1_000, show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--warm-up", default=120.0, show_default=True, help="The Events of so many joins are told for a while.")
def heartbeats(sessions: int, seconds: float, warm_up: float) -> None:
    """Processor time of the hub per heartbeat."""
    click.echo(json.dumps(asyncio.run(measure(sessions, seconds, warm_up)), indent=2))


class Fleet:
    """Sessions that beat until their process ends: every `interval` seconds, or as the hub asks and the spoke draws it."""

    def __init__(self, target: Target, agents: list[Agent], interval: float | None = None) -> None:
        self._interval = interval
        self._target = target
        self._agents = agents
        self._slots = asyncio.Semaphore(OPENING_AT_ONCE)
        self.open = 0
        self.sent = 0
        self.acknowledged = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for agent in self._agents:
                tasks.create_task(self._session(tasks, agent))

    async def _session(self, tasks: asyncio.TaskGroup, agent: Agent) -> None:
        async with self._slots:
            channel = self._target.channel(agent.credential)
            call: Any = channel.stream_stream("/muster.session.v1.Session/Connect")()
            hello = wire.Hello(agent_version="bench", cluster_uid=f"uid-{agent.cluster}", patience_seconds=PATIENCE_SECONDS)
            await call.write(wire.AgentMessage(hello=hello).SerializeToString())
            pace = Pace(wire.HubMessage.FromString(await call.read()).welcome.beat_interval.ToTimedelta().total_seconds())
            self.open += 1
        tasks.create_task(self._read(call, pace))
        await self._beat(call, pace)

    async def _beat(self, call: Any, pace: "Pace") -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0, self._interval or pace.seconds))  # noqa: S311 - spreads load, guards nothing
        due = loop.time()
        for sequence in count(1):
            beat = wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE)
            await call.write(wire.AgentMessage(beat=beat).SerializeToString())
            self.sent += 1
            due = due + self._interval if self._interval else loop.time() + pace.drawn()
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _read(self, call: Any, pace: "Pace") -> None:
        acknowledged = 0
        while (raw := await call.read()) is not aio.EOF:
            message = wire.HubMessage.FromString(raw)
            if message.WhichOneof("message") == "beat_ack":
                self.acknowledged += message.beat_ack.sequence - acknowledged
                acknowledged = message.beat_ack.sequence
                if message.beat_ack.HasField("next_interval"):
                    pace.seconds = message.beat_ack.next_interval.ToTimedelta().total_seconds()
        raise RuntimeError(f"a session ended: {await call.code()} {await call.details()}")


@dataclass
class Pace:
    """The interval at which the hub wants a session to beat."""

    seconds: float

    def drawn(self) -> float:
        """Seconds until the next beat, in step with all others as the spoke's are: hub and agents have one clock here."""
        return pause(timedelta(seconds=self.seconds), random.random(), datetime.now(UTC)).total_seconds()  # noqa: S311 - spreads load


async def measure(sessions: int, seconds: float, warm_up: float) -> dict[str, float]:
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*", "--beat-interval=1s", "--beats-per-second=0")
        target, credential = await bootstrap(stage)
        agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(sessions)])
        fleet = Fleet(target, agents, interval=1.0)
        running = asyncio.create_task(fleet.run())
        try:
            while fleet.open < sessions:
                await asyncio.sleep(0.1)
                if running.done():
                    running.result()
            await asyncio.sleep(warm_up)
            before, began, cpu = fleet.acknowledged, time.monotonic(), cpu_seconds(hub.pid)
            await asyncio.wait({running}, timeout=seconds)
            beats, spent, took = fleet.acknowledged - before, cpu_seconds(hub.pid) - cpu, time.monotonic() - began
            pss, rss = memory_mib(hub.pid)
            unacknowledged = fleet.sent - fleet.acknowledged
        finally:
            running.cancel()
            await asyncio.wait({running})
    return {
        "sessions": sessions,
        "beats_per_second": round(beats / took, 1),
        "hub_cpu_microseconds_per_beat": round(spent / beats * 1e6, 1),
        "beats_waiting_at_the_end": unacknowledged,
        "hub_pss_mib": round(pss, 1),
        "hub_rss_mib": round(rss, 1),
    }
