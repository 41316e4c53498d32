"""Use cases about heartbeats: storage, the start and end of a silence, and coverage."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from hub.api import liveness
from hub.api.auditrecords import AuditEntry
from hub.api.liveness import Beat, Checkpoint, Expiry, expires_at, grace
from hub.api.managed_fields import AGENT_WRITER
from hub.api.managedclusters import availability, cluster as cluster_rules
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry import certificates
from hub.registry.managedclusters import service as clusters
from machinery.errors import StaleEpochError
from machinery.identity import ClusterName
from machinery.meta import conditions
from machinery.meta.objects import Key, StoredObject


def stale_epoch_error(known: int) -> StaleEpochError:
    """Return the error for a session of an outdated epoch. `known`: the epoch that the hub has stored."""
    return StaleEpochError(f"the agent has moved to another hub (epoch {known}): this session has ended", epoch=known)


def silence(tx: Transaction, cluster: ClusterName, *, window: timedelta, since: datetime) -> Expiry:
    """Return whether the cluster's silence is longer than the grace period plus the flush `window`. Writes nothing.

    `since`: start of the coverage; earlier time does not count as silence. As in OCM, a cluster that was never accepted is not
    checked, but a denied cluster is. If the lease duration was shortened, the new grace period starts at that change, because
    until then the agent sent beats less often.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    accepted = conditions.find(doc.conditions(stored.document), conditions.HUB_ACCEPTED) if stored is not None else None
    if stored is None or accepted is None:
        return Expiry(expired=False, look_again=None)
    last = tx.heartbeats.of(cluster)
    duration = cluster_rules.lease_duration(stored.document)
    # earlier time does not count as silence; a time in the future is of a clock that was ahead
    accepted_at = at if (at := accepted.last_transition_time) and at <= tx.now else since
    if last is not None and last.owner is not None:
        return Expiry(expired=True, look_again=None if _is_unknown(stored) else timedelta())
    expiry = expires_at(last.at if last else None, duration, window=window, since=max(since, accepted_at))
    if expiry <= tx.now and (cut := _lease_cut_at(tx, stored, tx.now - grace(duration) - window)):
        expiry = max(expiry, expires_at(cut, duration, window=window, since=cut))
    left = max(expiry - tx.now, timedelta())
    if left or not _is_unknown(stored):
        return Expiry(expired=False, look_again=left)
    return Expiry(expired=True, look_again=grace(duration))


def expire(tx: Transaction, cluster: ClusterName, *, window: timedelta, since: datetime, actor: str) -> Expiry:
    """Set the cluster's availability to Unknown if its grace period has ended. For `window` and `since` see `silence`."""
    found = silence(tx, cluster, window=window, since=since)
    if not found.is_due:
        return found
    last = tx.heartbeats.of(cluster)
    heard = last is not None and last.at is not None
    condition = availability.silence_condition(last.owner if last is not None else None, heard=heard)
    clusters.set_condition(tx, cluster, condition, actor)
    return Expiry(expired=True, look_again=grace(cluster_rules.lease_duration(clusters.find(tx, cluster).document)))


def _is_unknown(stored: StoredObject) -> bool:
    current = cluster_rules.availability(stored.document)
    return current is not None and current.status == conditions.UNKNOWN


def _lease_cut_at(tx: Transaction, stored: StoredObject, since: datetime) -> datetime | None:
    """Return when the cluster's lease duration was last shortened, if this was after `since`."""
    cut, before = None, None
    for change in tx.changes.of(MANAGED_CLUSTERS, stored.key, since=since):
        duration = cluster_rules.lease_duration(change.document)
        if before is not None and duration < before and change.at <= tx.now:
            cut = change.at
        before = duration
    return cut


def revive(tx: Transaction, beat: Beat, actor: str, entries: Sequence[AuditEntry] = ()) -> bool:
    """Store the beat that ends a silence, and restore availability. Returns False if the silence continues.

    Availability follows the verdict of the beat, or else the last stored verdict. Without a verdict it does not become True. A
    beat that waited here for a whole grace period does not end the silence: no later beat has arrived. Raises StaleEpochError.
    """
    if entries:
        tx.audit.add(entries)
    before = tx.heartbeats.of(beat.cluster)
    if known := tx.heartbeats.store((beat,)).get(beat.cluster):
        raise stale_epoch_error(known)
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", beat.cluster))
    if stored is None or not _is_unknown(stored):
        return True
    if cluster_rules.is_revoked(stored.document) and not certificates.has_agent(tx, beat.cluster):
        return False
    if beat.age >= grace(cluster_rules.lease_duration(stored.document)):
        return False
    available = beat.available if beat.available is not None else (before.available if before else None)
    verdict = cluster_rules.availability_condition(available)
    if verdict is not None:
        new = doc.with_status_condition(stored.document, verdict, tx.now)
        clusters.put(tx, new, stored, actor, writer=AGENT_WRITER)
    return True


GONE = timedelta(days=1)
"""Time for which the mark of a stopped replica is kept."""


def mark_coverage(tx: Transaction, replica: str, *, began: bool, jumped: bool) -> None:
    """Write this replica's mark: it can store beats now. `began`: it just started. `jumped`: the database's clock jumped."""
    marks: Sequence[Checkpoint] = tx.marks.all()
    if jumped or any(each.is_ahead(tx.now) for each in marks):
        tx.marks.restart_coverage(tx.now)
        marks = ()
    if began:
        tx.marks.forget(tx.now - GONE)
    tx.marks.put(liveness.next_mark(replica, marks, tx.now, began=began))


def covered_since(tx: Transaction) -> datetime | None:
    """Return since when at least one replica has stored beats without a gap; None: no replica has a fresh mark."""
    return liveness.covered_since(tx.marks.all(), tx.now)
