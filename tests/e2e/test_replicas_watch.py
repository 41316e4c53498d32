"""A watch whose replica is killed goes on at another, from the revision that it has seen: nothing is missed or told twice."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from machinery.errors import MusterError
from machinery.kube.client import KubeClient
from tests.e2e.processes import CLUSTERS, Bench
from tests.e2e.replicas import Replica, replicas_of

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

WRITES = 42
LAST = f"c{WRITES - 1}"


@dataclass
class Watcher:
    """Knows what it was told, and nothing else."""

    place: int = 0
    table: dict[str, str] = field(default_factory=dict)
    told: int = 0

    async def watch(self, client: KubeClient) -> None:
        """Until the last name comes, or the watch breaks."""
        query = {"watch": "1", "resourceVersion": str(self.place)}
        async with client.watch(CLUSTERS, query, within=timedelta(seconds=60)) as events:
            async for event in events:
                self._take(event.type, event.object["metadata"])
                if LAST in self.table:
                    return

    def _take(self, kind: str, metadata: dict[str, Any]) -> None:
        revision = int(metadata["resourceVersion"])
        assert revision > self.place, "once, and in order"
        self.place, self.told = revision, self.told + 1
        if kind == "DELETED":
            del self.table[metadata["name"]]
        else:
            assert (metadata["name"] in self.table) is (kind == "MODIFIED")
            self.table[metadata["name"]] = metadata["resourceVersion"]


async def write(replica: Replica, halfway: asyncio.Event, killed: asyncio.Event) -> None:
    """Makes clusters, and deletes every third again, the last not, which it makes when the other replica was killed."""
    kind = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
    async with await replica.client() as client:
        for number in range(WRITES):
            if number == WRITES - 1:
                await killed.wait()
            await client.create(CLUSTERS, {**kind, "metadata": {"name": f"c{number}"}})
            if number % 3 == 0:
                await client.delete(f"{CLUSTERS}/c{number}")
            if number == WRITES // 2:
                halfway.set()


async def test_a_watch_goes_on_at_another_replica_when_its_own_is_killed(bench: Bench, postgres_url: str) -> None:
    async with replicas_of(bench, postgres_url) as replicas:
        victim, other = await replicas.start(2)
        watcher, halfway, killed = Watcher(), asyncio.Event(), asyncio.Event()
        async with await other.client() as client:
            watcher.place = int((await client.get(CLUSTERS))["metadata"]["resourceVersion"])
        async with await victim.client() as client:
            watching = asyncio.create_task(watcher.watch(client))
            writing = asyncio.create_task(write(other, halfway, killed))
            await halfway.wait()
            while not watcher.told:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            await victim.process.kill()
            killed.set()
            with pytest.raises((MusterError, OSError)):
                await watching
            await writing
        assert LAST not in watcher.table
        before = watcher.told
        async with await other.client() as client:
            await asyncio.wait_for(watcher.watch(client), 30)
            assert watcher.told > before > 0
            items = (await client.get(CLUSTERS))["items"]
        there = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}
        assert set(watcher.table) == set(there)
