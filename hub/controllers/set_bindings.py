"""Owns the condition Bound of ManagedClusterSetBindings: whether the set that they bind is there.

Source: OCM's ManagedClusterSetBinding controller.
"""

from datetime import timedelta

from hub.controllers import ACTOR
from hub.domain.change import Key
from hub.ports import Store
from hub.services import clustersets
from machinery.controller import Reconciler

NAME = "set-bindings"


class SetBindings(Reconciler[Key]):
    """One binding by its key; all bindings of a set by a key without a namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reconcile(self, key: Key) -> timedelta | None:
        keys = [key] if key.namespace else await self._store.read(clustersets.bindings_of, key.name)
        for each in keys:
            await self._store.run(clustersets.settle_binding, each, f"{ACTOR}:{NAME}")
        return None
