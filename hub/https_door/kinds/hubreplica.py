"""HubReplica, a kind of this project: a process that serves this hub."""

from typing import Any

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from machinery.apiserver.resource import AGE, Column, Resource, Subresource, TableRow, age_of
from machinery.apiserver.storage import Storage

_FLAG: Schema = {"type": "boolean"}
SCHEMA: Schema = record(
    "HubReplica is a process that serves this hub. Each tells of itself every two seconds; one that has ended is gone, and one "
    "that died is Lost for ten minutes.",
    status=record(
        "What the replica told last.",
        state={
            **TEXT,
            "description": "Starting, Ready, Draining (it ends, or it is drained and still has sessions), Drained, or "
            "Lost: it has not told anything for ten seconds.",
        },
        drained={**_FLAG, "description": "Whether an operator wants no session on it."},
        leader={**_FLAG, "description": "Whether this replica runs the controllers."},
        sessions={"type": "integer", "format": "int32", "description": "Agents that are connected to it."},
        watches={"type": "integer", "format": "int32", "description": "Watches that are open on its HTTPS door."},
        cpu={**TEXT, "description": "Processor that it used between the last two times that it told, as a quantity."},
        memory={**TEXT, "description": "Memory that is resident, as a quantity."},
        clockAheadSeconds={"type": "number", "description": "How far its clock is before the database's."},
        version={**TEXT, "description": "Of the hub's program."},
        grpcAddress={**TEXT, "description": "Where it listens for agents."},
        httpsAddress={**TEXT, "description": "Where it listens for operators and tools."},
        startTime={**MOMENT, "description": "When the process started."},
        lastSeenTime={**MOMENT, "description": "When it last told of itself."},
    ),
)


def _status(field: str) -> Any:
    return lambda row: doc.mapping(row.document, "status").get(field)


def _leader(row: TableRow) -> str:
    return "*" if doc.mapping(row.document, "status").get("leader") else ""


def _seen(row: TableRow) -> str:
    return age_of(str(doc.mapping(row.document, "status").get("lastSeenTime") or ""), row.now)


_COLUMNS = (
    Column("State", _status("state"), description="Starting, Ready, Draining, Drained or Lost."),
    Column("Leader", _leader, description="Whether it runs the controllers."),
    Column("Sessions", _status("sessions"), type="integer", description="Agents that are connected to it."),
    Column("Version", _status("version"), description="Of the hub's program."),
    Column("Last Seen", _seen, description="Since it last told of itself."),
    AGE,
    Column("CPU", _status("cpu"), description="Processor that it uses.", priority=1),
    Column("Memory", _status("memory"), description="Memory that is resident.", priority=1),
    Column("Watches", _status("watches"), type="integer", description="Watches that are open on it.", priority=1),
    Column("gRPC", _status("grpcAddress"), description="Where it listens for agents.", priority=1),
    Column("HTTPS", _status("httpsAddress"), description="Where it listens for operators and tools.", priority=1),
)


def hub_replica(group_suffix: str, storage: Storage, *more: Subresource) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="hubreplicas",
        singular="hubreplica",
        kind="HubReplica",
        short_names=("replicas",),
        verbs=("get", "list"),
        subresources=more,
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
    )
