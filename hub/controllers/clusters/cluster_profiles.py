"""Owns ClusterProfiles: a cluster has one in each namespace with a bound binding of one of its sets.

Source: OCM's ClusterProfile controllers (existence and content), combined in one step per cluster.
"""

from collections.abc import Callable
from datetime import timedelta

from hub.api import clusterprofiles as rules
from hub.api.meta.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.batch import UseCaseReconciler
from hub.controllers.builder import ControllerBuilder
from hub.ports import Store
from hub.registry import clusterprofiles
from hub.registry import managedclustersets as clustersets
from machinery.meta.objects import Key
from machinery.runtime.controller import Reconciler


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


def register(builder: ControllerBuilder) -> None:
    if not builder.settings.cluster_profiles:
        return
    settling = UseCaseReconciler(builder.store, clusterprofiles.settle, f"{ACTOR}:cluster-profiles")
    profiles = builder.add("cluster-profiles", settling)
    namespaces = builder.add("cluster-profiles-namespaces", ProfiledNamespaces(builder.store, profiles.enqueue))
    builder.fleet.on_reach.append(lambda name: namespaces.enqueue(Key("", name)))
    builder.watch_names(MANAGED_CLUSTERS, profiles, deleted=True)
    builder.watch_names(CLUSTER_PROFILES, profiles, rules.is_ours, deleted=True)
    builder.watch(CLUSTER_SET_BINDINGS, lambda key: namespaces.enqueue(Key(key.namespace, "")), deleted=True)
