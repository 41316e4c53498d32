"""Many simulated agents at one replica with default settings: joins, steady sessions, a restart, renewals, a long churn.

    python -m bench scale [--agents 10000] [--phases steady,restart] [--postgres]
    python -m bench scale [--agents 3000] --phases restore

The hub, its database and `hollow load` share the machine. The phases use one hub, one after the other. First all agents join.
Each later phase opens all sessions again before it measures.
"""

import asyncio
import contextlib
import json
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import click
from sqlalchemy import create_engine, text

from bench.stage import CLUSTERS, Stage, cpu_seconds, memory_mib, postgres_cpu_seconds, postgres_for_hubs, staged
from hollow.demo.processes import Child, ask
from machinery.client.rest import KubeClient

API = "hub.open-cluster-management.io/v1alpha1"
RULE = {
    "apiVersion": API,
    "kind": "ApprovalRule",
    "metadata": {"name": "load"},
    "spec": {"decides": ["Accept", "Approve"], "requesters": [{"kind": "BootstrapCredential"}], "clusterNames": ["load-*"]},
}
SESSIONS, TRANSITIONS = "muster_hub_sessions", "muster_hub_cluster_transitions_total"
SAMPLE_SECONDS, CONNECTED_WITHIN, BACK_WITHIN, REOPENED_OVER = 10.0, 1_200.0, 300.0, 240.0
PAGES, PAUSE_BETWEEN_PAGES, PROCESSES = 300, 0.1, 2
MIB, HOUR, DAY_MICROSECONDS = 1024.0 * 1024.0, 3600.0, 86_400_000_000
HISTORY_DAYS, CHANGES_PER_DAY = 29, 3
HISTORY = (
    "INSERT INTO changes SELECT (SELECT max(revision) FROM changes) + row_number() OVER (), ?, c.actor, o.kind, o.namespace,"
    " o.name, 'MODIFIED', o.document, c.labels_before, c.fields_before"
    " FROM objects o JOIN changes c ON c.revision = o.revision WHERE o.kind LIKE 'managedclusters.%'"
)
DATABASE = (
    "SELECT pg_database_size(datname), pg_current_wal_lsn() - '0/0'::pg_lsn, xact_commit, numbackends"
    " FROM pg_stat_database WHERE datname = current_database()"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of the hub and its database at one moment, in seconds and MiB.

    `database`: with SQLite the sizes of its files; with PostgreSQL its size, the WAL written so far, transactions, connections.
    """

    at: float
    hub_cpu: float
    hub_pss: float
    database_cpu: float
    database: dict[str, float]


@dataclass
class ScaleRun:
    """One hub and its load. `postgres`: URL and postmaster of the hub's database; None: SQLite.

    `changes`: of each cluster's status during a churn. `flags`: further flags of the hub. `spent`: processor time in seconds of
    hubs that have ended.
    """

    stage: Stage
    client: KubeClient
    agents: int
    ramp: float
    postgres: tuple[str, int] | None
    changes: float
    flags: Sequence[str] = ()
    spent: float = 0.0

    @property
    def hub(self) -> Child:
        return cast("Child", self.stage.hub)

    def sample(self) -> Sample:
        sizes, database_cpu = {}, 0.0
        if self.postgres is None:
            sizes = {each.name: each.stat().st_size / MIB for each in (self.stage.folder / "hub").glob("hub.db*")}
        else:
            database_cpu = postgres_cpu_seconds(self.postgres[1])
            with create_engine(self.postgres[0]).connect() as connection:
                size, wal, transactions, connections = connection.execute(text(DATABASE)).one()
            sizes = {"size": size / MIB, "wal": float(wal) / MIB, "transactions": transactions, "connections": connections}
        return Sample(
            time.monotonic(), self.spent + cpu_seconds(self.hub.pid), memory_mib(self.hub.pid)[0], database_cpu, sizes
        )

    async def total(self, metric: str, label: str = "") -> float:
        """Return the sum of the values of a metric whose labels contain `label`."""
        lines = (await self.client.raw("GET", "/metrics")).body.decode().splitlines()
        samples = [line.rpartition(" ") for line in lines if label in line]
        return sum(float(value) for series, _, value in samples if series.partition("{")[0] == metric)

    async def until_connected(self, within: float = CONNECTED_WITHIN) -> None:
        await self.until_sessions(lambda count: count >= self.agents, f"{self.agents} sessions are open", within)

    async def until_sessions(self, fits: Callable[[float], bool], what: str, within: float = CONNECTED_WITHIN) -> None:
        """Wait until the number of open sessions at the hub fits."""

        async def is_reached() -> bool:
            with contextlib.suppress(Exception):  # the hub is starting
                return fits(await self.total(SESSIONS))
            return False

        await self.stage.until(is_reached, what, within=within, every=0.5)

    async def end_hub(self, number: signal.Signals) -> None:
        self.spent += cpu_seconds(self.hub.pid)
        self.hub.send(number)
        await self.hub.ended()

    async def back_since(self, began: float) -> dict[str, float]:
        """Start the hub, and wait until all sessions are back. Return the seconds since this time."""
        await self.stage.start_hub(*self.flags)
        ready = time.monotonic() - began
        await self.until_connected(BACK_WITHIN)
        return {"ready_seconds": round(ready, 1), "all_back_seconds": round(time.monotonic() - began, 1)}

    async def load(
        self, name: str, profile: str, seconds: float, during: Callable[["ScaleRun"], Awaitable[Any]] | None = None
    ) -> dict[str, Any]:
        """Run a profile for so long. Call `during` when all agents are connected. Sample the hub until the load ends."""
        await self.until_sessions(lambda count: count == 0, "the sessions of the last phase have ended")
        folder, report = self.stage.folder, self.stage.folder / f"{name}.json"
        ramp = self.ramp if profile == "join" else min(self.ramp, REOPENED_OVER)
        load = await self.stage.start(
            f"load-{name}",
            *("hollow", "load", profile, f"--bootstrap-kubeconfig={folder / 'load-all.bootstrap'}", f"--report={report}"),
            *(f"--state-dir={folder / 'agents'}", f"--agents={self.agents}", f"--processes={PROCESSES}"),
            *([f"--changes-per-minute={self.changes / seconds * 60}"] if profile == "churn" else []),
            *(f"--ramp={ramp}s", f"--duration={seconds}s", f"--start-within={CONNECTED_WITHIN}s"),
        )
        if profile != "join":
            await self.until_connected()
        samples, unknown = [self.sample()], await self.total(TRANSITIONS, "Unknown")
        working = asyncio.ensure_future(during(self)) if during else None
        ending = asyncio.ensure_future(load.ended())
        while not ending.done():
            await asyncio.wait({ending}, timeout=SAMPLE_SECONDS)
            if working and working.done():
                working.result()  # raises its error now, not when the load ends
            if self.hub.exit_code is None:
                samples.append(self.sample())
        if working and not (await asyncio.wait({working}, timeout=SAMPLE_SECONDS))[0]:
            working.cancel()  # agents that have stopped renew no certificate
            working = None
        found = await working if working else None
        if not report.exists():
            raise RuntimeError(f"{name}: the load {load.how_it_ended()}: {load.last_words()}")
        unknown = await self.total(TRANSITIONS, "Unknown") - (0.0 if during in (restart, restore) else unknown)
        return {**described(samples), "became_unknown": unknown, "found": found, "load": trimmed(report)}


async def read_pages(run: ScaleRun) -> dict[str, float]:
    """Read a page of 100 clusters again and again. Milliseconds per request."""
    samples = []
    for _ in range(PAGES):
        began = time.perf_counter()
        await run.client.raw("GET", CLUSTERS, query={"limit": "100"})
        samples.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(PAUSE_BETWEEN_PAGES)
    return {"p50_ms": round(statistics.median(samples), 1), "p99_ms": round(statistics.quantiles(samples, n=100)[-1], 1)}


async def restart(run: ScaleRun) -> dict[str, float]:
    """Kill the hub, start it again, and wait until all sessions are back."""
    began = time.monotonic()
    await run.end_hub(signal.SIGKILL)
    return await run.back_since(began)


def write_history(database: Path) -> None:
    """Change a database as if its clusters had joined 29 days ago, and each had changed three times a day since then."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        ((now,),) = connection.execute("SELECT max(at) FROM changes")
        connection.execute("UPDATE changes SET at = at - ?", (HISTORY_DAYS * DAY_MICROSECONDS,))
        for back in range(HISTORY_DAYS * CHANGES_PER_DAY - 1, 0, -1):
            connection.execute(HISTORY, (now - back * DAY_MICROSECONDS // CHANGES_PER_DAY,))
        connection.execute("UPDATE revision SET value = (SELECT max(revision) FROM changes)")


async def restore(run: ScaleRun) -> dict[str, float]:
    """Write a history and a backup, kill the hub, remove all its files, restore the backup, and wait for all sessions."""
    folder, backup = run.stage.folder, run.stage.folder / "backup.zip"
    (folder / "passphrase").write_text("a passphrase of this benchmark")
    options = (f"--data-dir={folder / 'hub'}", f"--passphrase-file={folder / 'passphrase'}", str(backup))
    await run.end_hub(signal.SIGTERM)
    await asyncio.to_thread(write_history, folder / "hub" / "hub.db")
    await run.back_since(time.monotonic())
    times = []
    for command in ("backup", "restore"):
        began = time.monotonic()
        if command == "restore":
            await run.end_hub(signal.SIGKILL)
            (folder / "hub").rename(folder / "lost-hub")
        if (ended := await ask([sys.executable, "-m", "hub", command, *options], CONNECTED_WITHIN)).returncode:
            raise RuntimeError(ended.stderr)
        times.append(round(time.monotonic() - began, 1))
    sizes = {"database_mib": (folder / "hub" / "hub.db").stat().st_size / MIB, "backup_mib": backup.stat().st_size / MIB}
    return {"backup_seconds": times[0], "restored_seconds": times[1], **sizes, **await run.back_since(began)}


def renew_within(seconds: float) -> Callable[[ScaleRun], Awaitable[dict[str, float]]]:
    """Return an action that makes all agents renew within this time, and waits until each has a new certificate."""

    async def renew(run: ScaleRun) -> dict[str, float]:
        began, options = time.monotonic(), ("--all", "--yes", "--wait", f"--within={seconds:g}s")
        await run.stage.hubctl("rotate", "cluster", *options, within=2 * seconds)
        return {"all_renewed_seconds": round(time.monotonic() - began, 1)}

    return renew


def described(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return processor use, memory, size of the database, and the growth per hour during the second half."""
    first, last, later = samples[0], samples[-1], samples[len(samples) // 2 :]
    seconds = max(last.at - first.at, 1e-3)

    def growth(value: Callable[[Sample], float]) -> float:
        if len(later) < 2:
            return 0.0
        return round(statistics.linear_regression([each.at for each in later], [value(each) for each in later]).slope * HOUR, 1)

    def size_of(name: str) -> Callable[[Sample], float]:
        return lambda sample: sample.database.get(name, 0.0)

    return {
        "seconds": round(seconds, 1),
        "hub_core": round((last.hub_cpu - first.hub_cpu) / seconds, 4),
        "database_core": round((last.database_cpu - first.database_cpu) / seconds, 4),
        "hub_pss_mib": {"last": round(last.hub_pss, 1), "max": round(max(each.hub_pss for each in samples), 1)},
        "database": {name: round(value, 1) for name, value in last.database.items()},
        "growth_per_hour": {
            "hub_pss": growth(lambda each: each.hub_pss),
            **{each: growth(size_of(each)) for each in last.database},
        },
    }


def trimmed(report: Path) -> dict[str, Any]:
    """Return the part of a load's report that shows results."""
    found = json.loads(report.read_text())
    lag = found["generator"]["lag"]["p99"]
    latencies = {name: {point: each[point] for point in ("p50", "p99", "max")} for name, each in found["latencies"].items()}
    return {
        **{key: found[key] for key in ("verdict", "reasons", "seconds", "counts", "errors")},
        "latencies": latencies,
        "lag_p99": lag,
    }


async def scale(
    agents: int = 10_000,
    *,
    ramp: Annotated[float, "Seconds over which the agents join."] = 170.0,
    phases: Annotated[
        str, "Phases after the join, in this order. A further one: restore, only on SQLite."
    ] = "steady,pages,restart,renew,churn",
    steady: Annotated[float, "Seconds that are measured with steady sessions."] = 600.0,
    renewal: Annotated[float, "Seconds over which all certificates are renewed."] = 3_600.0,
    churn: Annotated[float, "Seconds in which statuses change; meanwhile all certificates are renewed."] = 7_200.0,
    changes: Annotated[float, "Changes of each cluster's status during the churn; the default is those of a day."] = 24.0,
    postgres: Annotated[bool, "On a PostgreSQL of the tests. Without it: SQLite."] = False,
) -> dict[str, Any]:
    """Many simulated agents at one replica; with the defaults about four hours. Progress is written to standard error."""
    actions: dict[str, tuple[str, float, Callable[[ScaleRun], Awaitable[Any]] | None]] = {
        "steady": ("steady", steady, None),
        "pages": ("steady", PAGES * PAUSE_BETWEEN_PAGES * 2, read_pages),
        "restart": ("steady", BACK_WITHIN, restart),
        "restore": ("steady", BACK_WITHIN * 2, restore),
        "renew": ("steady", renewal * 1.1, renew_within(renewal)),
        "churn": ("churn", churn, renew_within(min(renewal, churn * 0.9))),
    }
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as database:
        server = database.enter_context(postgres_for_hubs()) if postgres else None
        async with staged() as stage:
            flags = [stage.shared_keys()] if postgres else []
            await stage.start_hub(*flags)
            async with stage.client() as client:
                await client.create(f"/apis/{API}/approvalrules", RULE)
                await stage.bootstrap("load-*", "--uses=unlimited", "--expires=24h")
                run = ScaleRun(stage, client, agents, ramp, server, changes, flags)
                for name, (profile, seconds, during) in {"join": ("join", 0.0, None), **actions}.items():
                    if name != "join" and name not in phases.split(","):
                        continue
                    found[name] = await run.load(name, profile, seconds, during)
                    click.echo(json.dumps({name: found[name]}), err=True)
    return found
