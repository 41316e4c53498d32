"""The controllers around clusters on every store, several of them at once: they arrive, and write no more than is news."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from structlog.testing import capture_logs

from hub.controllers import ACTOR
from hub.controllers.feed import Feed
from hub.domain import cluster as cluster_rules
from hub.domain import clusterset
from hub.domain import document as doc
from hub.domain.change import ADDONS, CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Key, Kind, Query
from hub.fleet import Fleet, Gates
from hub.ports import Store, Transaction
from hub.services import clusters
from machinery import conditions
from machinery.controller import Controller
from machinery.identity import ClusterName
from machinery.tasks import GuardedTasks
from tests.fakes.fleetwork import addon, binding, cluster, cluster_set, open_namespace, put

HUBS, CLUSTERS = 3, 40
GATES = Gates(default_cluster_set=True, cluster_profiles=True)


@asynccontextmanager
async def working(store: Store, count: int) -> AsyncIterator[None]:
    """So many hubs' controllers on one store, each with a worker more than it has in a hub."""
    async with GuardedTasks("hubs") as tasks:
        for _ in range(count):
            fleet = Fleet(store, GATES, lambda _told: None)
            for controller in fleet.controllers:
                crowded = Controller(controller.name, controller._reconciler, workers=2)
                crowded.queue = controller.queue
                tasks.start(controller.name, crowded.run())
            tasks.start("feed", Feed(store, fleet.routes, fleet.observer, relisting=(fleet.begin,)).run())
        yield
        await tasks.stop()


def written(tx: Transaction) -> Counter[tuple[Kind, str]]:
    """How often controllers wrote what."""
    changes = tx.changes.since(0, limit=100_000)
    return Counter((change.kind, change.actor.rpartition(":")[2]) for change in changes if change.actor.startswith(ACTOR))


def message(tx: Transaction, name: str) -> str:
    stored = tx.objects.get(CLUSTER_SETS, Key("", name))
    found = conditions.find(doc.conditions(stored.document), clusterset.EMPTY) if stored else None
    return found.message if found else ""


def fill(tx: Transaction) -> None:
    """Every cluster is well and has an add-on; half are in `one`, which wants a namespace, and which `team` has bound."""
    open_namespace(tx, "team")
    put(tx, CLUSTER_SETS, cluster_set("one", namespaces=("web",)))
    put(tx, CLUSTER_SET_BINDINGS, binding("one", "team"))
    for number in range(CLUSTERS):
        name = f"c{number:02d}"
        put(tx, MANAGED_CLUSTERS, cluster(name, into="one" if number % 2 else ""))
        put(tx, ADDONS, addon("metrics", name, "True"))


def judge(tx: Transaction, verdict: conditions.Condition) -> None:
    for number in range(CLUSTERS):
        clusters.set_condition(tx, ClusterName(f"c{number:02d}"), verdict, "agent")


def states(tx: Transaction) -> Counter[str]:
    label = "feature.open-cluster-management.io/addon-metrics"
    found = tx.objects.find(MANAGED_CLUSTERS, Query()).items
    return Counter(doc.labels(stored.document).get(label, "") for stored in found)


async def until(store: Store, holds: Callable[[Transaction], bool]) -> None:
    async with asyncio.timeout(60):
        while not await store.read(holds):
            await store.wait_for_change(await store.read(lambda tx: tx.changes.newest()), timedelta(seconds=1))


async def test_several_hubs_at_once_arrive_and_write_what_one_would(store: Store) -> None:
    await store.run(fill)
    with capture_logs() as lines:
        async with working(store, HUBS):
            await until(store, lambda tx: message(tx, "default") == f"{CLUSTERS // 2} ManagedClusters selected")
            await store.run(judge, cluster_rules.AVAILABLE)
            await until(store, lambda tx: states(tx)["available"] == CLUSTERS)
            await until(store, lambda tx: message(tx, "one") == f"{CLUSTERS // 2} ManagedClusters selected")
            await until(store, lambda tx: tx.objects.count(CLUSTER_PROFILES, Query(namespace="team")) == CLUSTERS // 2)
            await store.run(judge, cluster_rules.SILENT)
            await until(store, lambda tx: states(tx)["unreachable"] == CLUSTERS)
    counted = await store.read(written)
    assert counted[MANAGED_CLUSTERS, "default-set"] == CLUSTERS // 2
    assert counted[MANAGED_CLUSTERS, "managed-namespaces"] == CLUSTERS // 2
    assert counted[MANAGED_CLUSTERS, "addon-discovery"] == 2 * CLUSTERS
    assert counted[ADDONS, "addon-health"] == CLUSTERS
    assert counted[CLUSTER_SET_BINDINGS, "set-bindings"] == 1
    assert counted[CLUSTER_SETS, "standing-sets"] + counted[CLUSTER_SETS, "default-set"] == len(clusterset.STANDING)
    refused = [line for line in lines if line["event"] == "reconcile failed"]
    assert refused == [], "nobody was in another's way"
