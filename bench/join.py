"""How long a spoke takes from its start to Available, and what spoke and hub hold.

    python -m bench join [--trials 7] [--driver csr]

Everything runs on one machine: a hub on SQLite that approves by rule, and per trial a hollow cluster and a spoke (started
one after the other, each spoke ended before the next). The time runs from the spoke's exec to the first answer of the hub's
HTTPS door in which the cluster is Available, looked at every 10 ms. Memory is read five seconds later.
"""

import asyncio
import json
import signal
import statistics
import time

import click

from bench.stage import CLUSTERS, Stage, is_available, memory_mib, staged
from machinery.client.rest import KubeClient
from machinery.errors import NotFoundError

SETTLE_SECONDS = 5.0
LOOK_EVERY_SECONDS = 0.01


@click.command()
@click.option("--trials", default=7, show_default=True)
@click.option("--driver", default="auto", show_default=True, type=click.Choice(["auto", "grpc", "csr"]))
def join(trials: int, driver: str) -> None:
    """Spoke start to Available, memory of spoke and hub."""
    click.echo(json.dumps(asyncio.run(measure(trials, driver)), indent=2))


async def measure(trials: int, driver: str) -> dict[str, float]:
    times, spoke_pss, spoke_rss = [], [], []
    async with staged() as stage:
        hub = await stage.start_hub("--auto-approve=*")
        await asyncio.sleep(SETTLE_SECONDS)
        hub_pss, hub_rss = memory_mib(hub.pid)
        async with stage.client() as client:
            for trial in range(trials):
                seconds, pss, rss = await _one(stage, client, f"edge-{trial}", driver)
                times.append(seconds)
                spoke_pss.append(pss)
                spoke_rss.append(rss)
    return {
        "trials": trials,
        "available_p50_seconds": round(statistics.median(times), 3),
        "available_max_seconds": round(max(times), 3),
        "spoke_pss_mib": round(statistics.median(spoke_pss), 1),
        "spoke_rss_mib": round(statistics.median(spoke_rss), 1),
        "hub_at_rest_pss_mib": round(hub_pss, 1),
        "hub_at_rest_rss_mib": round(hub_rss, 1),
    }


async def _one(stage: Stage, client: KubeClient, name: str, driver: str) -> tuple[float, float, float]:
    kubeconfig, bootstrap = await stage.start_hollow(name), await stage.bootstrap(name)

    async def available() -> bool:
        try:
            return is_available(await client.get(f"{CLUSTERS}/{name}"))
        except NotFoundError:
            return False

    began = time.monotonic()
    spoke = await stage.start(
        f"spoke-{name}",
        *("spoke", "run", f"--cluster-name={name}", f"--kubeconfig={kubeconfig}", f"--bootstrap-kubeconfig={bootstrap}"),
        *(f"--hub-kubeconfig-dir={stage.folder / name}", f"--registration-driver={driver}"),
    )
    await stage.until(available, f"{name} is Available", every=LOOK_EVERY_SECONDS)
    took = time.monotonic() - began
    await asyncio.sleep(SETTLE_SECONDS)
    pss, rss = memory_mib(spoke.pid)
    spoke.send(signal.SIGTERM)
    await spoke.ended()
    return took, pss, rss
