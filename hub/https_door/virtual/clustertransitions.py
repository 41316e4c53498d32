"""ClusterTransitions: all stored changes of a cluster's availability, in the cluster's namespace, newest first.

Only the hub writes them. Permission to list them in the namespace is sufficient to read them.
"""

from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.managedclusters.availability import Transition
from hub.https_door.storage.storage import not_found
from hub.https_door.storage.virtual import VirtualStorage
from hub.ports import Transaction
from machinery.apiserver.storage import GroupResource, Key, Page, Selection, Stored
from machinery.errors import BadRequestError
from machinery.identity import ClusterName
from machinery.meta.timestamps import format_micro_time, format_time

KIND = "ClusterTransition"
MOST = 1_000
"""Transitions in one answer, whatever the limit; older ones are stored but not shown."""


class TransitionStorage(VirtualStorage):
    """Each answer is one read of the database. There are no further pages, because new transitions would shift them."""

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        page = await self.list(resource, Selection(namespace=key.namespace))
        return next((stored for stored in page.items if stored.key == key), None) or not_found(resource, key)

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del after, at
        if selection.namespace is None:
            raise BadRequestError(f"{resource} are listed of one cluster: name its namespace, as in -n CLUSTER")
        kept, revision = await self._store.read(_look, ClusterName(selection.namespace), min(limit or MOST, MOST))
        items = (self._stored(each, revision) for each in kept)
        return Page(tuple(stored for stored in items if _selects(selection, stored.key)), revision)

    def _stored(self, transition: Transition, revision: int) -> Stored:
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
        return Stored(Key(transition.cluster, name), revision, msgspec.json.encode(document))


def _look(tx: Transaction, cluster: ClusterName, limit: int) -> tuple[tuple[Transition, ...], int]:
    return tuple(tx.transitions.of(cluster, limit=limit)), tx.changes.newest()


def _selects(selection: Selection, key: Key) -> bool:
    fields = {"metadata.name": key.name, "metadata.namespace": key.namespace}
    return selection.labels.matches({}) and selection.fields.matches(fields)
