"""ClusterSummary, a kind of this project: the whole fleet in one object."""

from collections.abc import Callable
from typing import Any

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from machinery.apiserver.resource import Column, Resource, TableRow, age_of
from machinery.apiserver.storage import Storage

_NUMBER: Schema = {"type": "integer", "format": "int64"}
_NUMBERS: Schema = {"type": "object", "additionalProperties": _NUMBER}
SCHEMA: Schema = record(
    "ClusterSummary counts the managed clusters by their state. There is one, named fleet; it is counted when somebody looks.",
    spec=record(
        "What may be asked of it.",
        releaseBrake={"type": "boolean", "description": "true, written: the brake lets go. It is done and not kept."},
    ),
    status=record(
        "The counts.",
        clusters={**_NUMBER, "description": "All clusters."},
        accepted={**_NUMBER, "description": "Those that the hub accepts."},
        waiting={**_NUMBER, "description": "Those that wait for an operator, or were denied."},
        available={**_NUMBERS, "description": "By availability: True, False, Unknown, or Never heard of."},
        brake=record(
            "Whether taints, stale marks and removals are held, because a large part of the fleet fell silent at once.",
            holds={"type": "boolean"},
            since=MOMENT,
            silent={**_NUMBER, "description": "Clusters that had fallen silent when it was put on."},
            fleet={**_NUMBER, "description": "Of so many that lived before."},
            message=TEXT,
        ),
        versions={**_NUMBERS, "description": "By Kubernetes version."},
    ),
)


def _count(field: str) -> Callable[[TableRow], Any]:
    return lambda row: doc.mapping(row.document, "status").get(field, 0)


def _available(state: str) -> Callable[[TableRow], Any]:
    return lambda row: doc.mapping(row.document, "status", "available").get(state, 0)


def _brake(row: TableRow) -> str:
    state = doc.mapping(row.document, "status", "brake")
    return f"held for {age_of(str(state.get('since')), row.now)}" if state.get("holds") else "off"


def _column(name: str, cell: Callable[[TableRow], Any], description: str) -> Column:
    return Column(name, cell, type="integer", description=description)


_COLUMNS = (
    _column("Clusters", _count("clusters"), "All managed clusters."),
    _column("Accepted", _count("accepted"), "Those that the hub accepts."),
    _column("Waiting", _count("waiting"), "Those that it does not accept."),
    _column("Available", _available("True"), "Those that are well."),
    _column("Unavailable", _available("False"), "Those whose agent says that they are not well."),
    _column("Unknown", _available("Unknown"), "Those that have fallen silent."),
    _column("Never", _available("Never"), "Those that were never heard of."),
    Column("Brake", _brake, description="Whether taints and removals are held, and since when."),
)


def cluster_summary(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clustersummaries",
        singular="clustersummary",
        kind="ClusterSummary",
        short_names=("fleet",),
        verbs=("get", "list", "update", "patch"),
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
    )
