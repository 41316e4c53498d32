"""HubReplica, a kind of this project: a process that serves this hub."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hub.api.hubreplicas import Load, Replica
from hub.api.meta import document as doc
from hub.ports import Store, Transaction
from hub.registry.generic.definition import ResourceDefinition, action
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, cell, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.hubreplicas import service as draining
from machinery.apiserver.resource import AGE, Answers, Column, Question, Resource, TableRow, age_of
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

_FLAG: Schema = {"type": "boolean"}
SCHEMA: Schema = record(
    "HubReplica is a process that serves this hub. Each tells of itself every two seconds; one that has ended is gone, and one "
    "that died is Lost for ten minutes.",
    status=record(
        "What the replica told last.",
        state=described(
            TEXT,
            "Starting, Ready, Draining (it ends, or it is drained and still has sessions), Drained, or "
            "Lost: it has not told anything for ten seconds.",
        ),
        drained=described(_FLAG, "Whether an operator wants no session on it."),
        leader=described(_FLAG, "Whether this replica runs the controllers."),
        sessions={"type": "integer", "format": "int32", "description": "Agents that are connected to it."},
        watches={"type": "integer", "format": "int32", "description": "Watches that are open on its HTTPS door."},
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


def _seen(row: TableRow) -> str:
    return age_of(str(doc.mapping(row.document, "status").get("lastSeenTime") or ""), row.now)


_COLUMNS = (
    Column("State", cell("status", "state"), description="Starting, Ready, Draining, Drained or Lost."),
    Column("Leader", _leader, description="Whether it runs the controllers."),
    Column("Sessions", cell("status", "sessions"), type="integer", description="Agents that are connected to it."),
    Column("Version", cell("status", "version"), description="Of the hub's program."),
    Column("Last Seen", _seen, description="Since it last told of itself."),
    AGE,
    Column("CPU", cell("status", "cpu"), description="Processor that it uses.", priority=1),
    Column("Memory", cell("status", "memory"), description="Memory that is resident.", priority=1),
    Column("Watches", cell("status", "watches"), type="integer", description="Watches that are open on it.", priority=1),
    Column("gRPC", cell("status", "grpcAddress"), description="Where it listens for agents.", priority=1),
    Column("HTTPS", cell("status", "httpsAddress"), description="Where it listens for operators and tools.", priority=1),
)


MEBIBYTE = 2**20


def _replicas(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    leader = lock.holder if lock else ""
    return [
        ComputedObject(each.name, f"HubReplica/{each.instance}", {"status": _status(each, leader, tx.now)}, each.started)
        for each in tx.replicas.all()
    ]


def _status(replica: Replica, leader: str, now: datetime) -> dict[str, Any]:
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
        **_load(replica.load),
    }


def _load(load: Load | None) -> dict[str, Any]:
    if load is None:
        return {}
    return {
        "watches": load.watches,
        "cpu": f"{round(load.cpu * 1_000)}m",
        "memory": f"{load.memory // MEBIBYTE}Mi",
        "clockAheadSeconds": round(load.ahead.total_seconds(), 3),
    }


DRAIN_SCHEMA: Schema = record(
    "ReplicaDrain has the agents of a replica open their next session elsewhere; the replica takes no new ones until that is "
    "taken back or its process starts anew. Operators and tools are served on.",
    spec=record(
        "What is wanted.",
        cancel=described(_FLAG, "true: the replica takes sessions again."),
        force=described(_FLAG, "true: also where no other replica takes sessions."),
    ),
    status=record(
        "What became of it.",
        drained=described(_FLAG, "Whether the order stands."),
        sessions={"type": "integer", "format": "int32", "description": "Agents that were connected when it told last."},
        version=described(TEXT, "Of the replica's program: one that knows of no order ignores it."),
    ),
)


def _drain(store: Store) -> Answers:
    async def answer(question: Question) -> Document:
        spec, actor = doc.mapping(question.document, "spec"), question.actor.user
        if spec.get("cancel") is True:
            return _drained(question, await store.run(draining.end_drain, question.name, actor, dry_run=question.dry_run))
        force = spec.get("force") is True
        return _drained(
            question, await store.run(draining.order_drain, question.name, actor, force=force, dry_run=question.dry_run)
        )

    return answer


def _drained(question: Question, replica: Replica) -> Document:
    status = {"drained": replica.drained, "sessions": replica.sessions, "version": replica.version}
    return {**question.document, "status": status}


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    drain = action(own, "drain", _drain(store), resource="replicadrains", kind="ReplicaDrain", schema=DRAIN_SCHEMA)
    return replace(shown, storage=ComputedStorage(store, shown, _replicas), subresources=(drain,))


HUB_REPLICA = ResourceDefinition(
    Resource(
        group="hub",
        version="v1alpha1",
        name="hubreplicas",
        singular="hubreplica",
        kind="HubReplica",
        short_names=("replicas",),
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=_COLUMNS,
    ),
    bind=_bound,
    stored=False,
)
