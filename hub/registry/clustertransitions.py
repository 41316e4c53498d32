"""ClusterTransition, a kind of this project: one change of a cluster's availability.

ClusterTransitions: all stored changes of a cluster's availability, in the cluster's namespace, newest first.

Only the hub writes them. Permission to list them in the namespace is sufficient to read them.
"""

from collections.abc import Callable
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.managedclusters.availability import Transition
from hub.ports import Transaction
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, record
from hub.registry.generic.virtual import VirtualStorage, not_found
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import GroupResource, Storage
from machinery.errors import BadRequestError
from machinery.identity import ClusterName
from machinery.meta.objects import Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_micro_time, format_time

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


KIND = "ClusterTransition"
MOST = 1_000
"""Transitions in one answer, whatever the limit; older ones are stored but not shown."""


class TransitionStorage(VirtualStorage):
    """Each answer is one read of the database. There are no further pages, because new transitions would shift them."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        page = await self.list(resource, Query(namespace=key.namespace))
        return next((stored for stored in page.items if stored.key == key), None) or not_found(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        if query.namespace is None:
            raise BadRequestError(f"{resource} are listed of one cluster: name its namespace, as in -n CLUSTER")
        kept, revision = await self._store.read(_look, ClusterName(query.namespace), min(query.limit or MOST, MOST))
        items = (self._stored(each, revision) for each in kept)
        return Page(tuple(stored for stored in items if query.matches(stored.key, {}, {})), revision)

    def _stored(self, transition: Transition, revision: int) -> StoredObject:
        name = f"{transition.cluster}.{transition.at:%Y%m%dt%H%M%S.%f}"
        metadata = {
            "name": name,
            "namespace": transition.cluster,
            "uid": str(uuid5(NAMESPACE_OID, f"{transition.uid}/{name}/{transition.status}")),
            "creationTimestamp": format_time(transition.at),
            "resourceVersion": str(revision),
        }
        told: dict[str, Any] = {
            "time": format_micro_time(transition.at),
            "from": transition.before,
            "to": transition.status,
            "reason": transition.reason,
            "actor": transition.actor,
            "clusterUID": transition.uid,
        }
        document = {"apiVersion": self._api_version, "kind": KIND, "metadata": metadata, **told}
        return StoredObject(Key(transition.cluster, name), revision, msgspec.json.encode(document))


def _look(tx: Transaction, cluster: ClusterName, limit: int) -> tuple[tuple[Transition, ...], int]:
    return tuple(tx.transitions.of(cluster, limit=limit)), tx.changes.newest()
