"""ClusterTransition, a kind of this project: one change of a cluster's availability."""

from collections.abc import Callable

from hub.https_door.kinds.schemas import MOMENT, TEXT, Schema, record
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import Storage

SCHEMA: Schema = {
    **record(
        "ClusterTransition is one change of ManagedClusterConditionAvailable: when, from what to what, why, and by whom.",
        time={**MOMENT, "description": "When, by the database's clock."},
        to={**TEXT, "description": "True, False or Unknown; empty: the cluster was deleted."},
        reason={**TEXT, "description": "The condition's reason."},
        actor={**TEXT, "description": "Who wrote it."},
        clusterUID={**TEXT, "description": "Of the ManagedCluster: a later one of the same name has another."},
    )
}
SCHEMA["properties"]["from"] = {**TEXT, "description": "What it was before; empty: there was no such condition."}


def _told(field: str) -> Callable[[TableRow], str]:
    return lambda row: str(row.document.get(field) or "<none>")


_COLUMNS = (
    Column("Time", _told("time"), description="When."),
    Column("From", _told("from"), description="What it was before."),
    Column("To", _told("to"), description="What it became."),
    Column("Reason", _told("reason"), description="Why."),
    Column("Actor", _told("actor"), description="Who wrote it."),
    AGE,
)


def cluster_transition(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="clustertransitions",
        kind="ClusterTransition",
        namespaced=True,
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=_COLUMNS,
        storage=storage,
    )
