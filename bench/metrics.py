"""What metrics cost: a scrape of a large fleet, and counting one heartbeat.

    python -m bench metrics [--clusters 10000] [--scrapes 20]

A store on SQLite with so many clusters, each with a condition, a version and an agent's certificate on record. `look`: the
processor time of one look at the fleet on a thread of the store, which the hub takes at most every five seconds however many
scrape it; `text`: of writing everything down on the event loop, at each scrape; both in milliseconds. `beat`: of counting one
heartbeat at its flush, in microseconds, the least of many runs.
"""

import asyncio
import json
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

import click

from hub.api.certificateauthorities.authority import AgentTrust
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.cluster import JoinRequest, joining_document
from hub.api.meta import document as doc
from hub.metrics.fleet import EVERY, add_fleet
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from hub.store import SqlStore
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.observability.metrics import Distribution, Registry
from machinery.runtime.clock import ManualClock

AT_ONCE = 500
BEATS, RUNS = 1_000, 200
RESERVE = 2**28


@click.command()
@click.option("--clusters", default=10_000, show_default=True)
@click.option("--scrapes", default=20, show_default=True)
def metrics(clusters: int, scrapes: int) -> None:
    """What a scrape and the counting of a heartbeat cost."""
    click.echo(json.dumps(asyncio.run(measure(clusters, scrapes)), indent=2))


async def measure(count: int, scrapes: int) -> dict[str, float]:
    """Milliseconds of `look` and `text`, with and without a series for each cluster, and microseconds of a `beat`."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(f"sqlite:///{Path(folder) / 'hub.db'}")
        await store.open()
        for first in range(0, count, AT_ONCE):
            await store.run(_populate, range(first, min(first + AT_ONCE, count)))
        figures: dict[str, float] = {"clusters": count}
        for name, detailed in (("", False), ("_per_cluster", True)):
            looks, texts = await _scraped(store, scrapes, detailed=detailed)
            figures |= {f"look{name}_ms": round(looks, 2), f"text{name}_ms": round(texts, 2)}
        await store.close()
    return {**figures, "beat_us": round(_beat(), 3)}


def _populate(tx: Transaction, numbers: range) -> None:
    for number in numbers:
        name = ClusterName(f"cluster-{number:05}")
        new = joining_document(JoinRequest(name, f"uid-{number}", AgentId("xk7pq")), timedelta(seconds=60))
        known = doc.with_status_condition(new, rules.AVAILABLE if number % 10 else rules.SILENT, tx.now)
        version = {"kubernetes": f"v1.{28 + number % 6}.{number % 9}"}
        clusters.put(tx, {**known, "status": {**known["status"], "version": version}}, None, "bench")
        tx.trusts.put(
            AgentTrust(name, AgentId("xk7pq"), None, SerialNumber(number), tx.now, tx.now + timedelta(days=9), None, tx.now)
        )


async def _scraped(store: SqlStore, scrapes: int, *, detailed: bool) -> tuple[float, float]:
    clock, registry = ManualClock(), Registry(detailed=detailed)
    add_fleet(registry, store, clock, reserve=RESERVE)
    looks, texts = [], []
    for _ in range(scrapes):
        clock.advance(EVERY)
        began = time.process_time()
        await registry.scrape()
        whole = time.process_time() - began
        began = time.process_time()
        registry.text()
        texts.append(time.process_time() - began)
        looks.append(whole - texts[-1])
    return median(looks) * 1000, median(texts) * 1000


def _beat() -> float:
    return min(map(_counted, map(partial(Distribution), [(0.1, 0.5, 1.0, 2.5, 5.0)] * RUNS)))


def _counted(lag: Distribution) -> float:
    observe, began = lag.observe, time.process_time()
    for number in range(BEATS):
        observe(0.2 - number * 0.0001)
    return (time.process_time() - began) / BEATS * 1e6
