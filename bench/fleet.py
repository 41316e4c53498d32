"""A long run of a small fleet with a fault every few seconds; after each fault every cluster must be Available again.

    python -m bench.fleet [--clusters 4] [--minutes 10] [--seed 1]

Real processes on one machine: a hub on SQLite that approves by rule, hollow clusters, and one agent each. The seed determines
the faults: an agent or the hub killed or stopped, a cluster's API server that fails. The run fails when a cluster is not
Available with new beats within a minute. It prints memory and open files of the hub at the start and at the end, which should
not grow with the number of faults.
"""

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

import click

from bench.stage import CLUSTERS, Stage, is_available, memory_mib, staged
from hollow.demo.processes import Child, ask
from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from machinery.meta.timestamps import parse_time
from machinery.runtime.clock import SystemClock

RECOVERED_WITHIN = 60.0
FLAGS = ("--auto-approve=*", "--default-lease-duration=2s", "--beat-interval=500ms", "--flush-window=200ms")


class Fleet:
    """The fleet and the faults so far."""

    def __init__(self, stage: Stage, clusters: int, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self.recoveries: list[float] = []
        self._stage = stage
        self._names = [f"edge-{index}" for index in range(clusters)]
        self._random = random
        self._faults: tuple[Callable[[], Awaitable[str]], ...] = (
            partial(self._end_spoke, signal.SIGKILL),
            partial(self._end_spoke, signal.SIGTERM),
            partial(self._end_hub, signal.SIGKILL),
            partial(self._end_hub, signal.SIGTERM),
            self._api_server_fault,
        )
        self._spokes: dict[str, Child] = {}
        self._kubeconfigs: dict[str, Path] = {}
        self._bootstraps: dict[str, Path] = {}

    async def begin(self) -> None:
        await self._stage.start_hub(*FLAGS)
        for name in self._names:
            self._kubeconfigs[name] = await self._stage.start_hollow(name)
            self._bootstraps[name] = await self._stage.bootstrap(name)
            await self._start_spoke(name)
        await self._recovered()

    async def fault(self) -> None:
        """Cause one fault, and wait until the fleet has recovered."""
        self.counts[await self._random.choice(self._faults)()] += 1
        began = time.monotonic()
        await self._recovered()
        self.recoveries.append(time.monotonic() - began)

    def held(self) -> dict[str, float]:
        """Memory and number of open files of the hub."""
        assert self._stage.hub is not None
        pid = self._stage.hub.pid
        return {"pss_mib": round(memory_mib(pid)[0], 1), "files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}

    async def _start_spoke(self, name: str) -> None:
        self._spokes[name] = await self._stage.start(
            f"spoke-{name}",
            *("spoke", "run", f"--kubeconfig={self._kubeconfigs[name]}", f"--bootstrap-kubeconfig={self._bootstraps[name]}"),
        )

    async def _end_spoke(self, number: signal.Signals) -> str:
        name = self._random.choice(self._names)
        self._spokes[name].send(number)
        await self._spokes[name].ended()
        await self._start_spoke(name)
        return f"spoke {number.name}"

    async def _end_hub(self, number: signal.Signals) -> str:
        assert self._stage.hub is not None
        self._stage.hub.send(number)
        await self._stage.hub.ended()
        await self._stage.start_hub(*FLAGS)
        return f"hub {number.name}"

    async def _api_server_fault(self) -> str:
        name = self._random.choice(self._names)
        fault = self._random.choice(["slow=500ms", "error", "not-live", "refuse-secret-writes"])
        await self._switch(name, fault)
        await asyncio.sleep(self._random.uniform(1, 5))
        await self._switch(name, "none")
        return f"cluster {fault}"

    async def _switch(self, name: str, fault: str) -> None:
        """Switch the fault on or off; the cluster may need several attempts."""

        async def accepted() -> bool:
            command = (sys.executable, "-m", "hollow", "fault", f"--kubeconfig={self._kubeconfigs[name]}", fault)
            answer = await ask(command)
            return answer.returncode == 0

        await self._stage.until(accepted, f"{name} takes {fault}", every=0.5)

    async def _recovered(self) -> None:
        """Wait until every cluster is Available and its agent has beaten since."""
        since = SystemClock().now()

        async def recovered() -> bool:
            try:
                async with self._stage.client() as client:
                    return all([await self._beats(client, name, since) for name in self._names])
            except (MusterError, OSError):
                return False

        await self._stage.until(recovered, "every cluster is Available and beats", within=RECOVERED_WITHIN, every=0.2)

    @staticmethod
    async def _beats(client: KubeClient, name: str, since: datetime) -> bool:
        lease = await client.get(f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases/managed-cluster-lease")
        renewed = lease["spec"].get("renewTime")
        beats = bool(renewed) and parse_time(renewed) > since
        return beats and is_available(await client.get(f"{CLUSTERS}/{name}"))


async def run(clusters: int, minutes: float, seed: int) -> dict[str, object]:
    async with staged() as stage:
        fleet = Fleet(stage, clusters, Random(seed))  # noqa: S311 - draws faults
        await fleet.begin()
        held = [fleet.held()]
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            await fleet.fault()
            held.append(fleet.held())
            click.echo(
                f"{sum(fleet.counts.values()):4d} faults, back after {fleet.recoveries[-1]:.1f} s, hub {held[-1]}", err=True
            )
        return {
            "faults": dict(fleet.counts),
            "slowest_recovery_seconds": round(max(fleet.recoveries, default=0), 1),
            "hub_first": held[0],
            "hub_last": held[-1],
        }


@click.command(help=__doc__)
@click.option("--clusters", default=4, show_default=True)
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(clusters: int, minutes: float, seed: int) -> None:
    click.echo(json.dumps(asyncio.run(run(clusters, minutes, seed)), indent=2))


if __name__ == "__main__":
    main()
