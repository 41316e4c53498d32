"""Owns Namespaces: an accepted cluster has one with its label, and a deleted one is emptied and then removed.

Sources: OCM's ManagedCluster controller (the namespace is created at acceptance, recreated when deleted, and outlives the
ManagedCluster), Kubernetes' namespace controller.
"""

from datetime import timedelta

import structlog

from hub.api import namespaces as rules
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, NAMESPACES
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.observers.deletion_watcher import Waiting
from hub.ports import Store, Transaction
from hub.registry import deletion as termination
from hub.registry import namespaces
from hub.registry.deletion import NamespaceDeletionProgress
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "namespaces"
LOOK_AGAIN = timedelta(seconds=5)
"""Shortest interval between checks while finalizers hold a namespace's content; not every kind is in the feed."""
WORKERS = 4
"""Namespaces handled concurrently, so that emptying one does not block others."""

log = structlog.get_logger(__name__)


class Namespaces(Reconciler[str]):
    """Remembers which clusters have their namespace, so that changes of those need no step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._present: set[str] = set()
        self.waiting = Waiting(LOOK_AGAIN)

    def relisting(self) -> None:
        """Forget the known namespaces before all are listed again."""
        self._present.clear()

    def wanted(self, namespace: Document) -> bool:
        """Whether this Namespace needs a step. Call it for all namespaces before clusters are handled."""
        name = doc.name(namespace)
        if not doc.is_deleting(namespace) and rules.is_of_cluster(namespace):
            self._present.add(name)
            return False
        was_clusters = name in self._present
        self._present.discard(name)
        return was_clusters or doc.is_deleting(namespace)

    def wanted_of(self, cluster: Document) -> bool:
        """Whether this ManagedCluster's namespace may be missing."""
        return _needs_one(cluster) and doc.name(cluster) not in self._present

    async def reconcile(self, key: str) -> timedelta | None:
        self.waiting.begin(key)
        progress, gone, lasting = await self._store.run(_step, key)
        if progress.removed:
            log.info("namespace is being emptied", namespace=key, removed=progress.removed)
            self.waiting.go_on(key, lasting)
        if progress.held:
            return self.waiting.pause(key, lasting)
        if not progress.removed:
            self.waiting.end(key)
        return timedelta() if progress.removed or gone else None


def _step(tx: Transaction, name: str) -> tuple[NamespaceDeletionProgress, bool, timedelta]:
    """One step. Returns its progress, whether the namespace is gone, and how long it has been deleting."""
    found = namespaces.get(tx, name)
    if found is not None and doc.is_deleting(found.document):
        progress = termination.delete_namespace(tx, name, f"{ACTOR}:{NAME}")
        lasting = tx.now - (doc.deleted_at(found.document) or tx.now)
        return progress, namespaces.get(tx, name) is None, lasting
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if cluster is not None and _needs_one(cluster.document):
        namespaces.ensure_of_cluster(tx, name, f"{ACTOR}:{NAME}")
    return NamespaceDeletionProgress(), False, timedelta()


def _needs_one(cluster: Document) -> bool:
    return clusters.is_accepted(cluster) and not doc.is_deleting(cluster)


def register(builder: ControllerBuilder) -> None:
    reconciler = Namespaces(builder.store)
    controller = builder.add(NAME, reconciler, workers=WORKERS)
    builder.handlers.on_relist.append(reconciler.relisting)
    builder.deletions.watch(reconciler.waiting, lambda name: controller.queue.add_after(name, LOOK_AGAIN))
    builder.watch_names(NAMESPACES, controller, reconciler.wanted)
    builder.watch_names(MANAGED_CLUSTERS, controller, reconciler.wanted_of)
