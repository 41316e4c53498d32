"""The cost of ten queries at the HTTPS door, over a fleet of clusters with different values.

    python -m bench queries [--clusters 10000] [--rounds 100] [--database postgresql://...]

It uses a real `hub serve` with a database that was filled before with ManagedClusters of 3.3 kB, and one connection. Wall time
ends when the client has the last byte. Processor time is user and system time of the hub.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any
from urllib.parse import urlencode

from bench import door
from bench.stage import CLUSTERS, Stage
from hub.api.liveness import Beat
from hub.api.managedclusters.agent_annotations import AGENT_VERSION
from hub.api.query.expressions import FieldReference
from hub.api.query.parsing import groups_of, sort_of, where_of
from hub.ports import Transaction
from machinery.identity import ClusterName
from machinery.meta.objects import Query
from machinery.meta.selectors import parse_field_selector, parse_label_selector

PAGE = 100
SEED = 20261122
SET = "cluster.open-cluster-management.io/clusterset"
ADDON = "feature.open-cluster-management.io/addon-search"
MINORS = (27, 28, 29, 30, 31, 32, 33, 34)
CLOUDS = ("aws", "azure", "gcp", "metal", "vsphere")
MEMORY_GI = (16, 32, 64, 128, 256, 512, 1024)
SILENT = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Question:
    """A page of the clusters that match, or the number of clusters per group."""

    name: str
    where: str = ""
    labels: str = ""
    fields: str = ""
    sort_by: str = ""
    group_by: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it is a page of all clusters, unsorted."""
        return not (self.where or self.labels or self.fields or self.sort_by or self.group_by)

    @property
    def facets(self) -> Sequence[FieldReference]:
        return groups_of(self.group_by)

    def query(self, now: datetime) -> Query:
        return Query(
            labels=parse_label_selector(self.labels).requirements,
            fields=parse_field_selector(self.fields),
            where=where_of(self.where, now) if self.where else None,
            order=sort_of(self.sort_by) if self.sort_by else None,
        )

    @property
    def parameters(self) -> str:
        query: Mapping[str, str] = {
            "where": self.where,
            "labelSelector": self.labels,
            "fieldSelector": self.fields.replace("status.conditions.ManagedClusterConditionAvailable", "status.available"),
            "sortBy": self.sort_by,
            "groupBy": self.group_by,
            "limit": "" if self.group_by else str(PAGE),
        }
        return urlencode({name: value for name, value in query.items() if value})


QUESTIONS = (
    Question("page"),
    Question("region", labels="region=region-07,env in (dev,prod),!edge"),
    Question("not-available", fields="status.conditions.ManagedClusterConditionAvailable!=True"),
    Question("outdated", where='version < 1.30 && available == "Unknown" && memory > 64Gi'),
    Question("cloud", where='claims.cloud == "gcp" && labels.env == "prod"'),
    Question("in-maintenance", where='"maintenance" in taints'),
    Question("sick-add-on", where='set == "set-03" && addons["search"] == "unhealthy"'),
    Question("silent", where="lastBeat > 5m && agentVersion < 0.3", sort_by="-lastBeat"),
    Question("largest", sort_by="-memory,name"),
    Question("versions", group_by="version"),
)


def fleet(clusters: int) -> list[dict[str, Any]]:
    """Return the documents of the clusters. The same number always gives the same documents."""
    random = Random(SEED)  # noqa: S311 - draws a fleet
    return [cluster(random, number) for number in range(clusters)]


def cluster(random: Random, number: int) -> dict[str, Any]:
    made = door.document(number)
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


def beat(tx: Transaction, documents: Sequence[dict[str, Any]]) -> None:
    """Store a heartbeat for each cluster, whose age fits the cluster's state, and a session with one of two agent versions."""
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
    await door.fill(url, fleet(clusters), door.put_new, beat)


def _all_queries(stage: Stage, hub: int, rounds: int) -> dict[str, Any]:
    door.settle(hub)
    client = door.Client(stage.admin, stage.https_port)
    return {each.name: door.repeated(hub, rounds, client, f"{CLUSTERS}?{each.parameters}") for each in QUESTIONS}


async def queries(clusters: int = 10_000, rounds: int = 100, database: door.Database = "") -> dict[str, Any]:
    """Ten queries over a fleet, at the HTTPS door."""
    async with door.filled(database, lambda url: fill(url, clusters)) as (stage, hub):
        return await asyncio.to_thread(_all_queries, stage, hub, rounds)
