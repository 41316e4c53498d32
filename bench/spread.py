"""What one, two and three replicas carry together: status reports and heartbeats per second, and PostgreSQL's processor time.

    python -m bench spread [--sessions 150] [--seconds 20]

Real `hub serve` processes on one PostgreSQL of the tests, sessions spread evenly. Reports come one after the other on every
session, each one news; then every session beats five times a second, and a replica stores the newest beat of each once per
window. Everything is on one machine, the agents too: what a replica adds shows in the rate only while there are idle cores, and
in the processor time per report and beat everywhere.
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import click
from grpc import aio
from sqlalchemy import make_url

from bench.agents import Agent, Target, bootstrap, register_many
from bench.stage import Stage, cpu_seconds, free_port, staged
from hollow.demo.processes import Child
from hub.api.certificates import Lifetimes
from hub.replica.keys import create_keys
from machinery.runtime.clock import SystemClock
from machinery.wire.session.v1 import session_pb2 as wire

BEAT_EVERY = 0.2
WARM_UP_SECONDS = 3.0
CONNECT = "/muster.session.v1.Session/Connect"


@click.command()
@click.option("--sessions", default=150, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
def spread(sessions: int, seconds: float) -> None:
    """Status reports and heartbeats per second at one, two and three replicas."""
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - a package of the tests

    for replicas in (1, 2, 3):
        with postgres_server(flushing=True) as url, told_to_hubs(url):
            found = asyncio.run(Scene(replicas, sessions, postmaster_of(url)).measure(seconds))
            click.echo(json.dumps({"replicas": replicas, **found}))


@contextmanager
def told_to_hubs(url: str) -> Iterator[None]:
    """Where the hubs find it: a URL may hold a password, so it is no argument."""
    os.environ["HUB_DATABASE_URL"] = url
    try:
        yield
    finally:
        del os.environ["HUB_DATABASE_URL"]


@dataclass
class Counted:
    """What all sessions had acknowledged, and how many of them are open."""

    open: int = 0
    done: int = 0


@dataclass
class Scene:
    """`server`: PostgreSQL's process."""

    replicas: int
    sessions: int
    server: int

    async def measure(self, seconds: float) -> dict[str, float]:
        async with staged() as stage:
            hubs, ports = await start_replicas(stage, self.replicas)
            target, credential = await bootstrap(stage)
            agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(self.sessions)])
            places = [
                (replace(target, server=f"localhost:{ports[index % self.replicas]}"), agent)
                for index, agent in enumerate(agents)
            ]
            reports = await self._rate(places, _report, hubs, seconds)
            beats = await self._rate(places, _beat, hubs, seconds)
        return {
            **{f"reports_{name}": value for name, value in reports.items()},
            **{f"beats_{name}": value for name, value in beats.items()},
        }

    async def _rate(self, places: list[tuple[Target, Agent]], work: Any, hubs: list[Child], seconds: float) -> dict[str, float]:
        counted = Counted()
        running = asyncio.create_task(_everybody(places, work, counted))
        try:
            while counted.open < len(places):
                await asyncio.sleep(0.05)
                if running.done():
                    running.result()
            await asyncio.sleep(WARM_UP_SECONDS)
            began, before, hub, database = time.monotonic(), counted.done, _cpu(hubs), postgres_cpu(self.server)
            await asyncio.wait({running}, timeout=seconds)
            took, done = time.monotonic() - began, counted.done - before
            return {
                "per_second": round(done / took, 1),
                "hub_cpu_microseconds_each": round((_cpu(hubs) - hub) / done * 1e6, 1),
                "postgres_cpu_microseconds_each": round((postgres_cpu(self.server) - database) / done * 1e6, 1),
            }
        finally:
            running.cancel()
            await asyncio.wait({running})


async def start_replicas(stage: Stage, replicas: int) -> tuple[list[Child], list[int]]:
    """The replicas; the first one's ports and data directory are the stage's."""
    create_keys(stage.folder / "keys", Lifetimes(), SystemClock().now())
    flags = (
        "--auto-approve=*",
        "--beat-interval=1s",
        "--beats-per-second=0",
        f"--keys-dir={stage.folder / 'keys'}",
        "--identity-rate=0",
    )
    hubs, ports = [await stage.start_hub(*flags, "--replica-name=hub-0")], [stage.grpc_port]
    for number in range(1, replicas):
        ports.append(free_port())
        doors = (f"--grpc-listen=127.0.0.1:{ports[-1]}", f"--https-listen=127.0.0.1:{free_port()}")
        own = (f"--replica-name=hub-{number}", f"--data-dir={stage.folder / f'hub-{number}'}")
        hubs.append(await stage.start(f"hub-{number}", "hub", "serve", *doors, *own, *flags))
        await stage.until(partial(_is_ready, hubs[-1]), f"hub-{number} is ready")
    return hubs, ports


async def _is_ready(hub: Child) -> bool:
    return "HasBeenReady" in await asyncio.to_thread(hub.log.read_text, "utf-8")


async def _everybody(places: list[tuple[Target, Agent]], work: Any, counted: Counted) -> None:
    async with asyncio.TaskGroup() as tasks:
        for place in places:
            tasks.create_task(_session(*place, work, counted))


async def _session(target: Target, agent: Agent, work: Any, counted: Counted) -> None:
    async with target.channel(agent.credential) as channel:
        call: Any = channel.stream_stream(CONNECT)()
        hello = wire.Hello(agent_version="bench", cluster_uid=f"uid-{agent.cluster}")
        await call.write(wire.AgentMessage(hello=hello).SerializeToString())
        await call.read()
        counted.open += 1
        await work(call, counted)


async def _report(call: Any, counted: Counted) -> None:
    """One after the other, each with another capacity."""
    for sequence in count(1):
        status = wire.StatusReport(
            sequence=sequence, complete=True, capacity={"cpu": str(sequence)}, kubernetes_version="v1.36.0"
        )
        await call.write(wire.AgentMessage(status=status).SerializeToString())
        while (await _read(call)).report_ack.sequence < sequence:
            pass
        counted.done += 1


async def _beat(call: Any, counted: Counted) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_acknowledged(call, counted))
        for sequence in count(1):
            beat = wire.Beat(sequence=sequence, verdict=wire.VERDICT_AVAILABLE)
            await call.write(wire.AgentMessage(beat=beat).SerializeToString())
            await asyncio.sleep(BEAT_EVERY)


async def _acknowledged(call: Any, counted: Counted) -> None:
    newest = 0
    while True:
        message = await _read(call)
        if message.WhichOneof("message") == "beat_ack":
            counted.done += message.beat_ack.sequence - newest
            newest = message.beat_ack.sequence


async def _read(call: Any) -> wire.HubMessage:
    raw = await call.read()
    if raw is aio.EOF:
        raise RuntimeError(f"a session ended: {await call.code()} {await call.details()}")
    return wire.HubMessage.FromString(raw)


def _cpu(hubs: list[Child]) -> float:
    return sum(cpu_seconds(hub.pid) for hub in hubs)


def postmaster_of(url: str) -> int:
    """The first process of a PostgreSQL on this machine."""
    return int(Path(str(make_url(url).query["host"]), "postmaster.pid").read_text("ascii").split()[0])


def postgres_cpu(server: int) -> float:
    """User and system time of a PostgreSQL server: its first process, that one's children, and those that have ended."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == server:
            total += sum(int(field) for field in fields[11:15])
        elif int(fields[1]) == server:
            total += sum(int(field) for field in fields[11:13])
    return total / os.sysconf("SC_CLK_TCK")
