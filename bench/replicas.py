"""Several replicas on one PostgreSQL behind a forwarder: status reports per second, and a rolling upgrade with a migration.

    python -m bench reports [--replicas 3]
    python -m bench upgrade [--agents 3000]

All settings are the defaults. The simulated agents, the forwarder and the database share the machine with the replicas.
"""

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale import CONNECTED_WITHIN, trimmed
from bench.stage import cpu_seconds, postgres_cpu_seconds, postgres_for_hubs
from tests.e2e.processes import Bench, Program, until
from tests.e2e.replicas import Replica, Replicas, replicas_of, rows
from tests.e2e.test_replicas import release_to_come

SETTLE_SECONDS = 20.0
"""How long the agents are connected before and after the upgrade: two intervals of their heartbeats."""


@dataclass(frozen=True, slots=True)
class Group:
    """Replicas that are ready, and their database's postmaster."""

    replicas: Replicas
    postmaster: int

    def asked(self, query: str) -> Any:
        """Return the first value of the first row from the database."""
        return rows(self.replicas.database, query)[0][0]

    def cpu_seconds(self) -> tuple[float, float]:
        """Return the processor time of all replicas and of the database."""
        return sum(cpu_seconds(each.process.pid) for each in self.replicas.all), postgres_cpu_seconds(self.postmaster)

    @property
    def report(self) -> Path:
        return self.replicas.bench.folder / "report.json"

    async def load(self, profile: str, agents: int, ramp: float, seconds: float, *flags: str) -> Program:
        """Start a load, and wait until all its agents are connected."""
        bench, file = self.replicas.bench, self.replicas.bench.folder / "load.bootstrap"
        create = ("create", "bootstrap-kubeconfig", "--cluster-pattern=load-*", "--uses=unlimited", "-o", str(file))
        await bench.hubctl(*create, "--allow-loopback")
        load = bench.program(
            "load",
            *("hollow", "load", profile, f"--bootstrap-kubeconfig={file}", f"--state-dir={bench.folder / 'agents'}"),
            *(f"--agents={agents}", "--processes=2", f"--ramp={ramp}s", f"--start-within={CONNECTED_WITHIN}s"),
            *(f"--report={self.report}", f"--duration={seconds}s", *flags),
        )
        await load.start()
        await self.connected(agents)
        return load

    async def connected(self, agents: int) -> None:
        await until(
            lambda: self.asked("SELECT count(*) FROM sessions") >= agents,
            what=f"{agents} sessions are open",
            within=CONNECTED_WITHIN,
        )

    async def exchange(self, replica: Replica, environment: dict[str, str], agents: int) -> dict[str, float]:
        """Replace a replica by another release. Return the seconds from SIGTERM to its end, to its readiness, to all agents."""
        began = time.monotonic()
        replica.process.send(signal.SIGTERM)
        await replica.process.says("ShutdownInitiated")
        self.replicas.leave(replica)
        if code := await replica.process.ended():
            raise RuntimeError(f"{replica.name} ended with {code}: {replica.process.output[-2000:]}")
        ended = time.monotonic()
        replica.process.environment = {"HUB_DATABASE_URL": self.replicas.database, **environment}
        await self.replicas.restart(replica)
        ready = time.monotonic()
        await self.connected(agents)
        times = {"ended_seconds": ended, "ready_seconds": ready, "all_connected_seconds": time.monotonic()}
        return {name: round(at - began, 1) for name, at in times.items()}


@asynccontextmanager
async def group_of(count: int) -> AsyncIterator[Group]:
    with postgres_for_hubs() as (url, postmaster), tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        bench = Bench(Path(folder), fresh=True)
        try:
            async with replicas_of(bench, url, "--auto-approve=load-*") as replicas:
                await replicas.start(count)
                yield Group(replicas, postmaster)
        finally:
            await bench.close()


async def reports(replicas: int = 3, agents: int = 100, per_minute: float = 600.0, seconds: float = 60.0) -> dict[str, Any]:
    """Status reports per second that replicas on one PostgreSQL acknowledge, and the processor time of each report."""
    async with group_of(replicas) as group:
        load = await group.load("churn", agents, 10.0, seconds, f"--changes-per-minute={per_minute}")
        before = group.cpu_seconds()
        await load.ended()
        hubs, database = (now - then for now, then in zip(group.cpu_seconds(), before, strict=True))
        found = trimmed(group.report)
        acknowledged = found["counts"]["reports"]
        return {
            "reports_per_second": round(acknowledged / found["seconds"], 1),
            "hub_cpu_milliseconds_per_report": round(hubs / acknowledged * 1e3, 2),
            "database_cpu_milliseconds_per_report": round(database / acknowledged * 1e3, 2),
            "load": found,
        }


async def upgrade(agents: int = 3_000, ramp: float = 420.0) -> dict[str, Any]:
    """Rolling upgrade of three replicas to a release with one more migration, while the agents are connected."""
    async with group_of(3) as group:
        with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
            to_come = release_to_come(Path(folder))
            load = await group.load("steady", agents, ramp, CONNECTED_WITHIN)
            await asyncio.sleep(SETTLE_SECONDS)
            exchanged = {each.name: await group.exchange(each, to_come, agents) for each in group.replicas.all}
            await asyncio.sleep(SETTLE_SECONDS)
            await load.stop(signal.SIGINT)
        return {
            **exchanged,
            "schema": group.asked("SELECT version_num FROM alembic_version"),
            "became_unknown": group.asked("SELECT count(*) FROM transitions WHERE status = 'Unknown'"),
            "load": trimmed(group.report),
        }
