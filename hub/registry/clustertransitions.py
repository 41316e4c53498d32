"""ClusterTransition, a kind of this project: one change of a cluster's availability, in the cluster's namespace.

They are listed newest first. Permission to list them in the namespace is sufficient to read them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hub.api.managedclusters.availability import Transition
from hub.ports import Transaction
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.schemas import MOMENT, TEXT, Schema, described, record
from hub.registry.generic.virtual import ComputedObject, ComputedStorage
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import GroupResource
from machinery.errors import BadRequestError
from machinery.identity import ClusterName
from machinery.meta.objects import Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_micro_time

SCHEMA: Schema = {
    **record(
        "ClusterTransition is one change of ManagedClusterConditionAvailable: when, from what to what, why, and by whom.",
        time=described(MOMENT, "When, by the database's clock."),
        to=described(TEXT, "True, False or Unknown; empty: the cluster was deleted."),
        reason=described(TEXT, "The condition's reason."),
        actor=described(TEXT, "Who wrote it."),
        clusterUID=described(TEXT, "Of the ManagedCluster: a later one of the same name has another."),
    )
}
SCHEMA["properties"]["from"] = described(TEXT, "What it was before; empty: there was no such condition.")


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


MOST = 1_000
"""Transitions in one answer, whatever the limit; older ones are stored but not shown."""


class TransitionStorage(ComputedStorage):
    """Transitions of one cluster. There are no further pages, because new transitions would shift them."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        found, revision = await self._store.read(_look, ClusterName(key.namespace), MOST)
        return self.chosen(resource, key, found, revision)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        if query.namespace is None:
            raise BadRequestError(f"{resource} are listed of one cluster: name its namespace, as in -n CLUSTER")
        found, revision = await self._store.read(_look, ClusterName(query.namespace), min(query.limit or MOST, MOST))
        return Page(tuple(self.stored(each, revision) for each in found if query.matches(each.key, {}, {})), revision)


def _look(tx: Transaction, cluster: ClusterName, limit: int) -> tuple[Sequence[ComputedObject], int]:
    return [_object(each) for each in tx.transitions.of(cluster, limit=limit)], tx.changes.newest()


def _object(transition: Transition) -> ComputedObject:
    name = f"{transition.cluster}.{transition.at:%Y%m%dt%H%M%S.%f}"
    content = {
        "time": format_micro_time(transition.at),
        "from": transition.before,
        "to": transition.status,
        "reason": transition.reason,
        "actor": transition.actor,
        "clusterUID": transition.uid,
    }
    seed = f"{transition.uid}/{name}/{transition.status}"
    return ComputedObject(name, seed, content, transition.at, namespace=transition.cluster)


CLUSTER_TRANSITION = ResourceDefinition(
    Resource(
        group="hub",
        version="v1alpha1",
        name="clustertransitions",
        kind="ClusterTransition",
        namespaced=True,
        verbs=("get", "list"),
        schema=SCHEMA,
        columns=_COLUMNS,
    ),
    bind=lambda shown, store, _own: replace(shown, storage=TransitionStorage(store, shown, lambda _tx: ())),
    stored=False,
)
