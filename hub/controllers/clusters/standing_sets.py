"""Owns the ManagedClusterSets `default` and `global`: ensures that they exist with their fixed selectors.

Source: OCM's default and global set controllers. Managed namespaces and labels that an operator adds are kept.
"""

from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.meta.change import CLUSTER_SETS
from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry import managedclustersets as clustersets
from machinery.meta.objects import Key
from machinery.runtime.controller import Reconciler

NAME = "standing-sets"
_SAID = {
    "created": (NORMAL, "ClusterSetCreated", "the hub has made this set"),
    "restored": (WARNING, "ClusterSetRestored", "the hub has restored the selector of this set"),
}

log = structlog.get_logger(__name__)


class StandingSets(Reconciler[str]):
    """`tell` records an Event without blocking."""

    def __init__(self, store: Store, tell: Callable[[EventRecord], None]) -> None:
        self._store = store
        self._tell = tell

    async def reconcile(self, key: str) -> timedelta | None:
        done = await self._store.run(clustersets.ensure_standing, key, f"{ACTOR}:{NAME}")
        if done:
            kind, reason, message = _SAID[done]
            log.info("cluster set written", cluster_set=key, done=done)
            stored = await self._store.read(lambda tx: tx.objects.get(CLUSTER_SETS, Key("", key)))
            if stored is not None:
                self._tell(EventRecord("", stored.document, reason, message, kind))
        return None
