"""Owns ClusterProfiles: a cluster's inventory entry in every namespace that has a bound binding of one of its sets.

Source: OCM's ClusterProfile controllers, both in one step per cluster: which profiles there are, and what they say.
"""

from collections.abc import Callable
from datetime import timedelta

from hub.api.meta.change import Key
from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Store, Transaction
from hub.registry.clusterprofiles import service as clusterprofiles
from hub.registry.managedclustersets import service as clustersets
from machinery.runtime.controller import Reconciler

NAME = "cluster-profiles"


class ClusterProfiles(Batched):
    """All profiles of one cluster in one step."""

    def step(self, tx: Transaction, name: str) -> None:
        clusterprofiles.settle(tx, name, f"{ACTOR}:{NAME}")


class ProfiledNamespaces(Reconciler[Key]):
    """Sends the clusters that may need a profile more, or less, to `enqueue`.

    Keys: a namespace, whose bindings have changed (no name); a set, whose selector has changed (no namespace).
    """

    def __init__(self, store: Store, enqueue: Callable[[str], None]) -> None:
        self._store = store
        self._enqueue = enqueue

    async def reconcile(self, key: Key) -> timedelta | None:
        bound = await self._store.read(clustersets.bindings_of, key.name) if key.name else [key]
        for namespace in {binding.namespace for binding in bound}:
            for cluster in await self._store.read(clusterprofiles.concerned, namespace):
                self._enqueue(cluster)
        return None
