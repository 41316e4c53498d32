"""Agents: their sessions and their beats."""

from hub.rpc.parts import Parts
from machinery.metrics import Registry, gauge

SESSIONS = gauge("hub_sessions", "Sessions of agents that are open on this replica.")
BEATS_HELD = gauge("hub_heartbeats_held", "Beats that were received and are not yet stored.")
STORING = gauge("hub_heartbeats_storing", "1: beats can be stored; 0: the database refuses them, and none is acknowledged.")
METRICS = (SESSIONS, BEATS_HELD, STORING)


def add_agents(registry: Registry, agents: Parts) -> None:
    registry.bind(SESSIONS, lambda: len(agents.sessions))
    registry.bind(BEATS_HELD, lambda: len(agents.beats))
    registry.bind(STORING, lambda: int(agents.beats.storing))
