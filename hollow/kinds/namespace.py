"""Namespace: active from the start, and gone at once when it is deleted."""

from datetime import datetime

from hollow.kinds.cells import OPEN, part
from machinery.apiserver.resource import STATUS, Column, Resource, Row
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.tables import AGE


def _made(document: Document, _actor: Actor, _now: datetime) -> Document:
    metadata = document["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    return {
        **document,
        "metadata": {**metadata, "labels": labels},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _status(row: Row) -> str:
    return str(part(row.document, "status", "phase") or "")


NAMESPACE = Resource(
    group="",
    version="v1",
    name="namespaces",
    kind="Namespace",
    short_names=("ns",),
    schema=OPEN,
    prepare_create=_made,
    subresources=(STATUS,),
    columns=(Column("Status", _status, description="The status of the namespace"), AGE),
    selectable=lambda document: {"status.phase": str(part(document, "status", "phase") or "")},
    selectable_names=("status.phase",),
    custom=False,
)
