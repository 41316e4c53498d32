"""Certificates and session starts: many agents at a hub that runs as a process on SQLite.

python -m bench issuance [--requests 300]            seconds until all CSRs that arrive at once are issued
python -m bench sessions [--agents 200] [--rounds 3] processor time of the hub per session start
"""

import asyncio
import time
from typing import Annotated

from bench.agents import Agent, Target, bootstrap, open_session, register, register_many, request_for
from bench.stage import cpu_seconds, staged
from machinery.wire.session.v1 import session_pb2 as wire

AT_ONCE = 16


async def issuance(requests: int = 300) -> dict[str, float]:
    """Time until many certificates are issued whose CSRs arrive at once.

    Each request has its own connection; keys and requests are made before. The time runs from the first dial to the last
    certificate: TLS handshakes, registration of the cluster, the request, its approval by rule, the signatures (agent and
    recovery certificate each) and the answer.
    """
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


async def sessions(agents: int = 200, rounds: Annotated[int, "How often each agent opens a session."] = 3) -> dict[str, float]:
    """Processor time of the hub per session: TLS handshake, welcome, first acknowledged heartbeat, end.

    Each session has its own connection. All agents have their certificates before.
    """
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
        async with slots, target.channel(agent.credential) as channel:
            call = await open_session(channel, agent)
            beat = wire.Beat(sequence=1, verdict=wire.VERDICT_AVAILABLE)
            await call.write(wire.AgentMessage(beat=beat).SerializeToString())
            while wire.HubMessage.FromString(await call.read()).WhichOneof("message") != "beat_ack":
                pass
            call.cancel()

    await asyncio.gather(*(one(agent) for agent in agents))
