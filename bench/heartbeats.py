"""Cost of heartbeats: processor time of a hub that runs as a process.

    python -m bench heartbeats [--sessions 1000] [--seconds 60] [--warm-up 120]

All agents run in this process, each with its own certificate and connection.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Annotated, Any

from grpc import aio

from bench.agents import Agent, Target, bootstrap, open_session, register_many
from bench.stage import Stage, cpu_seconds, memory_mib, staged
from machinery.wire.session.v1 import session_pb2 as wire

OPENING_AT_ONCE, BEAT_SECONDS = 50, 1.0


class Fleet:
    """Open sessions that send a beat every BEAT_SECONDS."""

    def __init__(self, target: Target, agents: list[Agent]) -> None:
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
            call = await open_session(self._target.channel(agent.credential), agent)
            await call.read()  # its Welcome
            self.open += 1
        tasks.create_task(self._read(call))
        loop = asyncio.get_running_loop()
        await asyncio.sleep(random.uniform(0, BEAT_SECONDS))  # noqa: S311 - spreads load, guards nothing
        due = loop.time()
        for sequence in count(1):
            beat = wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE)
            await call.write(wire.AgentMessage(beat=beat).SerializeToString())
            self.sent += 1
            due += BEAT_SECONDS
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _read(self, call: Any) -> None:
        acknowledged = 0
        while (raw := await call.read()) is not aio.EOF:
            message = wire.HubMessage.FromString(raw)
            if message.WhichOneof("message") == "beat_ack":
                self.acknowledged += message.beat_ack.sequence - acknowledged
                acknowledged = message.beat_ack.sequence
        raise RuntimeError(f"a session ended: {await call.code()} {await call.details()}")


@asynccontextmanager
async def beating(stage: Stage, clusters: int, warm_up: float) -> AsyncIterator[Fleet]:
    """Open sessions of new clusters, and wait for the warm-up. The sessions end with the block."""
    target, credential = await bootstrap(stage)
    agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(clusters)])
    fleet = Fleet(target, agents)
    running = asyncio.create_task(fleet.run())
    try:
        while fleet.open < clusters:
            await asyncio.sleep(0.1)
            if running.done():
                running.result()
        await asyncio.sleep(warm_up)
        yield fleet
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.wait({running})


async def heartbeats(
    sessions: int = 1_000,
    seconds: float = 60.0,
    warm_up: Annotated[float, "Events of so many joins are written for a while."] = 120.0,
) -> dict[str, float]:
    """Processor time of the hub on SQLite per heartbeat; every session beats once a second.

    It includes gRPC and TLS, flush and acknowledgement of every beat, and everything else that the hub does meanwhile.
    """
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*", "--beat-interval=1s", "--beats-per-second=0")
        async with beating(stage, sessions, warm_up) as fleet:
            before, began, cpu = fleet.acknowledged, time.monotonic(), cpu_seconds(hub.pid)
            await asyncio.sleep(seconds)
            beats, spent, took = fleet.acknowledged - before, cpu_seconds(hub.pid) - cpu, time.monotonic() - began
            pss, rss = memory_mib(hub.pid)
            unacknowledged = fleet.sent - fleet.acknowledged
    return {
        "sessions": sessions,
        "beats_per_second": round(beats / took, 1),
        "hub_cpu_microseconds_per_beat": round(spent / beats * 1e6, 1),
        "beats_waiting_at_the_end": unacknowledged,
        "hub_pss_mib": round(pss, 1),
        "hub_rss_mib": round(rss, 1),
    }
