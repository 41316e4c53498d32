"""Which clusters are accepted and which agent is their own, kept in memory for the agents that ask.

An answer is read from the database once and forgotten with the next change of the cluster or of a request of its own; whatever
is heard or not, it is read anew after `BOUND`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from hub.access.rights import ClusterView
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, Change, ChangeType, Key
from hub.ports import Store, Transaction
from hub.registry.multihub import owners
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.runtime.clock import Clock

BOUND = timedelta(seconds=10)
MAX_KEPT = 50_000


class _Metadata(msgspec.Struct):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct):
    metadata: _Metadata


class _Spec(msgspec.Struct):
    hubAcceptsClient: bool = False  # noqa: N815 - the field's name


class _Cluster(msgspec.Struct):
    spec: _Spec


_labels = msgspec.json.Decoder(_Labelled)
_accepts = msgspec.json.Decoder(_Cluster)


@dataclass(frozen=True, slots=True)
class _Known:
    view: ClusterView
    read_at: float


class ClusterAcceptanceCache:
    """One per process. `heard` must be told of every change."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, object] = {}
        """By cluster, a mark of the newest read under way; a change takes it away."""
        self._granted: dict[str, set[str]] = {}
        self._end: Callable[[str], None] = lambda _mark: None

    def end_with(self, end: Callable[[str], None]) -> None:
        """Has `end` called with the mark of each credential whose cluster is denied or deleted after it was `granted`."""
        self._end = end

    def granted(self, cluster: ClusterName, mark: str) -> None:
        """Notes who was let in because the cluster is accepted: what that credential has open ends with the acceptance."""
        if len(self._granted) >= MAX_KEPT:
            self._granted.clear()
        self._granted.setdefault(cluster, set()).add(mark)

    async def of(self, cluster: ClusterName) -> ClusterView:
        """Raises UnavailableError."""
        known = self._known.get(cluster)
        began = self._clock.monotonic()
        if known is not None and began - known.read_at < BOUND.total_seconds():
            return known.view
        mark = self._reading[cluster] = object()
        try:
            view = await self._store.read(_view, cluster)
        finally:
            undisturbed = self._reading.get(cluster) is mark
            if undisturbed:
                del self._reading[cluster]
        if undisturbed:  # else what was read may be old already
            if len(self._known) >= MAX_KEPT:
                self._known.clear()
            self._known[cluster] = _Known(view, began)
        return view

    def heard(self, change: Change) -> None:
        """Forgets what a change may have made untrue."""
        if change.kind == MANAGED_CLUSTERS:
            cluster = change.key.name
            if cluster in self._granted and (change.type is ChangeType.DELETED or not _is_accepted(change)):
                self._withdraw(cluster)
        elif change.kind == REQUESTS:
            cluster = _labels.decode(change.encoded).metadata.labels.get(CLUSTER_LABEL, "")
        else:
            return
        self._reading.pop(cluster, None)
        self._known.pop(cluster, None)

    def _withdraw(self, cluster: str) -> None:
        for mark in self._granted.pop(cluster, ()):
            self._end(mark)


def _is_accepted(change: Change) -> bool:
    return _accepts.decode(change.encoded).spec.hubAcceptsClient


def _view(tx: Transaction, cluster: ClusterName) -> ClusterView:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    own = owners.own_agent(tx, cluster)
    if stored is None:
        return ClusterView(accepted=False, agent=own)
    accepted, leaving = clusters.is_accepted(stored.document), doc.is_deleting(stored.document)
    denied = not accepted and clusters.was_judged(stored.document)
    return ClusterView(accepted and not leaving, own, denied, accepted and leaving)
