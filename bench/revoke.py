"""How soon a revoked cluster is cut off, as its agents see it.

    python -m bench revoke [--streams 500] [--replicas 2] [--every 0.05]

Real `hub serve` processes on one PostgreSQL of the tests, a session for each cluster, spread evenly over the replicas. An
operator revokes them one after the other through the HTTPS door of the first replica, a new one begun every 50 ms. Each is
timed from the moment at which the operator sends it, the write and its commit included, until the agent's stream has ended,
by the clock of this process, which is both of them. Then each agent comes again, and has to be refused.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any

import click
import grpc
from grpc import aio

from bench.agents import API, Agent, Target, bootstrap, register_many
from bench.spread import CONNECT, start_replicas, told_to_hubs
from bench.stage import staged
from machinery.client.rest import KubeClient
from machinery.wire.session.v1 import session_pb2 as wire

PATIENCE = 60.0
SETTLES = 2.0
"""Seconds for the replicas to have nothing else to do."""
AT_LEAST = 2
"""Streams, for a distribution."""


@click.command()
@click.option("--streams", default=500, show_default=True)
@click.option("--replicas", default=2, show_default=True)
@click.option("--every", default=0.05, show_default=True, help="Seconds from one revocation to the next.")
def revoke(streams: int, replicas: int, every: float) -> None:
    """From `revoke` to the end of the stream, over several replicas."""
    from tests.fakes.postgres import postgres_server  # noqa: PLC0415 - a package of the tests

    with postgres_server(flushing=True) as url, told_to_hubs(url):
        click.echo(json.dumps(asyncio.run(measure(max(streams, AT_LEAST), replicas, every))))


@dataclass
class Held:
    """One agent's stream: where, and when and how it ended."""

    agent: Agent
    target: Target
    call: Any
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float = 0.0
    code: grpc.StatusCode | None = None
    cause: str = ""

    async def follow(self) -> None:
        """Reads on until the hub ends it."""
        try:
            while await self.call.read() is not aio.EOF:
                pass
        except aio.AioRpcError:
            pass
        self.ended_at = time.perf_counter()
        self.code = await self.call.code()
        self.cause = str(dict(await self.call.trailing_metadata() or ()).get("cause", ""))
        self.ended.set()


async def measure(streams: int, replicas: int, every: float) -> dict[str, Any]:
    """`wrong`: streams that ended otherwise than by a revocation; `came again`: agents that were let in afterwards."""
    async with staged() as stage, AsyncExitStack() as stack:
        _, ports = await start_replicas(stage, replicas)
        target, credential = await bootstrap(stage)
        agents = await register_many(target, credential, [f"bench-{number:05}" for number in range(streams)])
        held = []
        for index, agent in enumerate(agents):
            held.append(await _open(stack, replace(target, server=f"localhost:{ports[index % replicas]}"), agent))
        following = [asyncio.create_task(each.follow()) for each in held]
        stack.callback(lambda: [task.cancel() for task in following])
        await asyncio.sleep(SETTLES)
        early = sum(each.ended.is_set() for each in held)
        async with stage.client() as operator:
            delays = await _revoke_all(operator, held, every)
        wrong = early + sum((each.code, each.cause) != (grpc.StatusCode.UNAUTHENTICATED, "CertificateRevoked") for each in held)
        again = sum([await _is_let_in(each) for each in held])
    cuts = quantiles(delays, n=100, method="inclusive")
    figures = {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(delays)}
    counted = {"streams": streams, "replicas": replicas, "wrong": wrong, "came again": again}
    return {**counted, **{name: round(value, 1) for name, value in figures.items()}}


async def _open(stack: AsyncExitStack, target: Target, agent: Agent) -> Held:
    channel = await stack.enter_async_context(target.channel(agent.credential))
    call: Any = channel.stream_stream(CONNECT)()
    hello = wire.Hello(agent_version="bench", cluster_uid=f"uid-{agent.cluster}")
    await call.write(wire.AgentMessage(hello=hello).SerializeToString())
    if await call.read() is aio.EOF:
        raise RuntimeError(f"{agent.cluster} got no session: {await call.code()} {await call.details()}")
    return Held(agent, target, call)


async def _revoke_all(operator: KubeClient, held: list[Held], every: float) -> list[float]:
    """From each order until the stream's end."""

    async def one(each: Held) -> float:
        body = {"apiVersion": API, "kind": "Revocation", "metadata": {"generateName": f"{each.agent.cluster}-"}}
        began = time.perf_counter()
        await operator.create(f"/apis/{API}/revocations", {**body, "spec": {"cluster": each.agent.cluster}})
        async with asyncio.timeout(PATIENCE):
            await each.ended.wait()
        return (each.ended_at - began) * 1000

    running = []
    for each in held:
        running.append(asyncio.create_task(one(each)))
        await asyncio.sleep(every)
    return list(await asyncio.gather(*running))


async def _is_let_in(held: Held) -> bool:
    try:
        async with AsyncExitStack() as stack:
            await _open(stack, held.target, held.agent)
    except (RuntimeError, aio.AioRpcError):
        return False
    return True
