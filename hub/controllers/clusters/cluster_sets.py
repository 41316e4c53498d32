"""Controllers of ManagedClusterSets and of what they require of their clusters.

cluster-sets         condition ClusterSetEmpty of a set: whether it has clusters, and how many
standing-sets        the sets `default` and `global`, with their fixed selectors
set-bindings         condition Bound of ManagedClusterSetBindings: whether their set exists
default-set          puts clusters without a set into `default`; new clusters get it when they are stored
managed-namespaces   `status.managedNamespaces` of clusters; the agent's conditions are kept while a namespace is required
survey               re-examines all clusters after a change of a set
cluster-profiles     ClusterProfiles: a cluster has one in each namespace with a bound binding of one of its sets

Sources: OCM's controllers of cluster sets, bindings, default and global set, managed namespaces and ClusterProfiles. What an
operator adds to a standing set is kept.
"""

from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.api import clusterprofiles as profile_rules, managedclustersets as rules
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.batch import UseCaseReconciler
from hub.controllers.builder import PERIODIC, ControllerBuilder
from hub.ports import Store, Transaction
from hub.registry import clusterprofiles, managedclustersets as clustersets
from machinery.meta.objects import Document, Key, Page, Query
from machinery.runtime.controller import Reconciler

GATHER = timedelta(seconds=1)
"""Delay before counting, so that clusters that come or go together are counted once."""
PAGE = 500
CHANGES = {
    "created": (NORMAL, "ClusterSetCreated", "the hub has made this set"),
    "restored": (WARNING, "ClusterSetRestored", "the hub has restored the selector of this set"),
}

log = structlog.get_logger(__name__)


class ClusterSets(Reconciler[str]):
    """Counts the clusters of a set."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reconcile(self, key: str) -> timedelta | None:
        await self._store.run(clustersets.update_empty_condition, key, f"{ACTOR}:cluster-sets")
        return None


class PredefinedSets(Reconciler[str]):
    """`record_event` records an Event without blocking."""

    def __init__(self, store: Store, record_event: Callable[[EventRecord], None]) -> None:
        self._store = store
        self._record_event = record_event

    async def reconcile(self, key: str) -> timedelta | None:
        done = await self._store.run(clustersets.ensure_predefined, key, f"{ACTOR}:standing-sets")
        if done:
            kind, reason, message = CHANGES[done]
            log.info("cluster set written", cluster_set=key, done=done)
            stored = await self._store.read(lambda tx: tx.objects.get(CLUSTER_SETS, Key("", key)))
            if stored is not None:
                self._record_event(EventRecord("", stored.document, reason, message, kind))
        return None


class SetBindings(Reconciler[Key]):
    """Reconciles one binding. A key without a namespace is a set, whose bindings are enqueued."""

    def __init__(self, store: Store, enqueue: Callable[[Key], None]) -> None:
        self._store = store
        self._enqueue = enqueue

    async def reconcile(self, key: Key) -> timedelta | None:
        if key.namespace:
            await self._store.run(clustersets.update_binding, key, f"{ACTOR}:set-bindings")
        else:
            for each in await self._store.read(clustersets.bindings_of, key.name):
                self._enqueue(each)
        return None


class ClusterResync(Reconciler[str]):
    """Enqueues the clusters for which `wanted` is true. It has only one key."""

    def __init__(self, store: Store, wanted: Callable[[Document], bool], enqueue: Callable[[str], None]) -> None:
        self._store = store
        self._wanted = wanted
        self._enqueue = enqueue

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        after: Key | None = None
        while True:
            page = await self._store.read(_page, after)
            for stored in page.items:
                if self._wanted(stored.document):
                    self._enqueue(stored.key.name)
            if page.after is None:
                return None
            after = page.after


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
            for cluster in await self._store.read(clusterprofiles.affected_clusters, namespace):
                self._enqueue(cluster)
        return None


def _page(tx: Transaction, after: Key | None) -> Page:
    return tx.objects.find(MANAGED_CLUSTERS, Query(limit=PAGE, after=after))


def register(builder: ControllerBuilder) -> None:
    store, fleet = builder.store, builder.fleet
    with_default = builder.settings.default_cluster_set

    def lacks_namespaces(cluster: Document) -> bool:
        """Whether the cluster's managed namespaces differ from those that its sets require."""
        return not doc.is_deleting(cluster) and rules.with_managed_namespaces(cluster, fleet.sets) != cluster

    def is_predefined(cluster_set: Document) -> bool:
        return with_default and doc.name(cluster_set) in rules.STANDING

    def ensure_predefined() -> None:
        """Enqueue the standing sets, whose absence causes no change."""
        for name in rules.STANDING if with_default else ():
            standing.enqueue(name)

    def enqueue_binding(binding: Key) -> None:
        bindings.enqueue(binding)

    sets = builder.add("cluster-sets", ClusterSets(store))
    standing = builder.add("standing-sets", PredefinedSets(store, builder.record_event))
    bindings = builder.add("set-bindings", SetBindings(store, enqueue_binding))
    default = builder.add("default-set", UseCaseReconciler(store, clustersets.put_in_default, f"{ACTOR}:default-set"))
    namespaces = builder.add(
        "managed-namespaces", UseCaseReconciler(store, clustersets.update_managed_namespaces, f"{ACTOR}:managed-namespaces")
    )
    rotation_snapshot = builder.add("survey", ClusterResync(store, lacks_namespaces, namespaces.enqueue))
    builder.handlers.on_relist.append(ensure_predefined)
    fleet.on_members.append(lambda name: sets.queue.add_after(name, GATHER))
    fleet.on_reach.append(lambda _name: rotation_snapshot.enqueue(PERIODIC))
    builder.watch_names(CLUSTER_SETS, sets)
    builder.watch(CLUSTER_SETS, lambda key: bindings.enqueue(Key("", key.name)), deleted=True)
    builder.watch_names(CLUSTER_SETS, standing, is_predefined, deleted=True)
    builder.watch(CLUSTER_SET_BINDINGS, bindings.enqueue)
    builder.watch_names(MANAGED_CLUSTERS, namespaces, lacks_namespaces)
    if with_default:
        builder.watch_names(MANAGED_CLUSTERS, default, rules.lacks_set)
    if builder.settings.cluster_profiles:
        _register_profiles(builder)


def _register_profiles(builder: ControllerBuilder) -> None:
    settling = UseCaseReconciler(builder.store, clusterprofiles.settle, f"{ACTOR}:cluster-profiles")
    profiles = builder.add("cluster-profiles", settling)
    namespaces = builder.add("cluster-profiles-namespaces", ProfiledNamespaces(builder.store, profiles.enqueue))
    builder.fleet.on_reach.append(lambda name: namespaces.enqueue(Key("", name)))
    builder.watch_names(MANAGED_CLUSTERS, profiles, deleted=True)
    builder.watch_names(CLUSTER_PROFILES, profiles, profile_rules.is_managed_here, deleted=True)
    builder.watch(CLUSTER_SET_BINDINGS, lambda key: namespaces.enqueue(Key(key.namespace, "")), deleted=True)
