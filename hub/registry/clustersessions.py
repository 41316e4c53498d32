"""ClusterSession, a kind of this project: the open session of a cluster's agent, on any replica."""

from typing import Any

from hub.api.hubreplicas import AgentSession
from hub.registry.generic.definition import computed, own_resource
from hub.registry.generic.schemas import FLAG, MOMENT, TEXT, cell, described, record
from hub.registry.generic.virtual import ComputedObject
from machinery.apiserver.resource import AGE, Column
from machinery.meta.timestamps import format_micro_time

SCHEMA = record(
    "ClusterSession is the open session of a cluster's agent. It exists while the session is open. Agents with the driver csr "
    "have no session.",
    status=record(
        "State of the session.",
        connected=described(FLAG, "false only in the DELETED event of a session that ended."),
        replica=described(TEXT, "The replica that holds the session."),
        connectedSince=described(MOMENT, "When the session was opened."),
        agent=described(TEXT, "The agent's id."),
        agentVersion=described(TEXT, "The agent's version."),
        lastHeartbeatTime=described(MOMENT, "The newest heartbeat; only in the response to a get of one object."),
    ),
)
_COLUMNS = (
    Column("Connected", cell("status", "connected"), type="boolean", description="Whether the session is open."),
    Column("Replica", cell("status", "replica"), description="The replica that holds it."),
    Column("Version", cell("status", "agentVersion", absent="<unknown>"), description="Version of the agent."),
    AGE,
    Column("Agent", cell("status", "agent"), description="Id of the agent.", priority=1),
)


def session_object(session: AgentSession, version: str | None, *, connected: bool = True) -> ComputedObject:
    """The object of a session. `version`: of the agent, if known. The uid is the same for all sessions of a cluster."""
    status: dict[str, Any] = {
        "connected": connected,
        "replica": session.replica,
        "connectedSince": format_micro_time(session.at),
        "agent": session.agent,
    }
    status |= {"agentVersion": version} if version else {}
    return ComputedObject(session.cluster, f"ClusterSession/{session.cluster}", {"status": status}, session.at)


CLUSTER_SESSION = computed(
    own_resource(
        "clustersessions", "ClusterSession", SCHEMA, _COLUMNS, short_names=("sessions",), verbs=("get", "list", "watch")
    )
)
