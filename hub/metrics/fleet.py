"""Metrics of the fleet. Each replica counts the fleet at most every five seconds, even if Prometheus scrapes more often.

All replicas report the same values, so queries use `max` over replicas, not `sum`. While the database does not answer, the
metrics are absent, so that no value is old.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial

from hub.api.managedclusters.availability import PARTED
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS, HUB_ACCEPTS, REASON, VERSION
from hub.controllers.hub.retention import history_status
from hub.metrics.doors import OTHER, bounded
from hub.ports import BACKUP_MADE, Store, Transaction
from hub.registry.liveness import brake
from hub.registry.managedclustersets import critical_clusters
from machinery.errors import MusterError
from machinery.meta import conditions
from machinery.meta.objects import Query
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import parse_time
from machinery.observability.metrics import Metric, Registry, Values, gauge
from machinery.runtime.clock import Clock

EVERY = timedelta(seconds=5)
READ_TIMEOUT = timedelta(seconds=5)
"""Time limit of the count. It is less than the default timeout of a scrape."""
AVAILABLE = CONDITIONS + conditions.AVAILABLE
STATES = {conditions.TRUE: "available", conditions.FALSE: "unavailable", conditions.UNKNOWN: "unknown", "": "never_heard_of"}
_REASONS = Requirement(REASON, Operator.IN, tuple(sorted(PARTED)))
ELSEWHERE = Query(fields=(Requirement(AVAILABLE, Operator.EQUALS, (conditions.UNKNOWN,)), _REASONS))
LEFT = ((timedelta(), "ended"), (timedelta(days=1), "1d"), (timedelta(days=7), "7d"), (timedelta(days=30), "30d"))
NAMES = (*(name for _, name in LEFT), "more")
MOST_CRITICAL = 500
_MINOR = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?!\d)")

CLUSTERS = gauge("hub_clusters", "Clusters by state: available, unavailable, unknown, other_hub, never_heard_of.", "state")
ACCEPTED = gauge(
    "hub_clusters_accepted", "Clusters that are accepted (true), and those that wait or are denied (false).", "accepted"
)
VERSIONS = gauge("hub_clusters_by_version", "Clusters by the minor version of their Kubernetes.", "version")
BRAKE = gauge(
    "hub_brake_holds",
    "1: the brake is active: too many clusters became silent together, and taints and removal are postponed; 0: it is not.",
)
CERTIFICATES = gauge(
    "hub_agent_certificates",
    "Clusters by the remaining validity of their agent's certificate: ended, at most 1d, 7d, 30d, more. Agents over gRPC.",
    "left",
)
EARLIEST = gauge("hub_agent_certificate_expiry_timestamp_seconds", "When the next certificate of an agent expires, since 1970.")
REPLICAS = gauge("hub_replicas", "Replicas of the hub by state: Starting, Ready, Draining, Drained, Lost.", "state")
SIZE = gauge("hub_database_size_bytes", "Size of the database.")
FREE = gauge("hub_database_free_bytes", "Free space for an embedded database; not reported for a database server.")
RESERVE = gauge("hub_database_reserve_bytes", "Free space below which the oldest history is removed early (--disk-reserve).")
LOG = gauge("hub_history_bytes", "Size of the change log in the database.")
BEGAN = gauge("hub_history_began_timestamp_seconds", "Start of the readable history, since 1970.")
BACKUP = gauge("hub_backup_timestamp_seconds", "When the newest backup was made, since 1970; no series: there is no backup.")
SEEN = gauge("hub_fleet_seen_timestamp_seconds", "When the fleet was counted, since 1970.")
CRITICAL = gauge(
    "hub_critical_cluster_available",
    "1: the cluster is available; 0: it is not. Only clusters that are labelled as critical or in a set that is, at most 500.",
    "cluster",
)
CLUSTER = gauge(
    "hub_cluster_available", "1: this cluster is available; 0: it is unavailable or unknown.", "cluster", detailed=True
)
BEAT = gauge(
    "hub_cluster_last_heartbeat_timestamp_seconds",
    "When the last heartbeat of this cluster was received, since 1970.",
    "cluster",
    detailed=True,
)
EXPIRY = gauge(
    "hub_cluster_certificate_expiry_timestamp_seconds",
    "When the certificate of this cluster's agent expires, since 1970.",
    "cluster",
    detailed=True,
)


COUNTED = (
    *(CLUSTERS, ACCEPTED, VERSIONS, BRAKE, CERTIFICATES, EARLIEST, REPLICAS, SIZE, FREE, LOG, BEGAN, BACKUP, SEEN),
    *(CRITICAL, CLUSTER, BEAT, EXPIRY),
)
Snapshot = Mapping[Metric, Values]
"""The values of the metrics in COUNTED, read in one transaction."""


class FleetSnapshots:
    """Keeps the newest snapshot of the fleet's metrics in `seen`, which is empty while the database does not answer."""

    def __init__(self, store: Store, clock: Clock, *, detailed: bool) -> None:
        self._store = store
        self._clock = clock
        self._detailed = detailed
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self.seen: Snapshot = {}

    async def refresh(self) -> None:
        """Reads a snapshot, unless the last read was less than `EVERY` ago. Concurrent callers share one read."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._read_at is not None and now - self._read_at < EVERY.total_seconds():
                return
            self._read_at = now
            try:
                async with asyncio.timeout(READ_TIMEOUT.total_seconds()):
                    self.seen = await self._store.read(counted, detailed=self._detailed)
            except (MusterError, TimeoutError):  # other metrics and the log report that the database is unavailable
                self.seen = {}

    def value(self, metric: Metric) -> Values:
        return self.seen.get(metric, {})


def counted(tx: Transaction, *, detailed: bool = False) -> Snapshot:
    """Returns the values of the metrics in COUNTED. `detailed`: also the metrics with one series per cluster."""
    states = tx.objects.tally(MANAGED_CLUSTERS, AVAILABLE)
    parted = tx.objects.count(MANAGED_CLUSTERS, ELSEWHERE)  # Unknown here, because their agents use another hub
    accepted = tx.objects.tally(MANAGED_CLUSTERS, HUB_ACCEPTS)
    versions = Counter[str]()
    for version, count in tx.objects.tally(MANAGED_CLUSTERS, VERSION).items():
        if version:
            versions[minor(version)] += count
    ending = tx.trusts.ending([tx.now + span for span, _ in LEFT])  # each count includes the one before
    earliest, backup, kept = tx.trusts.first_end(tx.now), tx.facts.get(BACKUP_MADE), history_status(tx)
    values: dict[Metric, Values] = {
        CLUSTERS: {"other_hub": parted}
        | {name: states.get(state, 0) - parted * (state == conditions.UNKNOWN) for state, name in STATES.items()},
        ACCEPTED: {"true": accepted.get("true", 0), "false": sum(accepted.values()) - accepted.get("true", 0)},
        VERSIONS: bounded(versions),
        BRAKE: int(brake.now(tx).holds),
        CERTIFICATES: {name: count - before for name, count, before in zip(NAMES, ending, (0, *ending), strict=False)},
        EARLIEST: earliest.timestamp() if earliest else None,
        REPLICAS: Counter(each.state(tx.now) for each in tx.replicas.all() if not each.is_forgotten(tx.now)),
        SIZE: kept.volume.size,
        FREE: kept.volume.left,
        LOG: kept.ledger.bytes,
        BEGAN: kept.began.timestamp() if kept.began else None,
        BACKUP: parse_time(backup).timestamp() if backup else None,
        SEEN: tx.now.timestamp(),
        CRITICAL: {name: int(status == conditions.TRUE) for name, status in critical_clusters(tx, MOST_CRITICAL).items()},
    }
    if detailed:
        found = tx.objects.values(MANAGED_CLUSTERS, AVAILABLE)
        values[CLUSTER] = {key.name: int(state == conditions.TRUE) for key, state in found.items()}
        values[BEAT] = {last.cluster: last.at.timestamp() for last in tx.heartbeats.all() if last.at is not None}
        values[EXPIRY] = {cluster: end.timestamp() for cluster, end in tx.trusts.ends().items()}
    return values


def minor(version: str) -> str:
    """Shortens `v1.30.2+k3s1` to `1.30`: clusters report any version, but a label must have few values."""
    found = _MINOR.match(version)
    return f"{found[1]}.{found[2]}" if found else OTHER


def add_fleet(registry: Registry, store: Store, clock: Clock, *, reserve: int) -> None:
    """Add the metrics of the fleet. `reserve`: bytes to keep free on the disk of an SQLite database."""
    fleet = FleetSnapshots(store, clock, detailed=registry.detailed)
    registry.add_refresh(fleet.refresh)
    registry.bind(RESERVE, lambda: reserve)
    for metric in COUNTED:
        registry.bind(metric, partial(fleet.value, metric))
