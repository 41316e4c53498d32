"""Metrics of the fleet, counted by the database at most every few seconds, however often Prometheus scrapes.

All replicas report the same values, so queries use `max` over replicas, not `sum`. While the database does not answer, the
metrics are absent rather than old.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.selection import CONDITIONS, HUB_ACCEPTS, VERSION
from hub.metrics.doors import OTHER, bounded
from hub.ports import Store, Transaction
from hub.registry.generic import history
from hub.registry.liveness import brake
from hub.store.backup.backup import BACKUP_MADE
from machinery.errors import MusterError
from machinery.meta import conditions
from machinery.meta.timestamps import parse_time
from machinery.observability.metrics import Registry, gauge
from machinery.runtime.clock import Clock

EVERY = timedelta(seconds=5)
PATIENCE = timedelta(seconds=5)
"""Less than the default timeout of a scrape."""
AVAILABLE = CONDITIONS + conditions.AVAILABLE
STATES = {conditions.TRUE: "available", conditions.FALSE: "unavailable", conditions.UNKNOWN: "unknown", "": "never_heard_of"}
LEFT = ((timedelta(), "ended"), (timedelta(days=1), "1d"), (timedelta(days=7), "7d"), (timedelta(days=30), "30d"))
NAMES = (*(name for _, name in LEFT), "more")
_MINOR = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?!\d)")

CLUSTERS = gauge("hub_clusters", "Clusters by what is known of them: available, unavailable, unknown, never_heard_of.", "state")
ACCEPTED = gauge("hub_clusters_accepted", "Clusters that are accepted (true), and that wait or are denied (false).", "accepted")
VERSIONS = gauge("hub_clusters_by_version", "Clusters by the minor version of their Kubernetes.", "version")
BRAKE = gauge("hub_brake_holds", "1: so many clusters fell silent together that taints and removal are held; 0: not so.")
CERTIFICATES = gauge(
    "hub_agent_certificates",
    "Clusters by how long the certificate of their agent lasts: ended, at most 1d, 7d, 30d, more. Agents over gRPC.",
    "left",
)
EARLIEST = gauge(
    "hub_agent_certificate_expiry_timestamp_seconds",
    "When the next certificate of an agent ends that has not ended, since 1970.",
)
REPLICAS = gauge("hub_replicas", "Replicas of the hub by state: Starting, Ready, Draining, Drained, Lost.", "state")
SIZE = gauge("hub_database_size_bytes", "What the database takes.")
FREE = gauge("hub_database_free_bytes", "What can still be written to an embedded database; a server's does not say.")
RESERVE = gauge(
    "hub_database_reserve_bytes", "With less than this free the oldest history goes before its time (--disk-reserve)."
)
LOG = gauge("hub_history_bytes", "What the change log takes of the database.")
BEGAN = gauge("hub_history_began_timestamp_seconds", "From when on the past can be read, since 1970.")
BACKUP = gauge("hub_backup_timestamp_seconds", "When the newest backup was made, since 1970; none: there is no backup.")
SEEN = gauge("hub_fleet_seen_timestamp_seconds", "When the fleet was counted, since 1970.")
CLUSTER = gauge(
    "hub_cluster_available", "1: this cluster is available; 0: it is not, or not known to be.", "cluster", detailed=True
)
BEAT = gauge(
    "hub_cluster_last_heartbeat_timestamp_seconds", "When this cluster was heard of last, since 1970.", "cluster", detailed=True
)
EXPIRY = gauge(
    "hub_cluster_certificate_expiry_timestamp_seconds",
    "When the certificate of this cluster's agent ends, since 1970.",
    "cluster",
    detailed=True,
)


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The fleet in one snapshot of the database."""

    at: datetime
    states: Mapping[str, int]
    accepted: Mapping[str, int]
    versions: Mapping[str, int]
    brake: bool
    left: Mapping[str, int]
    earliest: datetime | None
    replicas: Mapping[str, int]
    kept: history.HistoryStatus
    backup: datetime | None
    available: Mapping[str, int] = field(default_factory=dict)
    heard: Mapping[str, float] = field(default_factory=dict)
    ends: Mapping[str, float] = field(default_factory=dict)


class FleetSnapshots:
    """Keeps the newest snapshot; `seen` is None while there is none."""

    def __init__(self, store: Store, clock: Clock, *, detailed: bool) -> None:
        self._store = store
        self._clock = clock
        self._detailed = detailed
        self._looked_at: float | None = None
        self._looking = asyncio.Lock()
        self.seen: FleetSnapshot | None = None

    async def __call__(self) -> None:
        """Reads a snapshot, unless the last read was less than `EVERY` ago. Concurrent callers share it."""
        async with self._looking:
            now = self._clock.monotonic()
            if self._looked_at is not None and now - self._looked_at < EVERY.total_seconds():
                return
            self._looked_at = now
            try:
                async with asyncio.timeout(PATIENCE.total_seconds()):
                    self.seen = await self._store.read(counted, detailed=self._detailed)
            except (MusterError, TimeoutError):  # other metrics and the log report that the database is unavailable
                self.seen = None


def counted(tx: Transaction, *, detailed: bool = False) -> FleetSnapshot:
    """Counts the fleet. `detailed`: also each cluster."""
    backup = tx.facts.get(BACKUP_MADE)
    known = FleetSnapshot(
        at=tx.now,
        states=tx.objects.tally(MANAGED_CLUSTERS, AVAILABLE),
        accepted=tx.objects.tally(MANAGED_CLUSTERS, HUB_ACCEPTS),
        versions=tx.objects.tally(MANAGED_CLUSTERS, VERSION),
        brake=brake.now(tx).holds,
        left=_left(tx),
        earliest=tx.trusts.first_end(tx.now),
        replicas=Counter(each.state(tx.now) for each in tx.replicas.all() if not each.is_forgotten(tx.now)),
        kept=history.standing(tx),
        backup=parse_time(backup) if backup else None,
    )
    if not detailed:
        return known
    states = tx.objects.values(MANAGED_CLUSTERS, AVAILABLE)
    return replace(
        known,
        available={key.name: int(state == conditions.TRUE) for key, state in states.items()},
        heard={last.cluster: last.at.timestamp() for last in tx.heartbeats.all() if last.at is not None},
        ends={cluster: end.timestamp() for cluster, end in tx.trusts.ends().items()},
    )


def _left(tx: Transaction) -> Mapping[str, int]:
    """Counts the certificates that end within each span and not within the one before."""
    until = tx.trusts.ending([tx.now + span for span, _ in LEFT])
    return {name: count - before for name, count, before in zip(NAMES, until, (0, *until), strict=False)}


def minor(version: str) -> str:
    """Shortens `v1.30.2+k3s1` to `1.30`: clusters report any version, but a label must have few values."""
    found = _MINOR.match(version)
    return f"{found[1]}.{found[2]}" if found else OTHER


def add_fleet(registry: Registry, store: Store, clock: Clock, *, reserve: int) -> None:
    """`reserve`: free space to keep on the disk of an embedded database, in bytes."""
    look = FleetSnapshots(store, clock, detailed=registry.detailed)
    registry.add_refresh(look)

    def told(
        of: Callable[[FleetSnapshot], float | Mapping[str, float] | None],
    ) -> Callable[[], float | Mapping[str, float] | None]:
        return lambda: None if look.seen is None else of(look.seen)

    registry.bind(CLUSTERS, told(lambda fleet: {name: fleet.states.get(state, 0) for state, name in STATES.items()}))
    registry.bind(ACCEPTED, told(_accepted))
    registry.bind(VERSIONS, told(_versions))
    registry.bind(BRAKE, told(lambda fleet: int(fleet.brake)))
    registry.bind(CERTIFICATES, told(lambda fleet: fleet.left))
    registry.bind(EARLIEST, told(lambda fleet: _seconds(fleet.earliest)))
    registry.bind(REPLICAS, told(lambda fleet: fleet.replicas))
    registry.bind(SIZE, told(lambda fleet: fleet.kept.volume.size))
    registry.bind(FREE, told(lambda fleet: fleet.kept.volume.left))
    registry.bind(RESERVE, lambda: reserve)
    registry.bind(LOG, told(lambda fleet: fleet.kept.ledger.bytes))
    registry.bind(BEGAN, told(lambda fleet: _seconds(fleet.kept.began)))
    registry.bind(BACKUP, told(lambda fleet: _seconds(fleet.backup)))
    registry.bind(SEEN, told(lambda fleet: fleet.at.timestamp()))
    registry.bind(CLUSTER, told(lambda fleet: fleet.available))
    registry.bind(BEAT, told(lambda fleet: fleet.heard))
    registry.bind(EXPIRY, told(lambda fleet: fleet.ends))


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _accepted(fleet: FleetSnapshot) -> Mapping[str, int]:
    accepted = fleet.accepted.get("true", 0)
    return {"true": accepted, "false": sum(fleet.accepted.values()) - accepted}


def _versions(fleet: FleetSnapshot) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for version, count in fleet.versions.items():
        if version:
            found[minor(version)] += count
    return bounded(found)
