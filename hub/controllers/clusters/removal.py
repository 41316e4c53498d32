"""Owns the condition Deleting, and removes a deleted ManagedCluster after everything that belongs to it, in order.

Source: OCM's garbage collection. Unlike OCM, the hub warns an operator when it takes too long, and the operator can force it.
"""

from collections.abc import Callable
from datetime import timedelta

import structlog

from hub.api.events import WARNING, EventRecord
from hub.api.managedclusters.removal import needs_steps
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.controllers.observers.deletion_watcher import Waiting
from hub.ports import Store, Transaction
from hub.registry import deletion as removal
from hub.registry.deletion import ClusterDeletionProgress
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "removal"
LOOK_AGAIN = timedelta(seconds=1)
"""Shortest interval between checks while finalizers hold the rest; not every kind is in the feed."""
WORKERS = 4
"""Clusters handled concurrently, so that emptying one does not block others."""

log = structlog.get_logger(__name__)


class Removal(Reconciler[str]):
    """`deadline`: after this time the deletion order is ignored and an operator is warned. `record_event` records an Event."""

    def __init__(self, store: Store, deadline: timedelta, record_event: Callable[[EventRecord], None]) -> None:
        self._store = store
        self._deadline = deadline
        self._record_event = record_event
        self.waiting = Waiting(LOOK_AGAIN)

    async def reconcile(self, key: str) -> timedelta | None:
        self.waiting.begin(key)
        about, lasting, progress = await self._store.run(_step, key, self._deadline)
        if progress.moved:
            log.info("deleted cluster is being emptied", cluster=key, removed=progress.moved)
        if progress.orphaned:
            log.warning("deleted cluster was given up", cluster=key, orphaned=list(progress.orphaned))
            message = f"deleted by force, nobody will clean up: {'; '.join(progress.orphaned)}"
            self._record_event(EventRecord(key, about, "DeletionForced", message[:1000], WARNING))
        if progress.overdue:
            log.warning("deleted cluster does not go", cluster=key, next=f"hubctl delete cluster {key} --force")
            message = (
                f"what belongs to the cluster does not go: see its condition Deleting, or hubctl delete cluster {key} --force"
            )
            self._record_event(EventRecord(key, about, "DeletionOverdue", message, WARNING))
        if progress.gone or lasting is None:
            self.waiting.end(key)
            return None
        if progress.moved:
            self.waiting.go_on(key, lasting)
            return timedelta()
        return self._pause(key, lasting)

    def _pause(self, key: str, lasting: timedelta) -> timedelta:
        """The time until the next check, which is not after the deadline."""
        left, usual = self._deadline - lasting, self.waiting.pause(key, lasting)
        return min(left, usual) if left > timedelta() else usual


def _step(tx: Transaction, name: str, deadline: timedelta) -> tuple[Document, timedelta | None, ClusterDeletionProgress]:
    """One step. Returns the cluster before it, how long the hub has been deleting it (None: it is not), and the progress."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    about = stored.document if stored else {}
    began = doc.deleted_at(about) if needs_steps(about) else None
    lasting = None if began is None else tx.now - began
    return about, lasting, removal.delete_cluster(tx, name, deadline, f"{ACTOR}:{NAME}")


def register(builder: ControllerBuilder) -> None:
    reconciler = Removal(builder.store, builder.settings.deletion_deadline, builder.record_event)
    controller = builder.add(NAME, reconciler, workers=WORKERS)
    builder.deletions.watch(reconciler.waiting, lambda name: controller.queue.add_after(name, LOOK_AGAIN))
    builder.watch_names(MANAGED_CLUSTERS, controller, needs_steps)
