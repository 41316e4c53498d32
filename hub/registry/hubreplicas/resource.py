"""HubReplica, a kind of this project: a process that serves this hub."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hub.api.hubreplicas import Replica
from hub.api.meta import document as doc
from hub.ports import Store, Transaction
from hub.registry.generic.definition import ResourceDefinition, action, own_resource
from hub.registry.generic.schemas import FLAG, INT32, MOMENT, TEXT, age_cell, cell, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.hubreplicas import service as draining
from machinery.apiserver.resource import AGE, Column, Question, Resource, TableRow
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

SCHEMA = record(
    "HubReplica is a process that serves this hub. Each tells of itself every two seconds; one that has ended is gone, and one "
    "that died is Lost for ten minutes.",
    status=record(
        "What the replica told last.",
        state=described(
            TEXT,
            "Starting, Ready, Draining (it ends, or it is drained and still has sessions), Drained, or "
            "Lost: it has not told anything for ten seconds.",
        ),
        drained=described(FLAG, "Whether an operator wants no session on it."),
        leader=described(FLAG, "Whether this replica runs the controllers."),
        sessions=described(INT32, "Agents that are connected to it."),
        watches=described(INT32, "Watches that are open on its HTTPS door."),
        cpu=described(TEXT, "Processor that it used between the last two times that it told, as a quantity."),
        memory=described(TEXT, "Memory that is resident, as a quantity."),
        clockAheadSeconds={"type": "number", "description": "How far its clock is before the database's."},
        version=described(TEXT, "Of the hub's program."),
        grpcAddress=described(TEXT, "Where it listens for agents."),
        httpsAddress=described(TEXT, "Where it listens for operators and tools."),
        startTime=described(MOMENT, "When the process started."),
        lastSeenTime=described(MOMENT, "When it last told of itself."),
    ),
)


def _leader(row: TableRow) -> str:
    return "*" if doc.mapping(row.document, "status").get("leader") else ""


_COLUMNS = (
    Column("State", cell("status", "state"), description="Starting, Ready, Draining, Drained or Lost."),
    Column("Leader", _leader, description="Whether it runs the controllers."),
    Column("Sessions", cell("status", "sessions"), type="integer", description="Agents that are connected to it."),
    Column("Version", cell("status", "version"), description="Of the hub's program."),
    Column("Last Seen", age_cell("status", "lastSeenTime"), description="Since it last told of itself."),
    AGE,
    Column("CPU", cell("status", "cpu"), description="Processor that it uses.", priority=1),
    Column("Memory", cell("status", "memory"), description="Memory that is resident.", priority=1),
    Column("Watches", cell("status", "watches"), type="integer", description="Watches that are open on it.", priority=1),
    Column("gRPC", cell("status", "grpcAddress"), description="Where it listens for agents.", priority=1),
    Column("HTTPS", cell("status", "httpsAddress"), description="Where it listens for operators and tools.", priority=1),
)


def _replicas(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    leader = lock.holder if lock else ""
    return [
        ComputedObject(each.name, f"HubReplica/{each.instance}", {"status": _status(each, leader, tx.now)}, each.started)
        for each in tx.replicas.all()
    ]


def _status(replica: Replica, leader: str, now: datetime) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if (load := replica.load) is not None:
        measured = {
            "watches": load.watches,
            "cpu": f"{round(load.cpu * 1_000)}m",
            "memory": f"{load.memory // 2**20}Mi",
            "clockAheadSeconds": round(load.ahead.total_seconds(), 3),
        }
    return {
        "state": replica.state(now),
        "drained": replica.drained,
        "leader": replica.name == leader,
        "sessions": 0 if replica.is_lost(now) else replica.sessions,
        "version": replica.version,
        "grpcAddress": replica.grpc,
        "httpsAddress": replica.https,
        "startTime": format_time(replica.started),
        "lastSeenTime": format_time(replica.seen),
        **measured,
    }


DRAIN_SCHEMA = record(
    "ReplicaDrain has the agents of a replica open their next session elsewhere; the replica takes no new ones until that is "
    "taken back or its process starts anew. Operators and tools are served on.",
    spec=record(
        "What is wanted.",
        cancel=described(FLAG, "true: the replica takes sessions again."),
        force=described(FLAG, "true: also where no other replica takes sessions."),
    ),
    status=record(
        "What became of it.",
        drained=described(FLAG, "Whether the order stands."),
        sessions=described(INT32, "Agents that were connected when it told last."),
        version=described(TEXT, "Of the replica's program: one that knows of no order ignores it."),
    ),
)


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    async def answer(question: Question) -> Document:
        spec, asked = doc.mapping(question.document, "spec"), (question.name, question.actor.user)
        if spec.get("cancel") is True:
            replica = await store.run(draining.end_drain, *asked, dry_run=question.dry_run)
        else:
            force = spec.get("force") is True
            replica = await store.run(draining.order_drain, *asked, force=force, dry_run=question.dry_run)
        status = {"drained": replica.drained, "sessions": replica.sessions, "version": replica.version}
        return {**question.document, "status": status}

    drain = action(own, "drain", answer, resource="replicadrains", kind="ReplicaDrain", schema=DRAIN_SCHEMA)
    return replace(shown, storage=ComputedStorage(store, shown, _replicas), subresources=(drain,))


HUB_REPLICA = ResourceDefinition(
    own_resource("hubreplicas", "HubReplica", SCHEMA, _COLUMNS, short_names=("replicas",)),
    bind=_bound,
    stored=False,
)
