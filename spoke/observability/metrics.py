"""The Prometheus metrics of an agent and their sources.

No label names a cluster or a hub: the scrape target identifies the agent.
"""

from collections import Counter
from collections.abc import Mapping

from machinery.lifecycle import usage
from machinery.observability.metrics import Registry, counter, gauge, histogram
from machinery.product import version
from spoke.domain.hubs import HubState
from spoke.observability.progress import AgentProgress

OWNER, RESERVE = "owner", "reserve"

BUILD = gauge("spoke_build_info", "Always 1; the version of this agent.", "version")
READY = gauge("spoke_ready", "1: a beat was acknowledged within the lease duration, or this process stands by; 0: not so.")
LIVE = gauge("spoke_live", "1: this process makes progress; 0: something in it is stuck.")
WORKS = gauge("spoke_works", "1: this process works for its agent; 0: it stands by, or stays away.")
LAST_BEAT = gauge("spoke_last_acknowledged_heartbeat_timestamp_seconds", "When a beat was acknowledged last, since 1970.")
BEATS = counter("spoke_heartbeats_acknowledged_total", "Beats that the hub has acknowledged.")
LATENCY = histogram("spoke_heartbeat_acknowledgement_seconds", "From a beat until the hub has acknowledged it.")
SESSIONS = counter("spoke_sessions_total", "Sessions that were opened with a hub.")
TROUBLES = counter("spoke_troubles_total", "What ended a session, or an attempt to open one or to register, by cause.", "cause")
FAILOVERS = counter("spoke_failover_total", "Choices of the hub that holds the session, by their reason.", "reason")
HUBS = gauge("spoke_hubs", "Hubs of the agent's list, by how the agent stands with them.", "state")
EXPIRY = gauge(
    "spoke_certificate_expiry_timestamp_seconds",
    "When the agent's certificate ends, since 1970: at the hub that holds its session, and the first of the others.",
    "hub",
)
RENEWALS = counter("spoke_certificate_renewals_total", "Renewals of the certificate of the hub that holds the session.")
CLUSTER = gauge("spoke_cluster_available", "1: the API server of the managed cluster answers; 0: it does not.")
STEPS = counter("spoke_controller_reconciles_total", "Steps of the agent's controllers.", "controller", "result")
METRICS = (
    *(BUILD, READY, LIVE, WORKS),
    *(LAST_BEAT, BEATS, LATENCY, SESSIONS, TROUBLES, FAILOVERS),
    *(HUBS, EXPIRY, RENEWALS, CLUSTER, STEPS),
    *usage.METRICS,
)
"""All metrics of an agent, in the order of the reference page."""


def registry_of(progress: AgentProgress) -> Registry:
    """A registry of all metrics over the agent's progress."""
    registry, counts = Registry(), progress.counts
    registry.bind(BUILD, lambda: {version(): 1})
    registry.bind(READY, lambda: int(progress.ready().ok))
    registry.bind(LIVE, lambda: int(progress.live().ok))
    registry.bind(WORKS, lambda: int(progress.role().works))
    registry.bind(LAST_BEAT, lambda: progress.last_beat.timestamp() if progress.last_beat else None)
    registry.bind(BEATS, lambda: counts.beats)
    registry.bind(LATENCY, lambda: counts.acknowledgement)
    registry.bind(SESSIONS, lambda: counts.sessions)
    registry.bind(TROUBLES, lambda: counts.troubles)
    registry.bind(FAILOVERS, lambda: counts.decisions)
    registry.bind(HUBS, lambda: _by_state(progress))
    registry.bind(EXPIRY, lambda: _ends(progress))
    registry.bind(RENEWALS, lambda: counts.renewals)
    registry.bind(CLUSTER, lambda: None if (verdict := progress.verdict()) is None else int(verdict))
    registry.bind(STEPS, lambda: counts.steps)
    usage.bind_usage(registry)
    return registry


def _by_state(progress: AgentProgress) -> Mapping[str, int]:
    found = Counter(hub.state for hub in progress.standing.hubs)
    return {state.name.lower(): found[state] for state in HubState}


def _ends(progress: AgentProgress) -> Mapping[str, float]:
    """The earliest end of a credential on either side."""
    ends: dict[str, float] = {}
    standing = progress.standing
    for hub in standing.hubs:
        if hub.credential_ends_at is not None:
            side, end = OWNER if hub.hub_id == standing.owner else RESERVE, hub.credential_ends_at.timestamp()
            ends[side] = min(end, ends.get(side, end))
    return ends
