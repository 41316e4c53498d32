"""What the probe of the managed cluster's API server costs while it is healthy: requests, bytes, the agent's processor time.

    python -m bench probe [--seconds 60]

A hollow cluster as a process, and in this process the probe alone, as an agent runs it, over one connection with TLS. Bytes are
those of TCP, in both directions, of a minute's requests in a row through a forwarder.
"""

import asyncio
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import click

from bench.stage import staged
from machinery.client.rest import KubeClient
from machinery.runtime.clock import SystemClock
from spoke.cluster.health import AvailabilityWatch
from spoke.cluster.kubernetes_cluster import KubeCluster
from spoke.domain.status import PROBE_PERIOD
from spoke.ports import ApiServerHealth
from tests.fakes.forwarder import Forwarder

MINUTE = 60.0


class Counted(KubeCluster):
    """A cluster whose probes are counted."""

    probes = 0

    async def health(self) -> ApiServerHealth:
        self.probes += 1
        return await super().health()


@click.command()
@click.option("--seconds", default=60.0, show_default=True)
def probe(seconds: float) -> None:
    """Cost of the probe of a healthy cluster."""
    click.echo(json.dumps(asyncio.run(measure(seconds)), indent=2))


async def measure(seconds: float) -> dict[str, float]:
    async with staged() as stage:
        kubeconfig = await stage.start_hollow("edge")
        async with await KubeClient.from_file(kubeconfig) as client:
            cluster = Counted(client)
            watch = AvailabilityWatch(cluster, SystemClock())
            await watch.look()  # connects
            probes, spent = cluster.probes, time.process_time()
            try:
                async with asyncio.timeout(seconds):
                    await watch.run()
            except TimeoutError:
                spent = time.process_time() - spent
            requests = (cluster.probes - probes) * MINUTE / seconds
        return {
            "requests_per_minute": round(requests, 1),
            "bytes_per_minute": await _bytes(kubeconfig, round(MINUTE / PROBE_PERIOD.total_seconds())),
            "processor_ms_per_minute": round(spent * 1e3 * MINUTE / seconds, 1),
        }


async def _bytes(kubeconfig: Path, requests: int) -> int:
    """Of so many probes over a connection that is open."""
    text = await asyncio.to_thread(kubeconfig.read_text)
    server = next(line.split("server:")[1].strip() for line in text.splitlines() if "server:" in line)
    port = urlsplit(server).port or 0
    async with Forwarder(port).serving() as path:
        there = kubeconfig.with_suffix(".forwarded")
        await asyncio.to_thread(there.write_text, text.replace(f":{port}", f":{path.port}"))
        async with await KubeClient.from_file(there) as client:
            cluster = KubeCluster(client)
            await cluster.health()
            before = path.up + path.down
            for _ in range(requests):
                await cluster.health()
            return path.up + path.down - before
