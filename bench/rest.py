"""What an agent costs while nothing happens: processor time and memory, of a process that works and one that stands by.

    python -m bench rest [--seconds 60] [--leader-elect true] [--driver auto]

Everything runs on one machine: a hub on SQLite that approves by rule, a hollow cluster, and two processes of one agent, the
second of which stands by; with `--leader-elect false` there is no second. All settings are the defaults. Processor time is the
kernel's, in nanoseconds, over so many seconds at rest; wakes are how often a process woke up, in all its threads.
"""

import asyncio
import json
from pathlib import Path

import click

from bench.stage import CLUSTERS, Stage, is_available, memory_mib, staged
from hollow.demo.processes import Child
from machinery.errors import NotFoundError

SETTLE_SECONDS = 15.0
NAME = "edge"


@click.command()
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--leader-elect", default=True, show_default=True, type=bool)
@click.option("--driver", default="auto", show_default=True, type=click.Choice(["auto", "grpc", "csr"]))
def rest(seconds: float, *, leader_elect: bool, driver: str) -> None:
    """Childor time and memory of an agent at rest."""
    click.echo(json.dumps(asyncio.run(measure(seconds, driver, leader_elect=leader_elect)), indent=2))


async def measure(seconds: float, driver: str, *, leader_elect: bool) -> dict[str, dict[str, float]]:
    async with staged() as stage:
        await stage.start_hub("--auto-approve=*")
        arguments = (
            *("spoke", "run", f"--cluster-name={NAME}", f"--kubeconfig={await stage.start_hollow(NAME)}"),
            *(f"--bootstrap-kubeconfig={await stage.bootstrap(NAME)}", f"--registration-driver={driver}"),
            f"--leader-elect={leader_elect}",
        )
        spokes = {"works": await stage.start("spoke-works", *arguments)}
        await _available(stage)
        if leader_elect:
            spokes["stands by"] = await stage.start("spoke-stands-by", *arguments)
        await asyncio.sleep(SETTLE_SECONDS)
        before = {what: _spent(spoke) for what, spoke in spokes.items()}
        await asyncio.sleep(seconds)
        after = {what: _spent(spoke) for what, spoke in spokes.items()}
        return {what: _shown(spoke, before[what], after[what], seconds) for what, spoke in spokes.items()}


async def _available(stage: Stage) -> None:
    async with stage.client() as client:

        async def available() -> bool:
            try:
                return is_available(await client.get(f"{CLUSTERS}/{NAME}"))
            except NotFoundError:
                return False

        await stage.until(available, f"{NAME} is Available")


def _spent(spoke: Child) -> tuple[int, int]:
    """Nanoseconds on a processor, and times of waking up, of all threads."""
    nanoseconds = switches = 0
    for thread in Path(f"/proc/{spoke.pid}/task").iterdir():
        nanoseconds += int((thread / "schedstat").read_text().split()[0])
        lines = (thread / "status").read_text().splitlines()
        switches += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return nanoseconds, switches


def _shown(spoke: Child, before: tuple[int, int], after: tuple[int, int], seconds: float) -> dict[str, float]:
    pss, rss = memory_mib(spoke.pid)
    milliseconds, switches = (after[0] - before[0]) / 1e6, after[1] - before[1]
    return {
        "processor_ms_per_second": round(milliseconds / seconds, 2),
        "wakes_per_second": round(switches / seconds, 1),
        "pss_mib": round(pss, 1),
        "rss_mib": round(rss, 1),
    }
