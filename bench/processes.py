"""Start, memory and idle cost of single processes: the hub and the agent.

    python -m bench start [--trials 5]       hub: start until /readyz answers 200
    python -m bench join [--trials 7]        agent: start to Available; memory of agent and hub
    python -m bench rest [--seconds 60]      agent: processor time and memory while nothing happens

Everything runs on one machine, with a hub on SQLite that approves by rule.
"""

import asyncio
import signal
import statistics
import time
from pathlib import Path
from typing import Annotated

import click

from bench.stage import Stage, cpu_seconds, memory_mib, staged
from hollow.demo.processes import Child
from machinery.client.rest import KubeClient

JOIN_SETTLE_SECONDS, REST_SETTLE_SECONDS = 5.0, 15.0
POLL_SECONDS = 0.01

Driver = Annotated[str, click.Choice(["auto", "grpc", "csr"])]


async def start(trials: int = 5) -> dict[str, float]:
    """Start of a hub on an existing data directory until it is ready, and its processor time until then.

    The first start, which migrates and creates the CA, is not counted.
    """
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


async def join(trials: int = 7, driver: Driver = "auto") -> dict[str, float]:
    """Agent start to Available, and the memory of agent and hub.

    Each trial has its own hollow cluster, and ends its agent before the next. The time runs from the agent's exec to the first
    answer of the hub in which the cluster is Available, polled every 10 ms. Memory is read five seconds later.
    """
    times, agent_pss, agent_rss = [], [], []
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*")
        await asyncio.sleep(JOIN_SETTLE_SECONDS)
        hub_pss, hub_rss = memory_mib(hub.pid)
        async with stage.client() as client:
            for trial in range(trials):
                seconds, pss, rss = await _join_one(stage, client, f"edge-{trial}", driver)
                times.append(seconds)
                agent_pss.append(pss)
                agent_rss.append(rss)
    return {
        "trials": trials,
        "available_p50_seconds": round(statistics.median(times), 3),
        "available_max_seconds": round(max(times), 3),
        "spoke_pss_mib": round(statistics.median(agent_pss), 1),
        "spoke_rss_mib": round(statistics.median(agent_rss), 1),
        "hub_at_rest_pss_mib": round(hub_pss, 1),
        "hub_at_rest_rss_mib": round(hub_rss, 1),
    }


async def _join_one(stage: Stage, client: KubeClient, name: str, driver: str) -> tuple[float, float, float]:
    kubeconfig, bootstrap = await stage.start_hollow(name), await stage.bootstrap(name)
    began = time.monotonic()
    agent = await stage.start(
        f"spoke-{name}",
        *("spoke", "run", f"--cluster-name={name}", f"--kubeconfig={kubeconfig}", f"--bootstrap-kubeconfig={bootstrap}"),
        *(f"--hub-kubeconfig-dir={stage.folder / name}", f"--registration-driver={driver}"),
    )
    await stage.until_available(client, name, every=POLL_SECONDS)
    took = time.monotonic() - began
    await asyncio.sleep(JOIN_SETTLE_SECONDS)
    pss, rss = memory_mib(agent.pid)
    agent.send(signal.SIGTERM)
    await agent.ended()
    return took, pss, rss


async def rest(
    seconds: float = 60.0, *, leader_elect: Annotated[bool, click.BOOL] = True, driver: Driver = "auto"
) -> dict[str, dict[str, float]]:
    """Processor time, wake-ups and memory of an agent at rest: its active process and its standby process.

    All settings are the defaults. With `--leader-elect false` there is no standby process. Processor time is the kernel's, in
    nanoseconds; wake-ups are the voluntary context switches of all threads.
    """
    async with staged() as stage:
        await stage.start_hub("--auto-approve=*")
        arguments = (
            *("spoke", "run", "--cluster-name=edge", f"--kubeconfig={await stage.start_hollow('edge')}"),
            *(f"--bootstrap-kubeconfig={await stage.bootstrap('edge')}", f"--registration-driver={driver}"),
            f"--leader-elect={leader_elect}",
        )
        agents = {"active": await stage.start("spoke-active", *arguments)}
        async with stage.client() as client:
            await stage.until_available(client, "edge")
        if leader_elect:
            agents["standby"] = await stage.start("spoke-standby", *arguments)
        await asyncio.sleep(REST_SETTLE_SECONDS)
        before = {role: _spent(agent) for role, agent in agents.items()}
        await asyncio.sleep(seconds)
        found = {}
        for role, agent in agents.items():
            nanoseconds, switches = (now - then for now, then in zip(_spent(agent), before[role], strict=True))
            pss, rss = memory_mib(agent.pid)
            found[role] = {
                "processor_ms_per_second": round(nanoseconds / 1e6 / seconds, 2),
                "wakes_per_second": round(switches / seconds, 1),
                "pss_mib": round(pss, 1),
                "rss_mib": round(rss, 1),
            }
        return found


def _spent(agent: Child) -> tuple[int, int]:
    """Return nanoseconds on a processor, and voluntary context switches, of all threads."""
    nanoseconds = switches = 0
    for thread in Path(f"/proc/{agent.pid}/task").iterdir():
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
        lines = (thread / "status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return nanoseconds, switches
