"""Metrics of agents: sessions, beats, and calls of the gRPC door."""

from collections import Counter
from collections.abc import Mapping

from hub.grpc_door.session.context import DoorContext
from hub.grpc_door.session.sessions import Sessions
from machinery.observability.metrics import Registry, counter, gauge, histogram

MOST_VERSIONS = 30
"""Bounds the number of series, because agents may report any version; all others count as `OTHER`."""
LONGEST = 40
OTHER = "other"

SESSIONS = gauge("hub_sessions", "Sessions of agents that are open on this replica, by the agents' version.", "version")
OPENED = counter("hub_sessions_opened_total", "Sessions that were opened on this replica.")
SUPERSEDED = counter("hub_sessions_superseded_total", "Sessions that ended because the same agent opened a newer one.")
DRAINED = counter(
    "hub_sessions_drained_total", "Sessions that were told to leave: old ones, and all when the replica stops or is drained."
)
CORDONED = gauge("hub_cordoned", "1: an operator has drained this replica, and it takes no sessions; 0: it does.")
STORED = counter("hub_heartbeats_total", "Heartbeats, by what came of them: stored, refused (of an earlier owner).", "result")
REVIVED = counter("hub_heartbeats_revived_total", "Heartbeats among them that ended a silence.")
HELD = gauge("hub_heartbeats_held", "Heartbeats that were received and are not stored yet.")
STORING = gauge("hub_heartbeats_storing", "1: heartbeats can be stored; 0: the database refuses, and none is acknowledged.")
FAILED = counter("hub_heartbeat_flush_failures_total", "Flushes that the database refused; they are tried again.")
LAG = histogram("hub_heartbeat_lag_seconds", "From the receipt of a heartbeat until it was durable.")
FLUSH = histogram("hub_store_flush_seconds", "How long a flush of heartbeats to the database took.")
ROWS = histogram("hub_store_flush_rows", "How many heartbeats a flush stored.")
CALLS = counter("hub_grpc_handled_total", "Calls of the gRPC door that have ended, by method and outcome.", "method", "code")
SECONDS = histogram(
    "hub_grpc_handling_seconds", "How long calls took that were answered; streams are not among them.", "method"
)
IN_FLIGHT = gauge("hub_grpc_in_flight", "Calls of the gRPC door under way, open sessions included.")
METRICS = (
    *(SESSIONS, OPENED, SUPERSEDED, DRAINED, CORDONED),
    *(STORED, REVIVED, HELD, STORING, FAILED, LAG, FLUSH, ROWS),
    *(CALLS, SECONDS, IN_FLIGHT),
)


def add_agents(registry: Registry, agents: DoorContext) -> None:
    sessions, beats, calls = agents.sessions, agents.beats, agents.calls
    counts = beats.counts
    registry.bind(SESSIONS, lambda: by_version(sessions))
    registry.bind(OPENED, lambda: sessions.opened)
    registry.bind(SUPERSEDED, lambda: sessions.superseded)
    registry.bind(DRAINED, lambda: sessions.drained)
    registry.bind(CORDONED, lambda: int(agents.cordon.closed))
    registry.bind(STORED, lambda: {"stored": counts.stored, "refused": counts.refused})
    registry.bind(REVIVED, lambda: counts.revived)
    registry.bind(HELD, lambda: len(beats))
    registry.bind(STORING, lambda: int(beats.storing))
    registry.bind(FAILED, lambda: counts.failures)
    registry.bind(LAG, lambda: counts.lag)
    registry.bind(FLUSH, lambda: counts.flush)
    registry.bind(ROWS, lambda: counts.rows)
    registry.bind(CALLS, lambda: calls.handled)
    registry.bind(SECONDS, lambda: calls.seconds)
    registry.bind(IN_FLIGHT, lambda: agents.gate.in_flight)


def by_version(sessions: Sessions) -> Mapping[str, int]:
    """Returns the number of sessions by agent version; rare versions are counted together."""
    return bounded(Counter(each.agent_version[:LONGEST] for each in sessions.all()))


def bounded(counted: Mapping[str, int], most: int = MOST_VERSIONS) -> Mapping[str, int]:
    """Returns the `most` frequent values, and the sum of all others as `OTHER`."""
    frequent = Counter(counted).most_common()
    rest = sum(count for _, count in frequent[most:])
    told = dict(frequent[:most])
    return told | ({OTHER: told.get(OTHER, 0) + rest} if rest else {})
