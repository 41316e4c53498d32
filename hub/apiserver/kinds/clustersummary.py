"""ClusterSummary, ours: the whole fleet in one object."""

from collections.abc import Callable
from typing import Any

from hub.apiserver.kinds.schemas import Schema, record
from hub.domain import document as doc
from machinery.apiserver.resource import Column, Resource, Row
from machinery.apiserver.storage import Storage

_NUMBER: Schema = {"type": "integer", "format": "int64"}
_NUMBERS: Schema = {"type": "object", "additionalProperties": _NUMBER}
SCHEMA: Schema = record(
    "ClusterSummary counts the managed clusters by their state. There is one, named fleet; it is counted when somebody looks.",
    status=record(
        "The counts.",
        clusters={**_NUMBER, "description": "All clusters."},
        accepted={**_NUMBER, "description": "Those that the hub accepts."},
        waiting={**_NUMBER, "description": "Those that wait for an operator, or were denied."},
        available={**_NUMBERS, "description": "By availability: True, False, Unknown, or Never heard of."},
        versions={**_NUMBERS, "description": "By Kubernetes version."},
    ),
)


def _count(field: str) -> Callable[[Row], Any]:
    return lambda row: doc.mapping(row.document, "status").get(field, 0)


def _available(state: str) -> Callable[[Row], Any]:
    return lambda row: doc.mapping(row.document, "status", "available").get(state, 0)


def _column(name: str, cell: Callable[[Row], Any], description: str) -> Column:
    return Column(name, cell, type="integer", description=description)


_COLUMNS = (
    _column("Clusters", _count("clusters"), "All managed clusters."),
    _column("Accepted", _count("accepted"), "Those that the hub accepts."),
    _column("Waiting", _count("waiting"), "Those that it does not accept."),
    _column("Available", _available("True"), "Those that are well."),
    _column("Unavailable", _available("False"), "Those whose agent says that they are not well."),
    _column("Unknown", _available("Unknown"), "Those that have fallen silent."),
    _column("Never", _available("Never"), "Those that were never heard of."),
)


def cluster_summary(group_suffix: str, storage: Storage) -> Resource:
    """The resource as the hub serves it, over its own storage."""
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clustersummaries",
        singular="clustersummary",
        kind="ClusterSummary",
        short_names=("fleet",),
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
    )
