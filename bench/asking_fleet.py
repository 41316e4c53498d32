"""A fleet that differs from cluster to cluster, for questions that choose some of it: ManagedClusters of 3.3 kB each."""

from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from bench.door import document
from hub.api.liveness import Beat
from hub.api.managedclusters.agent_annotations import AGENT_VERSION
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.store import SqlStore
from machinery.identity import ClusterName
from machinery.meta.objects import Key

SEED = 20261122
AT_ONCE = 100
SET = "cluster.open-cluster-management.io/clusterset"
ADDON = "feature.open-cluster-management.io/addon-search"
MINORS = (27, 28, 29, 30, 31, 32, 33, 34)
CLOUDS = ("aws", "azure", "gcp", "metal", "vsphere")
MEMORY_GI = (16, 32, 64, 128, 256, 512, 1024)
SILENT = timedelta(hours=2)


def fleet(clusters: int) -> list[dict[str, Any]]:
    """The documents, the same for the same number."""
    random = Random(SEED)  # noqa: S311 - draws a fleet
    return [cluster(random, number) for number in range(clusters)]


def cluster(random: Random, number: int) -> dict[str, Any]:
    made = document(number)
    labels, status = made["metadata"]["labels"], made["status"]
    labels |= {
        "env": random.choice(("dev", "prod", "prod", "stage")),
        SET: f"set-{random.randrange(20):02}",
        ADDON: "available" if random.random() < 0.97 else "unhealthy",
    }
    made["metadata"]["annotations"] = {AGENT_VERSION: f"0.{random.randrange(1, 4)}.0"}
    status["version"]["kubernetes"] = f"v1.{random.choice(MINORS)}.{random.randrange(12)}"
    memory, cpu = random.choice(MEMORY_GI) * (1024**2) + random.randrange(1000), random.randrange(4, 400)
    status["capacity"] |= {"memory": f"{memory}Ki", "cpu": str(cpu), "nodes": str(random.randrange(1, 60))}
    status["clusterClaims"][:2] = [
        {"name": "region", "value": labels["region"]},
        {"name": "cloud", "value": random.choice(CLOUDS)},
    ]
    available = next(each for each in status["conditions"] if each["type"] == "ManagedClusterConditionAvailable")
    drawn = random.random()
    available["status"] = "True" if drawn < 0.96 else "Unknown" if drawn < 0.99 else "False"
    if random.random() < 0.02:
        made["spec"]["taints"] = [{"key": "maintenance", "effect": "NoSelect"}]
    return made


def put(tx: Transaction, documents: Sequence[dict[str, Any]]) -> None:
    for made in documents:
        if tx.objects.get(MANAGED_CLUSTERS, Key("", made["metadata"]["name"])) is None:
            tx.objects.put(MANAGED_CLUSTERS, made, None, "bench")


def beat(tx: Transaction, documents: Sequence[dict[str, Any]]) -> None:
    """As long ago as each cluster's state says, and from one of two versions of the agent."""
    random, beats = Random(SEED), []  # noqa: S311 - as above
    for made in documents:
        name = ClusterName(made["metadata"]["name"])
        is_well = any(each["status"] == "True" for each in made["status"]["conditions"][-1:])
        beats.append(Beat(name, timedelta(seconds=random.randrange(60)) + (timedelta() if is_well else SILENT), is_well))
    tx.heartbeats.store(beats)
    for made in documents:
        tx.heartbeats.set_session(
            ClusterName(made["metadata"]["name"]), "session", agent_version=f"0.{random.randrange(1, 3)}.0"
        )


async def fill(url: str, clusters: int) -> None:
    """Writes the fleet as the hub's own store would, in few transactions."""
    store, documents = SqlStore(url), fleet(clusters)
    await store.open()
    for first in range(0, clusters, AT_ONCE):
        await store.run(put, documents[first : first + AT_ONCE])
        await store.run(beat, documents[first : first + AT_ONCE])
    await store.close()
