"""HubReplica and HubLeader, kinds of this project: a process that serves this hub, and the lock of the leader election."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from hub.api.hubreplicas import Replica
from hub.api.meta import document as doc
from hub.ports import Store, Transaction
from hub.registry.generic.definition import ResourceDefinition, action, computed, own_resource
from hub.registry.generic.schemas import FLAG, INT32, INT64, MOMENT, TEXT, age_cell, cell, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from hub.registry.hubreplicas import service as replicas
from machinery.apiserver.resource import AGE, Column, Question, Resource, TableRow
from machinery.durations import format_duration
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_micro_time, format_time

SCHEMA = record(
    "HubReplica is a process that serves this hub. Each replica reports its state every two seconds. One that has stopped is "
    "removed; one that died is Lost for ten minutes.",
    status=record(
        "The last reported state.",
        state=described(
            TEXT,
            "Starting, Ready, Draining (it stops, or is drained and still has sessions), Drained, or "
            "Lost (no report for ten seconds).",
        ),
        drained=described(FLAG, "Whether an operator has drained it."),
        leader=described(FLAG, "Whether this replica runs the controllers."),
        sessions=described(INT32, "Number of connected agents."),
        watches=described(INT32, "Number of open watches."),
        cpu=described(TEXT, "Processor time per second between the last two reports, as a quantity."),
        memory=described(TEXT, "Resident memory, as a quantity."),
        clockAheadSeconds={"type": "number", "description": "How far its clock is ahead of the database's."},
        version=described(TEXT, "Version of its program."),
        grpcAddress=described(TEXT, "Listening address of the gRPC door."),
        httpsAddress=described(TEXT, "Listening address of the HTTPS door."),
        startTime=described(MOMENT, "When the process started."),
        lastSeenTime=described(MOMENT, "Time of the last report."),
    ),
)


def _leader(row: TableRow) -> str:
    return "*" if doc.mapping(row.document, "status").get("leader") else ""


_COLUMNS = (
    Column("State", cell("status", "state"), description="Starting, Ready, Draining, Drained or Lost."),
    Column("Leader", _leader, description="Whether it runs the controllers."),
    Column("Sessions", cell("status", "sessions"), type="integer", description="Number of connected agents."),
    Column("Version", cell("status", "version"), description="Version of its program."),
    Column("Last Seen", age_cell("status", "lastSeenTime"), description="Time since the last report."),
    AGE,
    Column("CPU", cell("status", "cpu"), description="Processor time per second.", priority=1),
    Column("Memory", cell("status", "memory"), description="Resident memory.", priority=1),
    Column("Watches", cell("status", "watches"), type="integer", description="Number of open watches.", priority=1),
    Column("gRPC", cell("status", "grpcAddress"), description="Listening address of the gRPC door.", priority=1),
    Column("HTTPS", cell("status", "httpsAddress"), description="Listening address of the HTTPS door.", priority=1),
)


def _replicas(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    leader = lock.holder if lock else ""
    return [
        ComputedObject(each.name, f"HubReplica/{each.instance}", {"status": _status(each, leader, tx.now)}, each.started)
        for each in tx.replicas.all()
    ]


def _status(replica: Replica, leader: str, now: datetime) -> dict[str, Any]:
    load = replica.load
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
        "watches": load.watches,
        "cpu": f"{round(load.cpu * 1_000)}m",
        "memory": f"{load.memory // 2**20}Mi",
        "clockAheadSeconds": round(load.ahead.total_seconds(), 3),
    }


DRAIN_SCHEMA = record(
    "ReplicaDrain moves the sessions of a replica to other replicas. It accepts no new sessions until the drain is cancelled "
    "or its process restarts. The HTTPS door still serves.",
    spec=record(
        "Parameters of the drain.",
        cancel=described(FLAG, "true: the replica accepts sessions again."),
        force=described(FLAG, "true: drain also without another replica that accepts sessions."),
    ),
    status=record(
        "The replica after the request.",
        drained=described(FLAG, "Whether it is drained."),
        sessions=described(INT32, "Connected agents at its last report."),
        version=described(TEXT, "Version of its program."),
    ),
)


def _bound(shown: Resource, store: Store, own: str) -> Resource:
    async def answer(question: Question) -> Document:
        spec, asked = doc.mapping(question.document, "spec"), (question.name, question.actor.user)
        if spec.get("cancel") is True:
            replica = await store.run(replicas.end_drain, *asked, dry_run=question.dry_run)
        else:
            force = spec.get("force") is True
            replica = await store.run(replicas.order_drain, *asked, force=force, dry_run=question.dry_run)
        status = {"drained": replica.drained, "sessions": replica.sessions, "version": replica.version}
        return {**question.document, "status": status}

    drain = action(own, "drain", answer, resource="replicadrains", kind="ReplicaDrain", schema=DRAIN_SCHEMA)
    return replace(shown, storage=ComputedStorage(store, shown, _replicas), subresources=(drain,))


HUB_REPLICA = ResourceDefinition(
    own_resource("hubreplicas", "HubReplica", SCHEMA, _COLUMNS, short_names=("replicas",)), bind=_bound, stored=False
)


NOBODY = "<nobody>"
LEADER_SCHEMA = record(
    "HubLeader is the lock of the leader election. Its holder is the leader and runs the controllers.",
    status=record(
        "The lock in the database.",
        holder=described(TEXT, "The leader; empty: the lock was released."),
        term=described(INT64, "Increases with each acquisition; transactions of an earlier term are rejected."),
        transitions=described(INT64, "How often the holder changed."),
        leaseDuration=described(TEXT, "Time without a renewal after which another replica acquires the lock."),
        acquireTime=described(MOMENT, "Start of the term, by the database's clock."),
        renewTime=described(MOMENT, "Last renewal; not needed with an embedded database."),
    ),
)
_TRANSITIONS = cell("status", "transitions", absent="")
_LEADER_COLUMNS = (
    Column("Holder", lambda row: cell("status", "holder")(row) or NOBODY, description="The leader."),
    Column("Term", cell("status", "term", absent=""), type="integer", description="Increases with each acquisition."),
    Column("Since", age_cell("status", "acquireTime"), description="Time since the start of the term."),
    Column("Renewed", age_cell("status", "renewTime"), description="Time since the last renewal."),
    Column("Transitions", _TRANSITIONS, type="integer", description="How often the holder changed."),
    Column(
        "Lease",
        cell("status", "leaseDuration", absent=""),
        description="Time without a renewal after which another replica acquires it.",
        priority=1,
    ),
)


def _lock(tx: Transaction) -> Sequence[ComputedObject]:
    lock = tx.leaders.record()
    if lock is None:
        return ()
    status = {
        "holder": lock.holder,
        "term": lock.term,
        "transitions": lock.transitions,
        "leaseDuration": format_duration(lock.lease),
        "acquireTime": format_micro_time(lock.acquired_at),
        "renewTime": format_micro_time(lock.renewed_at),
    }
    return (ComputedObject("hub", "HubLeader/hub", {"status": status}),)


HUB_LEADER = computed(own_resource("hubleaders", "HubLeader", LEADER_SCHEMA, _LEADER_COLUMNS), _lock)
