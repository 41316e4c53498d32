"""Owns ClusterProfiles: a cluster has one in each namespace with a bound binding of one of its sets.

Source: OCM's ClusterProfile controllers (existence and content), combined in one step per cluster.
"""

from collections.abc import Callable
from datetime import timedelta

from hub.controllers import ACTOR
from hub.controllers.batch import Batched
from hub.ports import Store, Transaction
from hub.registry import clusterprofiles
from hub.registry import managedclustersets as clustersets
from machinery.meta.objects import Key
from machinery.runtime.controller import Reconciler

NAME = "cluster-profiles"


class ClusterProfiles(Batched):
    """Updates all profiles of a cluster in one step."""

    def step(self, tx: Transaction, name: str) -> None:
        clusterprofiles.settle(tx, name, f"{ACTOR}:{NAME}")


class ProfiledNamespaces(Reconciler[Key]):
    """Enqueues the clusters that may gain or lose a profile.

    Keys: a namespace with changed bindings (empty name), or a set with a changed selector (empty namespace).
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
