"""Removes deleted ManagedClusters and Namespaces with their content, in order. Creates the Namespaces of accepted clusters.

removal      condition Deleting of ManagedClusters. Unlike OCM, the hub warns an operator when a deletion takes too long, and
             the operator can force it.
namespaces   an accepted cluster has a Namespace with the cluster's label; the hub recreates the Namespace when it
             is deleted, and keeps it when the ManagedCluster is deleted

Sources: OCM's garbage collection and ManagedCluster controller, Kubernetes' namespace controller.
"""

from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.api import namespaces as namespace_rules
from hub.api.events import WARNING, EventRecord
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, NAMESPACES, Kind
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.clock_guard import SETTLED, ClockGuard
from hub.ports import Store, Transaction
from hub.registry import deletion, namespaces
from hub.registry.deletion import ClusterDeletionProgress, NamespaceDeletionProgress
from machinery.meta.objects import ChangeType, Document, Key
from machinery.runtime.controller import Reconciler

log = structlog.get_logger(__name__)

WAITED_SHARE = 10
"""The interval between checks is the time waited so far, divided by this number."""
LONGEST_INTERVAL = timedelta(minutes=1)


class Waiting:
    """Namespaces whose content must disappear. Calls `wake` when an object in one of these namespaces is deleted.

    `shortest`: the interval between checks after progress. The interval grows with the time waited. So a short wait ends soon,
    and an endless wait, for example for the finalizer of a removed controller, costs the database little.
    """

    def __init__(self, shortest: timedelta) -> None:
        self._shortest = shortest
        self._progress: dict[str, timedelta] = {}
        """How long each deletion had taken when it last made progress."""
        self.wake: Callable[[str], None] = lambda _name: None

    def relisting(self) -> None:
        """No-op: waiting namespaces are listed again."""

    def listed(self, kind: Kind, key: Key, document: Document) -> None:
        """No-op: the object exists."""

    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None:  # noqa: ARG002
        if change is ChangeType.DELETED and key.namespace in self._progress:
            self.wake(key.namespace)

    def begin(self, name: str) -> None:
        """Call this before the check, so that deletions during the check cause another check."""
        self._progress.setdefault(name, timedelta())

    def note_progress(self, name: str, lasting: timedelta) -> None:
        """Record progress of a deletion that has lasted this long, so that the interval starts from `shortest` again."""
        self._progress[name] = lasting

    def end(self, name: str) -> None:
        self._progress.pop(name, None)

    def pause(self, name: str, lasting: timedelta) -> timedelta:
        """Return the interval until the next check of a deletion that has lasted this long, at most LONGEST_INTERVAL."""
        waited = lasting - self._progress.get(name, timedelta())
        return min(max(waited / WAITED_SHARE, self._shortest), LONGEST_INTERVAL)


NAMESPACES_NAME = "namespaces"
NAMESPACE_CHECKS = timedelta(seconds=5)
"""Shortest interval between checks while finalizers block a namespace's content: the informer does not follow every kind."""


class Namespaces(Reconciler[str]):
    """Creates the Namespaces of accepted clusters, and removes deleted Namespaces with their content.

    Remembers which clusters have their Namespace, so that changes of these clusters need no step.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._present: set[str] = set()
        self.waiting = Waiting(NAMESPACE_CHECKS)

    def relisting(self) -> None:
        self._present.clear()

    def wanted(self, namespace: Document) -> bool:
        """Whether this Namespace needs a step. Call this for all namespaces before `wanted_of`."""
        name = doc.name(namespace)
        if not doc.is_deleting(namespace) and namespace_rules.is_of_cluster(namespace):
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
        progress, is_gone, lasting = await self._store.run(_namespace_step, key)
        if progress.removed:
            log.info("objects of a deleted namespace removed", namespace=key, removed=progress.removed)
            self.waiting.note_progress(key, lasting)
        if progress.held:
            return self.waiting.pause(key, lasting)
        if not progress.removed:
            self.waiting.end(key)
        return timedelta() if progress.removed or is_gone else None


def _namespace_step(tx: Transaction, name: str) -> tuple[NamespaceDeletionProgress, bool, timedelta]:
    """Make one step. Returns its progress, whether the namespace no longer exists, and how long the deletion has lasted."""
    found = namespaces.get(tx, name)
    if found is not None and doc.is_deleting(found.document):
        progress = deletion.delete_namespace(tx, name, f"{ACTOR}:{NAMESPACES_NAME}")
        lasting = tx.now - (doc.deleted_at(found.document) or tx.now)
        return progress, namespaces.get(tx, name) is None, lasting
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if cluster is not None and _needs_one(cluster.document):
        namespaces.ensure_of_cluster(tx, name, f"{ACTOR}:{NAMESPACES_NAME}")
    return NamespaceDeletionProgress(), False, timedelta()


def _needs_one(cluster: Document) -> bool:
    return cluster_rules.is_accepted(cluster) and not doc.is_deleting(cluster)


REMOVAL_NAME = "removal"
CLUSTER_CHECKS = timedelta(seconds=1)
"""Shortest interval between checks while finalizers block a cluster's content: the informer does not follow every kind."""
WORKERS = 4
"""Clusters or namespaces that are handled concurrently, so that a cluster with much content does not block the others."""


class Removal(Reconciler[str]):
    """Removes deleted clusters. After `deadline`, deletes their objects in any order, and records an Event for operators."""

    def __init__(
        self, store: Store, deadline: timedelta, record_event: Callable[[EventRecord], None], guard: ClockGuard
    ) -> None:
        self._store = store
        self._guard = guard
        self._deadline = deadline
        self._record_event = record_event
        self.waiting = Waiting(CLUSTER_CHECKS)

    async def reconcile(self, key: str) -> timedelta | None:
        self.waiting.begin(key)
        about, lasting, progress = await self._store.run(_cluster_step, key, self._deadline, self._guard)
        if progress.moved:
            log.info("objects of a deleted cluster removed", cluster=key, removed=progress.moved)
        if progress.orphaned:
            log.warning("cluster deleted by force", cluster=key, orphaned=list(progress.orphaned))
            message = f"deleted by force, without cleaning up: {'; '.join(progress.orphaned)}"
            self._record_event(EventRecord(key, about, "DeletionForced", message[:1000], WARNING))
        if progress.overdue:
            force = f"hubctl delete cluster {key} --force"
            log.warning("deletion of a cluster is overdue", cluster=key, next=force)
            message = f"objects of the cluster are not removed: see its condition Deleting, or run {force}"
            self._record_event(EventRecord(key, about, "DeletionOverdue", message, WARNING))
        if progress.gone or lasting is None:
            self.waiting.end(key)
            return None
        if progress.moved:
            self.waiting.note_progress(key, lasting)
            return timedelta()
        left, usual = self._deadline - lasting, self.waiting.pause(key, lasting)
        return min(left, usual) if left > timedelta() else usual  # the next step is no later than the deadline


def _cluster_step(
    tx: Transaction, name: str, deadline: timedelta, guard: ClockGuard
) -> tuple[Document, timedelta | None, ClusterDeletionProgress]:
    """One step. Returns the cluster before the step, how long its deletion has lasted (None: not deleted), and the progress."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    about = stored.document if stored else {}
    began = doc.deleted_at(about) if doc.is_deleting(about) else None
    lasting = None if began is None else tx.now - began
    actor, trusts_clock = f"{ACTOR}:{REMOVAL_NAME}", guard.trusts_clock(tx.now)
    return about, lasting, deletion.delete_cluster(tx, name, deadline, actor, trusts_clock=trusts_clock)


def register(builder: ControllerBuilder) -> None:
    namespaces_reconciler = Namespaces(builder.store)
    namespaces_ = builder.add(NAMESPACES_NAME, namespaces_reconciler, workers=WORKERS)
    namespaces_reconciler.waiting.wake = lambda name: namespaces_.queue.add_after(name, NAMESPACE_CHECKS)
    deadline = builder.settings.deletion_deadline
    guard = ClockGuard(builder.clock, min(SETTLED, deadline))
    removal_reconciler = Removal(builder.store, deadline, builder.record_event, guard)
    removal = builder.add(REMOVAL_NAME, removal_reconciler, workers=WORKERS)
    removal_reconciler.waiting.wake = lambda name: removal.queue.add_after(name, CLUSTER_CHECKS)
    builder.handlers.observers += (namespaces_reconciler.waiting, removal_reconciler.waiting)
    builder.handlers.on_relist.append(namespaces_reconciler.relisting)
    builder.watch_names(NAMESPACES, namespaces_, namespaces_reconciler.wanted)
    builder.watch_names(MANAGED_CLUSTERS, namespaces_, namespaces_reconciler.wanted_of)
    builder.watch_names(MANAGED_CLUSTERS, removal, doc.is_deleting)
