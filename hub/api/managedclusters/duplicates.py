"""Duplicates: a second cluster with a name that is taken, and a second agent of one cluster."""

from datetime import datetime, timedelta
from typing import Any

from hub.api.managedclusters.agent_annotations import HUBS, MOVE_TO
from hub.api.managedclusters.cluster import CLUSTER_UID, DUPLICATED, JoinRequest
from hub.api.meta import document as doc
from machinery.errors import AlreadyExistsError, InvalidError
from machinery.identity import AgentId, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time, parse_time

WANTED_BY = "hub.open-cluster-management.io/wanted-by-uid"
"""Annotation: uid of the last cluster that the hub refused because its name is taken."""
REFUSED_AT = "hub.open-cluster-management.io/second-agent-refused"
"""Annotation: time of the last recorded refusal of a second agent, and the id of the first agent."""
GIVEN_TO = "hub.open-cluster-management.io/given-to-agent"
"""Annotation in write requests only, never stored: the id of the agent that gets the cluster's session."""
NOTED_AGAIN, FORGOTTEN_AFTER = timedelta(minutes=10), timedelta(minutes=20)
"""The time of a repeated refusal is recorded again after NOTED_AGAIN. The record is removed after FORGOTTEN_AFTER without a
refusal; a refused agent retries within minutes."""
MAX_UID = 253
TWO_AGENTS, ANOTHER_CLUSTER = "TwoAgents", "AnotherClusterWithThisName"
ONE_AGENT = Condition(DUPLICATED, conditions.FALSE, "OneAgent", "This cluster has one agent.")
REBUILT = Condition(DUPLICATED, conditions.FALSE, "Rebuilt", "An operator has given this name to the rebuilt cluster.")


def check_uid(uid: str) -> None:
    """Raise InvalidError if the uid is too long."""
    if len(uid) > MAX_UID:
        raise InvalidError(f"the uid of a cluster has at most {MAX_UID} characters, not {len(uid)}")


def duplicate_condition(joining: JoinRequest) -> Condition:
    """Return the condition ManagedClusterDuplicated after another cluster has tried to register under this name."""
    message = (
        f"A cluster with uid {joining.cluster_uid or 'unknown'} tried to register under this name. Give it another name, or, "
        f"if it is this cluster rebuilt: hubctl accept {joining.name} --rebuilt"
    )
    return Condition(DUPLICATED, conditions.TRUE, ANOTHER_CLUSTER, message)


def second_agent_error(cluster: ClusterName, holder: AgentId, other: AgentId) -> AlreadyExistsError:
    """Returns the error for the second agent. The agent logs the error."""
    return AlreadyExistsError(
        f'agent "{holder}" has the session of cluster "{cluster}", so the hub refuses agent "{other}": stop one of the two; '
        f"to give the session to this agent at once: hubctl accept {cluster} --agent {other}"
    )


def with_refusal(cluster: Document, holder: AgentId, other: AgentId, now: datetime) -> dict[str, Any]:
    """Return a copy with the condition TwoAgents. The time of the refusal changes after NOTED_AGAIN or for another `holder`."""
    message = f"Agent {holder} has the session of this cluster, so the hub refuses agent {other}: stop one of them."
    shown = doc.with_status_condition(cluster, Condition(DUPLICATED, conditions.TRUE, TWO_AGENTS, message), now)
    noted = _refused_at(cluster)
    if noted is not None and now - noted < NOTED_AGAIN and holder_of(cluster) == holder:
        return shown
    return doc.with_annotations(shown, {REFUSED_AT: f"{format_time(now)} {holder}"})


def holder_of(cluster: Document) -> AgentId | None:
    """Return the agent that had the session at the last refusal; None: no refusal is recorded."""
    _, _, holder = doc.annotations(cluster).get(REFUSED_AT, "").partition(" ")
    return AgentId(holder) if holder and reason(cluster) == TWO_AGENTS else None


def without_refusal(cluster: Document, now: datetime) -> dict[str, Any]:
    """Return a copy with OneAgent instead of TwoAgents; unchanged if a second agent was refused within FORGOTTEN_AFTER."""
    noted = _refused_at(cluster)
    if reason(cluster) != TWO_AGENTS or (noted is not None and now - noted < FORGOTTEN_AFTER):
        return dict(cluster)
    return doc.with_status_condition(doc.with_annotations(cluster, {REFUSED_AT: None}), ONE_AGENT, now)


def _refused_at(cluster: Document) -> datetime | None:
    try:
        return parse_time(doc.annotations(cluster)[REFUSED_AT].partition(" ")[0])
    except (KeyError, ValueError):
        return None


def reason(cluster: Document) -> str:
    """Return the reason of the condition ManagedClusterDuplicated; "" unless the condition is True."""
    found = conditions.find(doc.conditions(cluster), DUPLICATED)
    return found.reason if found is not None and found.status == conditions.TRUE else ""


def second_agent(cluster: Document) -> str:
    """Return the message about a refused second agent, for the agent with the session; "" if there is none."""
    found = conditions.find(doc.conditions(cluster), DUPLICATED)
    return found.message if found is not None and reason(cluster) == TWO_AGENTS else ""


def uid_of(cluster: Document) -> str:
    """Return the recorded uid of the managed cluster's namespace kube-system."""
    return doc.annotations(cluster).get(CLUSTER_UID, "")


def is_rebuilt(new: Document, old: Document | None) -> bool:
    """Return whether a write gives the name to another cluster: it changes the recorded uid of the managed cluster."""
    before, after = uid_of(old) if old is not None else "", uid_of(new)
    return bool(before and after and before != after)


def given_to(cluster: Document) -> AgentId | None:
    """Return the agent that gets the cluster's session by this write; None if the write contains no such order."""
    chosen = doc.annotations(cluster).get(GIVEN_TO)
    return AgentId(chosen) if chosen is not None else None


def with_one_agent(cluster: Document, now: datetime) -> dict[str, Any]:
    """Return a copy of `cluster` without GIVEN_TO and REFUSED_AT, and with OneAgent instead of TwoAgents: one agent remains."""
    alone = doc.with_annotations(cluster, {GIVEN_TO: None, REFUSED_AT: None})
    return doc.with_status_condition(alone, ONE_AGENT, now) if reason(cluster) == TWO_AGENTS else alone


def without_former(cluster: Document) -> dict[str, Any]:
    """Return a copy of `cluster` without the annotations of the cluster that had the name before."""
    return doc.with_annotations(cluster, dict.fromkeys((WANTED_BY, REFUSED_AT, HUBS, MOVE_TO)))
