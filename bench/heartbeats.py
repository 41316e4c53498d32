"""Cost of heartbeats and of healthy clusters: processor time of a hub that runs as a process.

    python -m bench heartbeats [--sessions 1000] [--seconds 60] [--warm-up 120]    per heartbeat
    python -m bench availability [--clusters 1000] [--seconds 120] [--postgres]    per cluster and minute

All agents run in this process, each with its own certificate and connection.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Annotated, Any

from grpc import aio

from bench.agents import Agent, Target, bootstrap, open_session, register_many
from bench.stage import Stage, cpu_seconds, memory_mib, postgres_cpu_seconds, postgres_for_hubs, staged
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.schedule import pause

OPENING_AT_ONCE = 50
IDLE_SECONDS, WARM_UP_SECONDS = 30.0, 45.0
"""Seconds for which a hub without clusters is measured; seconds after which taints and Events of new clusters are written."""


class Fleet:
    """Open sessions that send beats, every `interval` seconds. None: at random intervals, as the hub requests."""

    def __init__(self, target: Target, agents: list[Agent], interval: float | None) -> None:
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
            call = await open_session(self._target.channel(agent.credential), agent)
            pace = Pace(wire.HubMessage.FromString(await call.read()).welcome.beat_interval.ToTimedelta().total_seconds())
            self.open += 1
        tasks.create_task(self._read(call, pace))
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
        """Return the seconds until the next beat, in step like those of agents. Hub and agents have the same clock here."""
        return pause(timedelta(seconds=self.seconds), random.random(), datetime.now(UTC)).total_seconds()  # noqa: S311 - spreads load


@asynccontextmanager
async def beating(stage: Stage, clusters: int, warm_up: float, interval: float | None = None) -> AsyncIterator[Fleet]:
    """Open sessions of new clusters, and wait for the warm-up. The sessions end with the block."""
    target, credential = await bootstrap(stage)
    agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(clusters)])
    fleet = Fleet(target, agents, interval)
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
        async with beating(stage, sessions, warm_up, interval=1.0) as fleet:
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


async def availability(
    clusters: int = 1_000,
    seconds: float = 120.0,
    *,
    postgres: Annotated[bool, "On a PostgreSQL of the tests. Without it: SQLite."] = False,
) -> dict[str, float]:
    """Processor time of the hub per healthy cluster and minute, with default settings.

    Everything the hub does is counted, its cost without clusters included, which is measured before and listed as well. With
    --postgres the processor time of all processes of the database is listed too.
    """
    async with AsyncExitStack() as stack:
        postmaster = stack.enter_context(postgres_for_hubs())[1] if postgres else None
        stage = await stack.enter_async_context(staged())
        hub = await stage.start_hub("--auto-approve=*", *([stage.shared_keys()] if postmaster is not None else []))
        await asyncio.sleep(5)
        idle_seconds, before = min(seconds, IDLE_SECONDS), cpu_seconds(hub.pid)
        await asyncio.sleep(idle_seconds)
        idle = cpu_seconds(hub.pid) - before
        async with beating(stage, clusters, WARM_UP_SECONDS) as fleet:
            beats, began, before = fleet.acknowledged, time.monotonic(), cpu_seconds(hub.pid)
            database = postgres_cpu_seconds(postmaster) if postmaster is not None else 0.0
            await asyncio.sleep(seconds)
            beats, took, spent = fleet.acknowledged - beats, time.monotonic() - began, cpu_seconds(hub.pid) - before
            database = postgres_cpu_seconds(postmaster) - database if postmaster is not None else 0.0
    minutes = clusters * took / 60
    found = {
        "clusters": float(clusters),
        "beats_per_second": round(beats / took, 1),
        "hub_cpu_ms_per_cluster_minute": round(spent / minutes * 1e3, 3),
        "hub_cpu_ms_per_minute_without_clusters": round(idle / idle_seconds * 60e3, 1),
    }
    if postmaster is not None:
        found["postgres_cpu_ms_per_cluster_minute"] = round(database / minutes * 1e3, 3)
    return found
