"""Controllers of ManagedClusterSets, and of the namespaces and profiles that sets require for their clusters.

cluster-sets         condition ClusterSetEmpty of a set: whether it has clusters, and how many
standing-sets        the sets `default` and `global`, with their fixed selectors
set-bindings         condition Bound of ManagedClusterSetBindings: whether their set exists
default-set          puts clusters without a set into `default`; new clusters get this set when they are stored
managed-namespaces   `status.managedNamespaces` of clusters; the agent's conditions are kept while a namespace is required
survey               examines the managed namespaces of all clusters again after a change of a set
cluster-profiles     ClusterProfiles: an accepted cluster has one in each namespace with a bound binding of one of its sets

Sources: OCM's controllers of cluster sets, bindings, default and global set, managed namespaces and ClusterProfiles. Additions
of an operator to the sets `default` and `global` stay.
"""

from datetime import timedelta

import structlog

from hub.api import managedclustersets as set_rules
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.builder import PERIODIC, ControllerBuilder, all_of
from hub.registry import clusterprofiles, managedclustersets as clustersets
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Controller

GATHER = timedelta(seconds=1)
"""Delay before the clusters of a set are counted, so that clusters that join or leave the set together cause one count."""
CHANGES = {
    "created": (NORMAL, "ClusterSetCreated", "the hub has created this set"),
    "restored": (WARNING, "ClusterSetRestored", "the hub has restored the selector of this set"),
}

log = structlog.get_logger(__name__)


def register(builder: ControllerBuilder) -> None:
    sets = builder.add_use_case("cluster-sets", clustersets.update_empty_condition)
    builder.fleet.on_members.append(lambda name: sets.queue.add_after(name, GATHER))
    builder.watch_names(CLUSTER_SETS, sets)
    _register_bindings(builder)
    _register_namespaces(builder)
    _register_predefined(builder)
    if builder.settings.cluster_profiles:
        _register_profiles(builder)


def _register_predefined(builder: ControllerBuilder) -> None:
    store = builder.store

    async def ensure(name: str) -> None:
        done = await store.run(clustersets.ensure_predefined, name, f"{ACTOR}:standing-sets")
        if done:
            kind, reason, message = CHANGES[done]
            log.info("cluster set written", cluster_set=name, done=done)
            stored = await store.read(lambda tx: tx.objects.get(CLUSTER_SETS, Key("", name)))
            if stored is not None:
                builder.record_event(EventRecord("", stored.document, reason, message, kind))

    def enqueue_all() -> None:
        """Enqueue the predefined sets, because no change reports that a set is missing."""
        for name in set_rules.STANDING:
            predefined.enqueue(name)

    predefined = builder.add_step("standing-sets", ensure)
    default = builder.add_use_case("default-set", clustersets.put_in_default)
    if not builder.settings.default_cluster_set:
        return
    builder.handlers.on_relist.append(enqueue_all)
    builder.watch_names(CLUSTER_SETS, predefined, lambda cluster_set: doc.name(cluster_set) in set_rules.STANDING, deleted=True)
    builder.watch_names(MANAGED_CLUSTERS, default, set_rules.lacks_set)


def _register_bindings(builder: ControllerBuilder) -> None:
    store = builder.store

    async def update(key: Key) -> None:
        """Update a binding. A key without a namespace is a set: enqueue the bindings of the set."""
        if key.namespace:
            await store.run(clustersets.update_binding, key, f"{ACTOR}:set-bindings")
        else:
            for binding in await store.read(clustersets.bindings_of, key.name):
                bindings.enqueue(binding)

    bindings: Controller[Key] = builder.add_step("set-bindings", update)
    builder.watch(CLUSTER_SETS, lambda key: bindings.enqueue(Key("", key.name)), deleted=True)
    builder.watch(CLUSTER_SET_BINDINGS, bindings.enqueue)


def _register_namespaces(builder: ControllerBuilder) -> None:
    fleet = builder.fleet

    def lacks_namespaces(cluster: Document) -> bool:
        """Whether the managed namespaces of a cluster that is not being deleted differ from those that its sets require."""
        return not doc.is_deleting(cluster) and set_rules.with_managed_namespaces(cluster, fleet.sets) != cluster

    async def examine_all(_key: str) -> None:
        async for stored in all_of(builder.store, MANAGED_CLUSTERS):
            if lacks_namespaces(stored.document):
                namespaces.enqueue(stored.key.name)

    namespaces = builder.add_use_case("managed-namespaces", clustersets.update_managed_namespaces)
    survey = builder.add_step("survey", examine_all)
    fleet.on_reach.append(lambda _name: survey.enqueue(PERIODIC))
    builder.watch_names(MANAGED_CLUSTERS, namespaces, lacks_namespaces)


def _register_profiles(builder: ControllerBuilder) -> None:
    async def enqueue_affected(key: Key) -> None:
        """The key is a namespace with changed bindings (empty name), or a set with a changed selector (empty namespace)."""
        bound = await builder.store.read(clustersets.bindings_of, key.name) if key.name else [key]
        for namespace in {binding.namespace for binding in bound}:
            for cluster in await builder.store.read(clusterprofiles.affected_clusters, namespace):
                profiles.enqueue(cluster)

    profiles = builder.add_use_case("cluster-profiles", clusterprofiles.reconcile)
    namespaces = builder.add_step("cluster-profiles-namespaces", enqueue_affected)
    builder.fleet.on_reach.append(lambda name: namespaces.enqueue(Key("", name)))
    builder.watch_names(MANAGED_CLUSTERS, profiles, deleted=True)
    builder.watch_names(CLUSTER_PROFILES, profiles, clusterprofiles.is_managed_here, deleted=True)
    builder.watch(CLUSTER_SET_BINDINGS, lambda key: namespaces.enqueue(Key(key.namespace, "")), deleted=True)
