"""Controllers of several hubs at once on every store: each decision is made once, and no reconcile fails."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from structlog.testing import capture_logs

from hub.api.certificates import Lifetimes, Purpose
from hub.api.certificatesigningrequests.request import RequestPhase, Submission, phase
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS
from hub.controllers import ACTOR
from hub.controllers.manager import ControllerManager
from hub.extensions.settings import load
from hub.ports import Store, Transaction
from hub.registry import namespaces
from hub.registry.approvalrules.approval import RULE_ACTOR
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import submission
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.identity import AgentId, ClusterName, agent_subject
from machinery.meta import conditions
from machinery.meta.objects import Document, Query
from machinery.runtime.clock import ManualClock
from machinery.runtime.tasks import GuardedTasks
from tests.checks import present
from tests.fakes.fleetwork import addon, put
from tests.fakes.issuer import WordIssuer

HUBS, CLUSTERS = 3, 15
NAMES = [ClusterName(f"c{number:02d}") for number in range(CLUSTERS)]
AGENT = AgentId("xk7pq")
AT_ONCE = {"auto_approve": ("*",), "taint_delay": "0s", "brake_share": 0.0, "default_cluster_set": False}
ONCE_EACH = (
    ("certificatesigningrequests", "--auto-approve", "MODIFIED"),
    ("certificatesigningrequests", "issuance", "MODIFIED"),
    ("managedclusters", "--auto-approve", "MODIFIED"),
    ("managedclusters", "availability", "MODIFIED"),
    ("managedclusters", "taints", "MODIFIED"),
    ("managedclusters", "removal", "DELETED"),
    ("managedclusteraddons", "addon-health", "MODIFIED"),
    ("managedclusteraddons", "removal", "DELETED"),
    ("namespaces", "--auto-approve", "ADDED"),
    ("namespaces", "namespaces", "DELETED"),
    ("namespaces", "namespaces", "ADDED"),
)
"""Kind, who, what: for every cluster once, however many hubs there are."""
Holds = Callable[[Transaction], bool]


@asynccontextmanager
async def working(store: Store, clock: ManualClock, issuer: WordIssuer, count: int) -> AsyncIterator[None]:
    """So many hubs' controllers on one store."""
    began = clock.now()
    async with GuardedTasks("hubs") as tasks:
        for _ in range(count):
            settings = load(AT_ONCE, None, {})
            controllers = ControllerManager(store, issuer, settings, Lifetimes(), clock=clock, since=lambda _tx: began)
            await controllers.start(tasks)
        yield
        await tasks.stop()


def come(tx: Transaction, name: ClusterName, issuer: WordIssuer, key: bytes) -> None:
    """A cluster joins, and asks for its certificate."""
    terms: dict[str, Any] = {"cluster": name, "uses": 1, "lifetime": None, "public_key": pki.public_key_of(pki.generate_key())}
    record, issued = credentials.create(tx, **terms, issuer=issuer, lifetimes=Lifetimes(), actor="admin")
    requester = present(tx.certificates.by_serial(issued.serial))
    clusters.ensure(tx, JoinRequest(name, f"uid-{name}", AGENT, credential=record.id), "agent")
    request = pki.build_request(agent_subject(name, AGENT), key)
    submission.submit(tx, Submission(name, AGENT, request, requester, f"uid-{name}"))


def touch(tx: Transaction, mark: str) -> None:
    """Something about every cluster changes, so that all are looked at."""
    for name in NAMES:
        stored = clusters.find(tx, name)
        clusters.put(tx, doc.with_metadata(stored.document, labels={"mark": mark}), stored, "admin")


def delete(tx: Transaction) -> None:
    for name in NAMES:
        put(tx, ADDONS, addon("metrics", name, "True"))
        clusters.remove(tx, clusters.find(tx, name), "admin")


def lose_namespaces(tx: Transaction) -> None:
    for name in NAMES:
        namespaces.remove(tx, present(namespaces.get(tx, name)), "admin")


def every(holds: Callable[[Transaction, Document], bool]) -> Holds:
    return lambda tx: all(holds(tx, clusters.find(tx, name).document) for name in NAMES)


def is_let_in(tx: Transaction, cluster: Document) -> bool:
    found = conditions.find(doc.conditions(cluster), conditions.HUB_ACCEPTED)
    held = [record for record in tx.certificates.of_cluster(ClusterName(doc.name(cluster))) if record.purpose is Purpose.AGENT]
    return found is not None and found.status == conditions.TRUE and bool(held)


def is_judged(_tx: Transaction, cluster: Document) -> bool:
    return rules.availability(cluster) is not None and bool(doc.sequence(cluster, "spec", "taints"))


def has_new_namespace(tx: Transaction, cluster: Document) -> bool:
    stored = namespaces.get(tx, doc.name(cluster))
    return stored is not None and not doc.is_deleting(stored.document)


def written(tx: Transaction) -> dict[tuple[str, str, str], int]:
    """How often controllers and rules wrote what, by kind, by who, and by what happened to it; but for Events."""
    own = [change for change in tx.changes.since(0, limit=100_000) if change.actor.startswith((ACTOR, RULE_ACTOR))]
    keys = ((change.kind.partition(".")[0], change.actor.rpartition(":")[2], change.type.value) for change in own)
    return Counter(key for key in keys if key[0] != "events")


async def test_several_hubs_at_once_decide_judge_and_remove_as_one_would(store: Store, clock: ManualClock) -> None:
    issuer = WordIssuer()
    with capture_logs() as lines:
        async with working(store, clock, issuer, HUBS):
            for name in NAMES:
                await store.run(come, name, issuer, pki.generate_key())
            await until(store, every(is_let_in))
            agents = await store.read(lambda tx: [tx.certificates.of_cluster(name) for name in NAMES])
            await store.run(lose_namespaces)
            await until(store, every(has_new_namespace))
            clock.advance(timedelta(seconds=301))
            await store.run(touch, "later")
            await until(store, every(is_judged))
            falls = await store.read(lambda tx: [len(tx.transitions.of(name, limit=10)) for name in NAMES])
            asked = await store.read(lambda tx: [phase(stored.document) for stored in tx.objects.find(REQUESTS, Query()).items])
            await store.run(delete)
            await until(store, lambda tx: not tx.objects.find(MANAGED_CLUSTERS, Query()).items)
    counted = await store.read(written)
    assert [sum(record.purpose is Purpose.AGENT for record in held) for held in agents] == [1] * CLUSTERS
    assert asked == [RequestPhase.ISSUED] * CLUSTERS
    assert falls == [1] * CLUSTERS, "each fell silent once"
    assert counted == dict.fromkeys(ONCE_EACH, CLUSTERS)
    storms = [line for line in lines if str(line["event"]).startswith("reconcile failed")]
    assert storms == [], "nobody was in another's way"


async def until(store: Store, holds: Holds) -> None:
    while not await store.read(holds):
        await store.wait_for_change(await store.read(lambda tx: tx.changes.newest()), timedelta(seconds=1))
