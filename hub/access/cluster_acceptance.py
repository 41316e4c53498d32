"""Cache of the acceptance and the current agent of each cluster, for the authorization of agents.

An entry is dropped when the cluster or one of its certificate requests changes, and after `MAX_AGE` in any case.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from hub.access.rights import ClusterView
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, Change
from hub.ports import Store, Transaction
from hub.registry import owners
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.meta.objects import ChangeType, Key
from machinery.runtime.clock import Clock

MAX_AGE = timedelta(seconds=10)
MAX_KEPT = 50_000


class _Metadata(msgspec.Struct):
    labels: dict[str, Any] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Metadata


_labelled = msgspec.json.Decoder(_Labelled).decode
"""Decodes only the labels of an object, because it runs for every change of a certificate request."""


class ClusterAcceptanceCache:
    """Caches the `ClusterView` of each cluster. One per process. `apply` must be called with every Change of the change log."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[ClusterView, float]] = {}
        """The cached view of each cluster, and the time of its read."""
        self._reading: dict[str, object] = {}
        """An object for each cluster's newest read in progress. A change removes it; the read's result is then not cached."""
        self._granted: dict[str, set[str]] = {}
        self.on_end: Callable[[str], None] = lambda _mark: None
        """Called with each mark that `granted` has recorded for a cluster, when the cluster is denied or deleted."""

    def granted(self, cluster: ClusterName, mark: str) -> None:
        """Records the `mark` of open requests that must end when the cluster is denied or deleted: `on_end` then gets it."""
        if len(self._granted) >= MAX_KEPT:
            self._granted.clear()
        self._granted.setdefault(cluster, set()).add(mark)

    async def of(self, cluster: ClusterName) -> ClusterView:
        """Returns the ClusterView of a cluster, at most `MAX_AGE` old. Raises UnavailableError."""
        known = self._known.get(cluster)
        began = self._clock.monotonic()
        if known is not None and began - known[1] < MAX_AGE.total_seconds():
            return known[0]
        mark = self._reading[cluster] = object()
        try:
            view = await self._store.read(_view, cluster)
        finally:
            undisturbed = self._reading.get(cluster) is mark
            if undisturbed:
                del self._reading[cluster]
        if undisturbed:  # a change during the read may have made its result out of date
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[cluster] = view, began
        return view

    def apply(self, change: Change) -> None:
        if change.kind == MANAGED_CLUSTERS:
            cluster = change.key.name
            if change.type is ChangeType.DELETED or (cluster in self._granted and not clusters.is_accepted(change.document)):
                for mark in self._granted.pop(cluster, ()):
                    self.on_end(mark)
        elif change.kind == REQUESTS:
            if not self._known and not self._reading:  # nothing is cached, for example during a burst of registrations
                return
            cluster = (_labelled(change.encoded).metadata.labels or {}).get(CLUSTER_LABEL, "")
        else:
            return
        self._reading.pop(cluster, None)
        self._known.pop(cluster, None)


def _view(tx: Transaction, cluster: ClusterName) -> ClusterView:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    own = owners.own_agent(tx, cluster)
    if stored is None:
        return ClusterView(accepted=False, agent=own)
    accepted, leaving = clusters.is_accepted(stored.document), doc.is_deleting(stored.document)
    denied = not accepted and clusters.was_ever_accepted(stored.document)
    return ClusterView(accepted and not leaving, own, denied, accepted and leaving)
