"""ClusterSession, a kind of this project: the open session of a cluster's agent, on any replica."""

from typing import Any

from hub.api.hubreplicas import AgentSession
from hub.registry.generic.declaration import declared
from hub.registry.generic.definition import computed
from hub.registry.generic.virtual import ComputedObject
from machinery.meta.timestamps import format_micro_time


def session_object(session: AgentSession, version: str | None, *, connected: bool = True) -> ComputedObject:
    """Return the object of a session. `version`: the agent's version, if known. All sessions of a cluster have one uid."""
    status: dict[str, Any] = {
        "connected": connected,
        "replica": session.replica,
        "connectedSince": format_micro_time(session.at),
        "agent": session.agent,
    }
    status |= {"agentVersion": version} if version else {}
    return ComputedObject(session.cluster, f"ClusterSession/{session.cluster}", {"status": status}, session.at)


CLUSTER_SESSION = computed(declared("clustersessions.hub"))
