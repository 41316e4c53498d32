"""What the past takes and costs: growth of the database, reads of the past, and what writers notice when it is trimmed.

    python -m bench retention [--clusters 1000] [--changes 24] [--database postgresql://...]

A store alone, with ManagedClusters of 3.3 kB whose status changes so often a day; the day passes on a clock of the store's own.
Then everything but the watch window is forgotten at once, by the hub's own controller, while one writer writes on.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from bench.door import document, fill
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.objects.history import Keeping
from hub.controllers.clock_guard import Steadiness
from hub.controllers.hub.compaction import Compaction
from hub.ports import Store, Transaction
from hub.registry.generic import history
from hub.store import SqlStore
from machinery.meta.objects import Key, Query
from machinery.runtime.clock import ManualClock, SystemClock

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TOGETHER = 50
"""Changes in one transaction."""
READS, WRITES = 20, 200
MIB = 2**20


@click.command()
@click.option("--clusters", default=1_000, show_default=True)
@click.option("--changes", default=24, show_default=True, help="Of each cluster, in a day.")
@click.option("--database", default="", help="An empty PostgreSQL database; without it SQLite.")
def retention(clusters: int, changes: int, database: str) -> None:
    """Growth, reads of the past, and trimming."""
    with TemporaryDirectory() as folder:
        url = database or f"sqlite:///{Path(folder) / 'hub.db'}"
        click.echo(json.dumps(asyncio.run(measure(url, clusters, changes)), indent=2))


async def measure(url: str, clusters: int, changes: int) -> dict[str, Any]:
    """The figures, by name."""
    await fill(url, clusters)
    clock = ManualClock(datetime.now(UTC))
    store = SqlStore(url, clock=clock)
    await store.open()
    try:
        before = (await store.read(history.standing)).volume.size
        for turn in range(changes):
            for first in range(0, clusters, TOGETHER):
                await store.run(_report, range(first, min(first + TOGETHER, clusters)), turn)
            clock.advance(DAY / changes)
            await _kept(store, 30 * DAY)
        standing = await store.read(history.standing)
        grown = standing.volume.size - before
        found = {
            "database_before_mib": round(before / MIB, 1),
            "growth_mib_per_1000_clusters_and_day": round(grown / MIB / clusters * 1_000, 1),
            "bytes_per_change": round(grown / clusters / changes),
            "log_counted_mib": round(standing.ledger.bytes / MIB, 1),
        }
        return found | await _reads(store) | await _trimmed(store, clock, clusters * changes)
    finally:
        await store.close()


def _report(tx: Transaction, numbers: range, turn: int) -> None:
    for number in numbers:
        made = document(number)
        made["status"]["allocatable"] |= {"memory": f"{393_860 - turn}Ki"}
        made["status"]["conditions"][2] |= {"lastTransitionTime": f"2026-11-21T{turn % 24:02}:{turn // 24 % 60:02}:00Z"}
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", made["metadata"]["name"]))
        tx.objects.put(MANAGED_CLUSTERS, made, old, "agent")


async def _kept(store: Store, past: timedelta) -> None:
    """What is older goes."""
    believed = Steadiness(SystemClock(), timedelta())
    subject = Compaction(store, Keeping(HOUR, past, 2**50, HOUR, 90 * DAY, 90 * DAY, reserve=0), believed)
    pause = await subject.reconcile("all")
    while pause is not None:
        await asyncio.sleep(pause.total_seconds())
        pause = await subject.reconcile("all")


async def _reads(store: Store) -> dict[str, float]:
    """Median milliseconds."""
    place = await store.read(lambda tx: tx.changes.position(tx.now - DAY / 2))
    key = Key("", document(7)["metadata"]["name"])
    page, of = Query(at=place, past=True, limit=500), MANAGED_CLUSTERS
    return {
        "instant_to_revision_ms": await _took(lambda: store.read(lambda tx: tx.changes.position(tx.now - DAY / 2))),
        "one_object_as_it_was_ms": await _took(lambda: store.read(lambda tx: tx.changes.one_at(MANAGED_CLUSTERS, key, place))),
        "page_of_500_as_it_was_ms": await _took(lambda: store.read(lambda tx: tx.objects.find(MANAGED_CLUSTERS, page))),
        "hundred_changes_of_one_ms": await _took(lambda: store.read(lambda tx: tx.changes.past(of, key, limit=100))),
    }


async def _took(ask: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e3, 2)


async def _trimmed(store: Store, clock: ManualClock, rows: int) -> dict[str, float]:
    """What a writer waits for, before and while the whole day is forgotten."""
    over = asyncio.Event()
    over.set()
    calm = await _writes(store, over)
    clock.advance(2 * HOUR)
    done = asyncio.Event()
    writing = asyncio.create_task(_writes(store, done))
    began, cpu = time.perf_counter(), time.process_time()
    await _kept(store, HOUR)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    done.set()
    busy = await writing
    return {
        "trimmed_rows_per_s": round(rows / seconds),
        "process_cpu_us_per_row_writer_included": round(spent / rows * 1e6),
        "write_p50_ms_calm": calm[0],
        "write_p99_ms_calm": calm[1],
        "write_p50_ms_trimming": busy[0],
        "write_p99_ms_trimming": busy[1],
        "write_longest_ms_trimming": busy[2],
    }


async def _writes(store: Store, done: asyncio.Event) -> tuple[float, float, float]:
    """Median, 99th percentile and longest of writes one after the other: WRITES of them at least, and until all is done."""
    times: list[float] = []
    while len(times) < WRITES or not done.is_set():
        began = time.perf_counter()
        await store.run(_report, range(1), len(times))
        times.append(time.perf_counter() - began)
    ranked = sorted(1e3 * each for each in times)
    return round(ranked[len(ranked) // 2], 1), round(ranked[len(ranked) * 99 // 100], 1), round(ranked[-1], 1)
