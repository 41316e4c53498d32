"""ClusterTransition, a kind of this project: one change of a cluster's availability, in the cluster's namespace."""

from collections.abc import Sequence
from datetime import datetime

from hub.api.managedclusters.availability import Transition
from hub.ports import Transaction
from hub.registry.generic import declared
from hub.registry.generic.definition import computed
from hub.registry.generic.virtual import ComputedObject, ComputedStorage, time_bounds
from machinery.apiserver.storage import GroupResource
from machinery.identity import ClusterName
from machinery.meta.objects import Key, Page, Query, StoredObject
from machinery.meta.timestamps import format_micro_time

MAX_TRANSITIONS = 1_000
"""Largest number of transitions in one answer, whatever its `limit`. Use `until` to list older transitions."""
CHUNK = 500
"""The limit that kubectl and hubctl send to read a whole list in pages. It is ignored, because there are no further pages."""


class TransitionStorage(ComputedStorage):
    """Transitions, newest first. A list has one page only, because new transitions would shift the next pages."""

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self.chosen(resource, key, *await self._store.read(_computed, ClusterName(key.namespace), MAX_TRANSITIONS))

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        query, since, until = time_bounds(query)
        cluster = None if query.namespace is None else ClusterName(query.namespace)
        limit = MAX_TRANSITIONS if query.limit in (None, CHUNK) else min(query.limit, MAX_TRANSITIONS)
        found, revision = await self._store.read(_computed, cluster, limit, since, until)
        return Page(tuple(self.stored(each, revision) for each in found if query.matches(each.key, {}, {})), revision)


def _computed(
    tx: Transaction, cluster: ClusterName | None, limit: int, since: datetime | None = None, until: datetime | None = None
) -> tuple[Sequence[ComputedObject], int]:
    found = tx.transitions.of(cluster, limit=limit, since=since, until=until)
    return [_object(each) for each in found], tx.changes.newest()


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


CLUSTER_TRANSITION = computed(declared("clustertransitions.hub"), storage=TransitionStorage)
