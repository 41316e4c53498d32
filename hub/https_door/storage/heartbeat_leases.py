"""Heartbeats as Leases: views of a cluster and its newest stored beat, computed on read.

A view exists as long as its ManagedCluster. Its resourceVersion is the beat's instant in microseconds. A read of all views is
incremental: it reads the changes of clusters and the instants of all beats, and computes only the views that differ.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.api.liveness import LEASE_NAME
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Store, Transaction
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.meta.objects import ChangeType, Document, Key, Query, StoredObject, WatchEvent
from machinery.meta.timestamps import format_micro_time, parse_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """The part of a heartbeat Lease that comes from the cluster, not from its beats."""

    uid: str
    created: str
    seconds: int

    @staticmethod
    def of(cluster: Document) -> "LeaseFacts":
        metadata = doc.mapping(cluster, "metadata")
        seconds = round(clusters.lease_duration(cluster).total_seconds())
        return LeaseFacts(str(metadata.get("uid")), str(metadata.get("creationTimestamp")), seconds)

    def document(self, name: str, beat: datetime | None) -> dict[str, Any]:
        """Returns the Lease. As in OCM, it holds itself. `name`: the cluster. `beat`: renewTime; None: the creation time."""
        renewed = beat or parse_time(self.created)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": LEASE_NAME,
                "namespace": name,
                "uid": str(uuid5(NAMESPACE_OID, f"{self.uid}/{LEASE_NAME}")),
                "resourceVersion": str(micros(renewed)),
                "creationTimestamp": self.created,
                "labels": {CLUSTER_LABEL: name},
            },
            "spec": {
                "holderIdentity": LEASE_NAME,
                "leaseDurationSeconds": self.seconds,
                "renewTime": format_micro_time(renewed),
            },
        }


@dataclass(frozen=True, slots=True)
class View:
    """One heartbeat as a Lease. `news`: the MODIFIED event, which all watchers share."""

    facts: LeaseFacts
    beat: datetime | None
    stored: StoredObject
    news: WatchEvent = field(compare=False)

    @staticmethod
    def of(name: str, facts: LeaseFacts, beat: datetime | None) -> "View":
        document = facts.document(name, beat)
        stored = StoredObject(Key(name, LEASE_NAME), int(document["metadata"]["resourceVersion"]), _encode(document))
        return View(facts, beat, stored, WatchEvent(ChangeType.MODIFIED, stored))

    @property
    def key(self) -> Key:
        return self.stored.key

    @property
    def document(self) -> dict[str, Any]:
        return self.facts.document(self.key.namespace, self.beat)

    def gone(self, revision: int) -> WatchEvent:
        """Returns the DELETED event, at the revision of the cluster's deletion."""
        document = self.document
        document["metadata"]["resourceVersion"] = str(revision)
        return WatchEvent(ChangeType.DELETED, StoredObject(self.key, revision, _encode(document)))


@dataclass(frozen=True, slots=True)
class HeartbeatSnapshot:
    """Heartbeats of all clusters or of one, at a revision of the store. The next snapshot of all reuses unchanged `View`s."""

    views: Mapping[Key, View]
    revision: int


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def moment(instant: int) -> datetime:
    """Convert microseconds since 1970 to an instant, as the inverse of `micros`."""
    return EPOCH + timedelta(microseconds=instant)


def selects(query: Query, key: Key) -> bool:
    """Whether a selection selects the heartbeat with this key."""
    return query.matches(key, {CLUSTER_LABEL: key.namespace}, {})


def one(tx: Transaction, key: Key) -> View | None:
    """Returns the heartbeat of the cluster of the key's namespace; None if there is no such cluster."""
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", key.namespace))
    if cluster is None:
        return None
    last = tx.heartbeats.of(ClusterName(key.namespace))
    return View.of(key.namespace, LeaseFacts.of(cluster.document), last.at if last else None)


class BeatViews:
    """Reads snapshots of heartbeats. Reads of all heartbeats run one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looking = asyncio.Lock()
        self._last = HeartbeatSnapshot({}, -1)

    async def look(self, query: Query) -> HeartbeatSnapshot:
        if query.namespace is not None:
            return await self._store.read(_look_at_one, Key(query.namespace, LEASE_NAME))
        async with self._looking:
            facts, beats, revision = await self._store.read(_read, self._last)
            views: dict[Key, View] = {}
            for name, each in facts.items():
                key, beat = Key(name, LEASE_NAME), beats.get(name)
                known = self._last.views.get(key)
                is_same = known is not None and known.beat == beat and known.facts == each
                views[key] = known if known is not None and is_same else View.of(name, each, beat)
            self._last = HeartbeatSnapshot(views, revision)
            return self._last


def _look_at_one(tx: Transaction, key: Key) -> HeartbeatSnapshot:
    view = one(tx, key)
    return HeartbeatSnapshot({} if view is None else {key: view}, tx.changes.newest())


def _read(tx: Transaction, last: HeartbeatSnapshot) -> tuple[Mapping[str, LeaseFacts], Mapping[str, datetime | None], int]:
    """Returns the facts of all clusters (from the changes since `last`, if they are kept), all beats, and the revision."""
    newest, after = tx.changes.newest(), last.revision
    beats = {str(beat.cluster): beat.at for beat in tx.heartbeats.all()}
    if after < max(tx.changes.oldest(), 0):
        found = tx.objects.find(MANAGED_CLUSTERS, Query()).items
        return {cluster.key.name: LeaseFacts.of(cluster.document) for cluster in found}, beats, newest
    facts = {key.namespace: view.facts for key, view in last.views.items()}
    while changes := tx.changes.since(after, kinds=(MANAGED_CLUSTERS,)):
        for change in changes:
            after = change.revision
            if change.type is ChangeType.DELETED:
                facts.pop(change.key.name, None)
            else:
                facts[change.key.name] = LeaseFacts.of(change.document)
    return facts, beats, newest
