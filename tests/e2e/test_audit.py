"""The audit of a real hub: each write that was answered is remembered once, through a stop and around a kill."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from machinery.client.rest import KubeClient
from machinery.errors import MusterError
from tests.e2e.processes import CLUSTERS, Bench, stored, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def remembered(database: Path) -> Counter[str]:
    """How often each cluster's creation stands in the database."""
    query = "SELECT name FROM audit WHERE verb = 'create' AND resource = 'managedclusters'"
    return Counter(name for (name,) in stored(database, query))


def new(name: str) -> dict[str, Any]:
    return {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": {"name": name}}


async def create(bench: Bench, answered: set[str], worker: int) -> None:
    """Creates clusters until the hub is gone; notes which were answered."""
    try:
        async with await KubeClient.from_file(bench.admin) as client:
            for number in range(10_000):
                name = f"c-{worker}-{number}"
                await client.create(CLUSTERS, new(name))
                answered.add(name)
    except (MusterError, OSError):
        return


async def workload(bench: Bench, count: int) -> tuple[set[str], "list[asyncio.Task[None]]"]:
    """Four clients that create clusters, once `count` were answered."""
    answered: set[str] = set()
    tasks = [asyncio.create_task(create(bench, answered, worker)) for worker in range(4)]
    await until(lambda: len(answered) >= count, what=f"{count} clusters are created")
    return answered, tasks


async def test_what_is_answered_until_the_stop_is_remembered_once_in_both_places(bench: Bench) -> None:
    lines = bench.folder / "audit.log"
    hub = await bench.hub(f"--audit-log-path={lines}")
    answered, tasks = await workload(bench, 100)
    assert await hub.stop() == 0
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert answered <= set(found)
    assert set(found.values()) == {1}
    in_file = Counter(
        event["objectRef"]["name"]
        for event in map(json.loads, lines.read_text().splitlines())
        if event["objectRef"]["resource"] == "managedclusters"
    )
    assert in_file == found
    assert "audit records flushed" in hub.output


async def test_a_kill_loses_no_record_of_a_write_that_was_answered(bench: Bench) -> None:
    hub = await bench.hub()
    answered, tasks = await workload(bench, 20)
    await hub.kill()
    await asyncio.gather(*tasks)
    found = remembered(bench.data / "hub.db")
    assert answered <= set(found)
    assert set(found.values()) == {1}
    await hub.start()
    await bench.ready(hub)
    async with await KubeClient.from_file(bench.admin) as client:
        await client.create(CLUSTERS, new("after"))
    assert await hub.stop() == 0
    assert remembered(bench.data / "hub.db") == {**found, "after": 1}
