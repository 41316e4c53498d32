"""ClusterDiagnosis, a kind of this project: why a cluster is not Available, step by step, and what to do."""

from collections.abc import Callable

from hub.api.meta import document as doc
from hub.https_door.kinds.schemas import TEXT, Schema, listing, record
from machinery.apiserver.resource import Column, Resource, TableRow
from machinery.apiserver.storage import Storage

_PARTS = {
    "step": {**TEXT, "description": "What was looked at."},
    "state": {**TEXT, "description": "Ok, Waiting (somebody has to decide or begin), Warning, or Broken."},
    "reason": {**TEXT, "description": "One word for machines."},
    "message": {**TEXT, "description": "What was found."},
    "advice": {**TEXT, "description": "What to do."},
}
SCHEMA: Schema = record(
    "ClusterDiagnosis walks what the hub has on record of a cluster when somebody asks: its bootstrap credentials, decisions, "
    "certificate, session, beats, clock, API server and add-ons. There is one for every name that a cluster may have.",
    status=record(
        "What was found.",
        well={"type": "boolean", "description": "Whether the cluster is Available and nothing stands in the way."},
        available={**TEXT, "description": "Its condition: True, False or Unknown."},
        cause=record("The first step that is not well; absent: none is.", **_PARTS),
        steps=listing(record("One step.", **_PARTS), description="In the order of the way."),
    ),
)


def _cause(field: str) -> Callable[[TableRow], str]:
    return lambda row: str(doc.mapping(row.document, "status", "cause").get(field) or "")


_COLUMNS = (
    Column("Available", lambda row: doc.mapping(row.document, "status").get("available"), description="Its condition."),
    Column("Cause", _cause("reason"), description="The first step that is not well."),
    Column("Message", _cause("message"), description="What was found there."),
    Column("Advice", _cause("advice"), description="What to do.", priority=1),
)


def cluster_diagnosis(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clusterdiagnoses",
        singular="clusterdiagnosis",
        kind="ClusterDiagnosis",
        verbs=("get",),
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
    )
