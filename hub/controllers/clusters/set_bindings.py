"""Owns the condition Bound of ManagedClusterSetBindings: whether their set exists.

Source: OCM's ManagedClusterSetBinding controller.
"""

from collections.abc import Callable
from datetime import timedelta

from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry import managedclustersets as clustersets
from machinery.meta.objects import Key
from machinery.runtime.controller import Reconciler

NAME = "set-bindings"


class SetBindings(Reconciler[Key]):
    """Reconciles one binding. A key without a namespace is a set, whose bindings are enqueued."""

    def __init__(self, store: Store, enqueue: Callable[[Key], None]) -> None:
        self._store = store
        self._enqueue = enqueue

    async def reconcile(self, key: Key) -> timedelta | None:
        if key.namespace:
            await self._store.run(clustersets.settle_binding, key, f"{ACTOR}:{NAME}")
        else:
            for each in await self._store.read(clustersets.bindings_of, key.name):
                self._enqueue(each)
        return None
