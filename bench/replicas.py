"""Delay until a change that one replica has committed reaches a follower on another replica.

    python -m bench replicas [--database postgresql://...] [--changes 400]

Two stores on one PostgreSQL, each as a replica opens it. The delay runs from the answer to the writer until a follower of the
second store has the change: idle (one change at a time, fifty a second at most) and under load (twenty writers without pause),
each with notifications and with the poll alone. Processor time is that of this process, which is both replicas, per change.
"""

import asyncio
import time
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any
from uuid import uuid4

import click

from bench.stage import postgres_for_hubs, report
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from machinery.meta.objects import Key

WRITERS = 20
PAUSE = 0.02
SUBSCRIBE_SECONDS = 1.0


@click.command()
@click.option("--database", metavar="URL", help="An empty PostgreSQL database; without it a server of the tests.")
@click.option("--changes", default=400, show_default=True)
def replicas(database: str | None, changes: int) -> None:
    """Delay of a change until it reaches another replica."""
    if database is not None:
        report(measure(database, changes))
        return
    with postgres_for_hubs() as (url, _):
        report(measure(url, changes))


async def measure(url: str, changes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, doorbell in (("notifications", True), ("poll alone", False)):
        one, two = (SqlStore(url, doorbell=doorbell) for _ in range(2))
        try:
            await one.open()
            await two.open()
            await asyncio.sleep(SUBSCRIBE_SECONDS)
            found[f"{name}, idle"] = await idle(one, two, changes)
            found[f"{name}, under load"] = await under_load(one, two, changes * 5)
        finally:
            await one.close()
            await two.close()
    return found


@dataclass
class Seen:
    """When each name was committed, and when the follower received it."""

    committed: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    async def follow(self, store: SqlStore, after: int, count: int) -> None:
        async for changes in store.follow(after):
            now = time.perf_counter()
            self.seen |= {change.key.name: now for change in changes}
            if len(self.seen) >= count:
                return

    def delays(self, spent: float) -> dict[str, float]:
        """Delays in milliseconds; negative when the follower is faster than the answer to the writer."""
        delays = sorted((self.seen[name] - at) * 1000 for name, at in self.committed.items())
        cuts = quantiles(delays, n=100)
        per_change = spent / len(delays) * 1000
        figures = {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": delays[-1], "processor ms per change": per_change}
        return {name: round(value, 2) for name, value in figures.items()}


def put(tx: Transaction, name: str) -> None:
    document = {"metadata": {"name": name, "uid": name}, "spec": {"filler": "x" * 3000}}
    tx.objects.put(MANAGED_CLUSTERS, document, tx.objects.get(MANAGED_CLUSTERS, Key("", name)), "bench")


async def idle(one: SqlStore, two: SqlStore, changes: int) -> dict[str, float]:
    async def write(seen: Seen, run: str) -> None:
        for number in range(changes):
            await written(one, seen, f"{run}-{number}")
            await asyncio.sleep(PAUSE)

    return await followed(two, changes, write)


async def under_load(one: SqlStore, two: SqlStore, changes: int) -> dict[str, float]:
    async def write(seen: Seen, run: str) -> None:
        async def writer(which: int) -> None:
            for number in range(changes // WRITERS):
                await written(one, seen, f"{run}-{which}-{number}")

        await asyncio.gather(*(writer(which) for which in range(WRITERS)))

    return await followed(two, changes // WRITERS * WRITERS, write)


async def written(store: SqlStore, seen: Seen, name: str) -> None:
    await store.run(put, name)
    seen.committed[name] = time.perf_counter()


async def followed(store: SqlStore, changes: int, write: Any) -> dict[str, float]:
    seen = Seen()
    after = await store.read(lambda tx: tx.changes.newest())
    began = time.process_time()
    await asyncio.gather(write(seen, uuid4().hex[:8]), seen.follow(store, after, changes))
    return seen.delays(time.process_time() - began)
