"""What one decision about a request costs the HTTPS door, in processor time, and what the roles cost to load.

    python -m bench authorization [--clusters 10000] [--bindings 1000]

The hub's authorizer over a store in SQLite with so many accepted clusters, an agent's certificate for each, and so many
bindings of users and groups to roles, half of them in namespaces. No socket is involved: a request costs this beside the rest.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from hub.access.cluster_acceptance import ClusterAcceptanceCache
from hub.access.rbac_cache import RBACCache
from hub.access.rights import CallerStanding
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.clusterroles import GROUP, Groups
from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS
from hub.https_door.callers.authorization import HubAuthorizer
from hub.ports import Transaction
from hub.registry import clusterroles
from hub.registry.generic import objects
from hub.registry.managedclusters import service as clusters
from hub.store import SqlStore
from machinery.apiserver.access import Attributes
from machinery.apiserver.authz.rbac import RbacAuthorizer
from machinery.apiserver.storage import Actor
from machinery.identity import AgentId, ClusterName, SerialNumber, agent_subject
from machinery.runtime.clock import SystemClock

AGENT = AgentId("bcdfg")
AT_ONCE = 500
ROUNDS = 20_000
MCL = "cluster.open-cluster-management.io"


@click.command()
@click.option("--clusters", "count", default=10_000, show_default=True)
@click.option("--bindings", default=1_000, show_default=True)
def authorization(count: int, bindings: int) -> None:
    """Processor time per decision of the authorizer."""
    click.echo(json.dumps(asyncio.run(measure(count, bindings)), indent=2))


async def measure(count: int, bindings: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(f"sqlite:///{Path(folder) / 'hub.db'}")
        await store.open()
        try:
            await _fill(store, count, bindings)
            return await _measured(store, count, bindings)
        finally:
            await store.close()


async def _fill(store: SqlStore, count: int, bindings: int) -> None:
    await store.run(clusterroles.reconcile, Groups())
    for first in range(0, count, AT_ONCE):
        await store.run(_add_clusters, range(first, min(first + AT_ONCE, count)))
    await store.run(_add_bindings, bindings)


def _add_clusters(tx: Transaction, numbers: range) -> None:
    for number in numbers:
        name = ClusterName(f"c{number}")
        clusters.put(tx, {"metadata": {"name": name}, "spec": {"hubAcceptsClient": True}}, None, "bench")
        subject = agent_subject(name, AGENT)
        record = CertificateRecord(
            serial=SerialNumber(number + 1),
            purpose=Purpose.AGENT,
            user=subject.common_name,
            groups=tuple(sorted(subject.organizations)),
            not_before=tx.now,
            not_after=tx.now + timedelta(days=30),
            key_hash=str(number),
            issued_at=tx.now,
            cluster=name,
            agent=AGENT,
        )
        tx.certificates.add(record)


def _add_bindings(tx: Transaction, count: int) -> None:
    for number in range(count):
        kind = "Group" if number % 4 == 0 else "User"
        subject = {"kind": kind, "apiGroup": GROUP, "name": f"{kind.lower()}{number}"}
        namespace = {"namespace": f"c{number}"} if number % 2 else {}
        document: dict[str, Any] = {
            "metadata": {"name": f"binding{number}", **namespace},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "edit"},
            "subjects": [subject],
        }
        objects.put(tx, ROLE_BINDINGS if namespace else CLUSTER_ROLE_BINDINGS, document, None, "bench")


async def _measured(store: SqlStore, count: int, bindings: int) -> dict[str, Any]:
    clock = SystemClock()
    book = RBACCache(store, clock)
    began = time.perf_counter()
    await book.load()
    loaded = time.perf_counter() - began
    authorizer = HubAuthorizer(store, RbacAuthorizer(book), ClusterAcceptanceCache(store, clock), Groups())
    known = ("system:authenticated",)
    bob, nobody = Actor("user2", known), Actor("stranger", (*known, *(f"team{number}" for number in range(20))))
    listing = Attributes("list", "", MCL, "v1", "managedclusters")
    cases: dict[str, Callable[[int], Awaitable[Any]]] = {
        "system:masters": lambda _: authorizer.authorize(Actor("root", ("system:masters",)), listing),
        "user with a role, allowed": lambda _: authorizer.authorize(bob, listing),
        "user of 21 groups, refused": lambda _: authorizer.authorize(nobody, listing),
        "agent's own lease, cluster known": lambda _: authorizer.authorize(_agent(1), _lease(1)),
        "agent's other lease, refused": lambda _: authorizer.authorize(_agent(1), _lease(2)),
    }
    costs = {name: await _cost(case, ROUNDS) for name, case in cases.items()}
    costs["agent's own lease, cluster read first"] = await _cost(
        lambda number: authorizer.authorize(_agent(number), _lease(number)), count
    )
    return {
        "clusters": count,
        "bindings": bindings,
        "microseconds per decision": costs,
        "milliseconds to load all roles and bindings": round(loaded * 1000, 1),
    }


def _agent(number: int) -> Actor:
    name = ClusterName(f"c{number}")
    subject = agent_subject(name, AGENT)
    standing = CallerStanding(Purpose.AGENT, name, AGENT, subject.common_name)
    groups = (*sorted(subject.organizations), "system:authenticated")
    return Actor(subject.common_name, groups, holder=standing)


def _lease(number: int) -> Attributes:
    return Attributes("update", "", "coordination.k8s.io", "v1", "leases", "", f"c{number}", "managed-cluster-lease")


async def _cost(case: Callable[[int], Awaitable[Any]], rounds: int) -> float:
    await case(0)
    began = time.process_time()
    for number in range(rounds):
        await case(number)
    return round((time.process_time() - began) / rounds * 1e6, 1)
