"""Metrics of both doors: sessions, beats and calls of agents; requests, watches, limits and logins of operators."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hub.access.limits import AccessLimits
from hub.grpc_door.gate import CallCounts
from hub.grpc_door.session.context import DoorContext
from hub.https_door.server import HttpsServer
from machinery.apiserver.http.filters import Draining
from machinery.observability.metrics import Registry, counter, gauge, histogram

MOST_VERSIONS = 30
"""Largest number of versions with their own series. Agents may report any version; further versions count as `OTHER`."""
MAX_LABEL_LENGTH = 40
OTHER = "other"

SESSIONS = gauge("hub_sessions", "Sessions of agents that are open on this replica, by the agents' version.", "version")
OPENED = counter("hub_sessions_opened_total", "Sessions that were opened on this replica.")
SUPERSEDED = counter("hub_sessions_superseded_total", "Sessions that ended because the same agent opened a newer one.")
DRAINED = counter(
    "hub_sessions_drained_total", "Sessions that were asked to leave: old ones, and all when the replica stops or is drained."
)
CORDONED = gauge("hub_cordoned", "1: an operator has drained this replica, so it accepts no sessions; 0: it accepts sessions.")
STORED = counter("hub_heartbeats_total", "Heartbeats by result: stored, refused (of an earlier owner).", "result")
REVIVED = counter("hub_heartbeats_revived_total", "Heartbeats among them that ended a silence.")
HELD = gauge("hub_heartbeats_held", "Heartbeats that were received and are not stored yet.")
STORING = gauge(
    "hub_heartbeats_storing", "1: heartbeats can be stored; 0: the database rejects them, and none is acknowledged."
)
FAILED = counter("hub_heartbeat_flush_failures_total", "Flushes that the database rejected; they are retried.")
LAG = histogram("hub_heartbeat_lag_seconds", "From the receipt of a heartbeat until it was durable.")
FLUSH = histogram("hub_store_flush_seconds", "Duration of a flush of heartbeats to the database.")
ROWS = histogram("hub_store_flush_rows", "Heartbeats per flush.")
CALLS = counter("hub_grpc_handled_total", "Calls of the gRPC server that have ended, by method and outcome.", "method", "code")
CALL_SECONDS = histogram("hub_grpc_handling_seconds", "Duration of successful calls, without streams.", "method")
CALLS_IN_FLIGHT = gauge("hub_grpc_in_flight", "Calls of the gRPC server in progress, with open sessions.")


def add_agents(registry: Registry, agents: DoorContext) -> None:
    sessions, beats, calls = agents.sessions, agents.beats, agents.calls
    counts = beats.counts
    registry.bind(SESSIONS, lambda: bounded(Counter(each.agent_version[:MAX_LABEL_LENGTH] for each in sessions.all())))
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
    registry.bind(CALL_SECONDS, lambda: calls.seconds)
    registry.bind(CALLS_IN_FLIGHT, lambda: agents.gate.in_flight)


def bounded(counted: Mapping[str, int], most: int = MOST_VERSIONS) -> Mapping[str, int]:
    """Returns at most `most` values, those with the highest counts, and the sum of the other counts as `OTHER`."""
    frequent = Counter(counted).most_common()
    rest = sum(count for _, count in frequent[most:])
    shown = dict(frequent[:most])
    return shown | ({OTHER: shown.get(OTHER, 0) + rest} if rest else {})


ANSWERED = counter(
    "hub_api_requests_total",
    "Requests at the HTTPS API; code 0: the client disconnected before the answer.",
    "verb",
    "resource",
    "code",
)
REQUEST_SECONDS = histogram("hub_api_request_seconds", "Duration of requests, without watches.", "verb")
REQUESTS_IN_FLIGHT = gauge("hub_api_in_flight", "Requests in progress, without watches.")
WATCHES = gauge("hub_watchers", "Open watches, by resource.", "resource")
BEHIND = counter("hub_watchers_behind_total", "Watchers that were too slow and continued from the change log.")
SEATS = gauge("hub_limit_seats_taken", "Requests at both servers that have a seat of their level.", "level")
CAPACITY = gauge("hub_limit_seats", "Seats of a level; no series: no limit.", "level")
WAITING = gauge("hub_limit_waiting", "Requests at both servers that wait for a seat of their level.", "level")
REFUSED = counter("hub_limit_refused_total", "Requests that got no seat in time and were rejected with a retry delay.", "level")
TOO_FAST = counter("hub_limit_rate_refused_total", "Requests that were rejected because their sender exceeds its rate.")
LOGINS = counter("hub_logins_total", "Tokens submitted for a certificate, by kind of authenticator.", "kind", "result")

OCM_CALLS = counter(
    "hub_ocm_grpc_handled_total",
    "Calls of OCM's agents with the driver grpc that have ended, by method and outcome.",
    "method",
    "code",
)
OCM_CONNECTIONS = gauge("hub_ocm_grpc_connections", "Connections of OCM's agents with the driver grpc.")
OCM_STREAMS = gauge("hub_ocm_grpc_streams", "Subscriptions of OCM's agents with the driver grpc, by data type.", "type")


def add_ocm_grpc(
    registry: Registry, calls: CallCounts, connections: Callable[[], int], streams: Callable[[], Mapping[str, int]]
) -> None:
    registry.bind(OCM_CALLS, lambda: calls.handled)
    registry.bind(OCM_CONNECTIONS, connections)
    registry.bind(OCM_STREAMS, streams)


def add_requests(registry: Registry, operators: HttpsServer, draining: Draining) -> None:
    counts, watches = operators.server.counts, operators.server.watches
    registry.bind(ANSWERED, lambda: counts.answered)
    registry.bind(REQUEST_SECONDS, lambda: counts.seconds)
    registry.bind(REQUESTS_IN_FLIGHT, lambda: draining.in_flight)
    registry.bind(WATCHES, watches.by_resource)
    registry.bind(BEHIND, lambda: operators.feed.behind)


def add_logins(registry: Registry, outcomes: Mapping[str, int]) -> None:
    """Add the metric of logins. `outcomes`: counts by kind of authenticator and result, separated by a space."""
    registry.bind(LOGINS, lambda: {tuple(key.split(" ", 1)): count for key, count in outcomes.items()})


def add_limits(registry: Registry, limits: AccessLimits) -> None:
    registry.bind(SEATS, lambda: _of_levels(limits, "taken"))
    registry.bind(CAPACITY, lambda: _of_levels(limits, "seats"))
    registry.bind(WAITING, lambda: _of_levels(limits, "waiting"))
    registry.bind(REFUSED, lambda: _of_levels(limits, "refused"))
    registry.bind(TOO_FAST, lambda: limits.rates.snapshot()["refused"])


def _of_levels(limits: AccessLimits, what: str) -> Mapping[str, Any]:
    counts = {level: pool.snapshot()[what] for level, pool in limits.pools.items()}
    return {level: count for level, count in counts.items() if isinstance(count, int)}
