"""Owns the condition ClusterSetEmpty of ManagedClusterSets: whether a set has clusters, and how many.

Source: OCM's ManagedClusterSet controller.
"""

from datetime import timedelta

from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry import managedclustersets as clustersets
from machinery.runtime.controller import Reconciler

NAME = "cluster-sets"
GATHER = timedelta(seconds=1)
"""Delay before counting, so that clusters that come or go together are counted once."""


class ClusterSets(Reconciler[str]):
    """Counts the clusters of a set."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reconcile(self, key: str) -> timedelta | None:
        await self._store.run(clustersets.settle_emptiness, key, f"{ACTOR}:{NAME}")
        return None
