"""Use cases about heartbeats and sessions: what is written without being news, and the two moments when it is."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from hub.domain import cluster as rules
from hub.domain import document as doc
from hub.domain.change import MANAGED_CLUSTERS, Key, StoredObject
from hub.domain.heartbeat import Beat
from hub.domain.lease import Expiry, expires_at, grace, time_left
from hub.domain.ownership import AGENT_WRITER
from hub.ports import Transaction, Written
from hub.services import clusters
from machinery import conditions
from machinery.identity import ClusterName


def flush(tx: Transaction, beats: Iterable[Beat]) -> None:
    """Stores the newest beats in one statement."""
    tx.heartbeats.store(beats)


def expire(tx: Transaction, cluster: ClusterName, *, window: timedelta, since: datetime, actor: str) -> Expiry:
    """Turns availability Unknown when no beat is stored for grace + `window`; else tells when to look again.

    `since`: the database time from which beats could be stored; time before it counts towards nobody's grace. As in OCM, a
    cluster that was never accepted is not judged, a denied one is.
    """
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None or conditions.find(doc.conditions(stored.document), conditions.HUB_ACCEPTED) is None:
        return Expiry(expired=False, look_again=None)
    last = tx.heartbeats.of(cluster)
    duration = rules.lease_duration(stored.document)
    heard = max(since, _accepted_at(stored))
    left = time_left(expires_at(last.at if last else None, duration, window=window, since=heard), tx.now)
    if left:
        return Expiry(expired=False, look_again=left)
    current = rules.availability(stored.document)
    if current is None or current.status != conditions.UNKNOWN:
        clusters.set_condition(tx, cluster, rules.SILENT, actor)
    return Expiry(expired=True, look_again=grace(duration))


def _accepted_at(stored: StoredObject) -> datetime:
    """Since when the hub has had an opinion on this cluster: nobody is silent who was never let in."""
    accepted = conditions.find(doc.conditions(stored.document), conditions.HUB_ACCEPTED)
    moment = accepted.last_transition_time if accepted else None
    return moment or datetime.min.replace(tzinfo=UTC)


def revive(tx: Transaction, beat: Beat, actor: str) -> Written | None:
    """Stores the beat that ends a silence and restores the agent's own verdict; None: the cluster was not silent.

    The verdict is the beat's; when the beat tells none, the last one that was stored. Never True by itself.
    """
    before = tx.heartbeats.of(beat.cluster)
    tx.heartbeats.store((beat,))
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", beat.cluster))
    current = rules.availability(stored.document) if stored else None
    told = beat.available if beat.available is not None else (before.available if before else None)
    verdict = rules.verdict(told)
    if stored is None or current is None or current.status != conditions.UNKNOWN or verdict is None:
        return None
    new = doc.with_status_condition(stored.document, verdict, tx.now)
    return clusters.put(tx, new, stored, actor, writer=AGENT_WRITER)


def open_session(tx: Transaction, cluster: ClusterName, session: str, agent_version: str) -> None:
    """Records the open session in place of any other."""
    tx.heartbeats.set_session(cluster, session, agent_version=agent_version)


def close_session(tx: Transaction, cluster: ClusterName, session: str) -> None:
    """Records that `session` ended, unless another has taken its place."""
    last = tx.heartbeats.of(cluster)
    if last is not None and last.session == session:
        tx.heartbeats.set_session(cluster, None)


def close_all_sessions(tx: Transaction) -> int:
    """No session outlives its hub: at a start, those that are recorded have ended. Returns how many."""
    recorded = [last.cluster for last in tx.heartbeats.all() if last.session is not None]
    for cluster in recorded:
        tx.heartbeats.set_session(cluster, None)
    return len(recorded)
