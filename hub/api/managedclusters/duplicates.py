"""Two of what there should be one: another cluster that wants a name, and another agent that speaks for a cluster."""

from datetime import datetime, timedelta
from typing import Any

from hub.api.managedclusters.agent_annotations import HUBS, MOVE_TO
from hub.api.managedclusters.cluster import CLUSTER_UID, DUPLICATED, JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import Document
from machinery.errors import AlreadyExistsError, InvalidError
from machinery.identity import AgentId, ClusterName
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.timestamps import format_time, parse_time

WANTED_BY = "hub.open-cluster-management.io/wanted-by-uid"
"""Annotation: the uid of the last cluster that wanted a name which is taken."""
REFUSED_AT = "hub.open-cluster-management.io/second-agent-refused"
"""Annotation: when a second agent of the cluster was last noted as refused, and the id of the first."""
GIVEN_TO = "hub.open-cluster-management.io/given-to-agent"
"""Annotation of a write alone, never stored: the id of the agent that the cluster is given to, among several."""
NOTED_AGAIN, FORGOTTEN_AFTER = timedelta(minutes=10), timedelta(minutes=20)
"""An agent that is refused tries again within minutes."""
MAX_UID = 253
TWO_AGENTS, ANOTHER_CLUSTER = "TwoAgents", "AnotherClusterWithThisName"
ONE_AGENT = Condition(DUPLICATED, conditions.FALSE, "OneAgent", "One agent speaks for this cluster.")
REBUILT = Condition(DUPLICATED, conditions.FALSE, "Rebuilt", "An operator let the rebuilt cluster take this name.")


def check_uid(uid: str) -> None:
    """Raises InvalidError for what no cluster has, and would be kept and shown."""
    if len(uid) > MAX_UID:
        raise InvalidError(f"the uid of a cluster has {MAX_UID} characters at most, not {len(uid)}")


def wanted(joining: JoinRequest) -> Condition:
    """What operators see when another cluster wanted a name that is taken."""
    return Condition(
        DUPLICATED,
        conditions.TRUE,
        ANOTHER_CLUSTER,
        f"A cluster with uid {joining.cluster_uid or 'unknown'} tried to register under this name; give it another cluster "
        f"name, or, if it is this cluster rebuilt: hubctl accept {joining.name} --rebuilt",
    )


def two_agents(holder: AgentId, other: AgentId) -> Condition:
    """What operators see while another agent than the one that has the session wants one for the cluster."""
    return Condition(
        DUPLICATED,
        conditions.TRUE,
        TWO_AGENTS,
        f"Agent {holder} has the session of this cluster, and agent {other}, which wants one, is refused: stop one of them.",
    )


def refused(cluster: ClusterName, holder: AgentId, other: AgentId) -> AlreadyExistsError:
    """The refusal of the other agent, which logs it."""
    return AlreadyExistsError(
        f'agent "{holder}" has a session for cluster "{cluster}", so that agent "{other}" gets none: stop one of the two; '
        f"to have this one take over at once: hubctl accept {cluster} --agent {other}"
    )


def with_refusal(cluster: Document, holder: AgentId, other: AgentId, now: datetime) -> dict[str, Any]:
    """A copy that shows it. It is noted anew at times, so that its end is noticed."""
    shown = doc.with_status_condition(cluster, two_agents(holder, other), now)
    noted = _refused_at(cluster)
    if noted is not None and now - noted < NOTED_AGAIN and holder_of(cluster) == holder:
        return shown
    return doc.with_annotations(shown, {REFUSED_AT: f"{format_time(now)} {holder}"})


def holder_of(cluster: Document) -> AgentId | None:
    """For whose sake another agent was refused last; None: none is shown."""
    _, _, holder = doc.annotations(cluster).get(REFUSED_AT, "").partition(" ")
    return AgentId(holder) if holder and reason(cluster) == TWO_AGENTS else None


def without_refusal(cluster: Document, now: datetime) -> dict[str, Any]:
    """A copy that no longer shows a second agent, where none has been refused for a while."""
    noted = _refused_at(cluster)
    if reason(cluster) != TWO_AGENTS or (noted is not None and now - noted < FORGOTTEN_AFTER):
        return dict(cluster)
    notes = {name: text for name, text in doc.annotations(cluster).items() if name != REFUSED_AT}
    return doc.with_status_condition(doc.with_metadata(cluster, annotations=notes or None), ONE_AGENT, now)


def _refused_at(cluster: Document) -> datetime | None:
    try:
        return parse_time(doc.annotations(cluster)[REFUSED_AT].partition(" ")[0])
    except (KeyError, ValueError):
        return None


def reason(cluster: Document) -> str:
    """Why the cluster is shown as a duplicate; "": it is not."""
    found = conditions.find(doc.conditions(cluster), DUPLICATED)
    return found.reason if found is not None and found.status == conditions.TRUE else ""


def second_agent(cluster: Document) -> str:
    """What the agent that has the session is told of another one that was refused; "": there was none."""
    found = conditions.find(doc.conditions(cluster), DUPLICATED)
    return found.message if found is not None and reason(cluster) == TWO_AGENTS else ""


def uid_of(cluster: Document) -> str:
    """The uid on record, of the managed cluster's kube-system namespace."""
    return doc.annotations(cluster).get(CLUSTER_UID, "")


def is_rebuilt(new: Document, old: Document | None) -> bool:
    """Whether a write gives the name to another cluster than the one that had it."""
    before, after = uid_of(old) if old is not None else "", uid_of(new)
    return bool(before and after and before != after)


def given_to(cluster: Document) -> AgentId | None:
    """The agent that a write gives the cluster to; None: the write does not do that."""
    chosen = doc.annotations(cluster).get(GIVEN_TO)
    return AgentId(chosen) if chosen is not None else None


def with_one_agent(cluster: Document, now: datetime) -> dict[str, Any]:
    """A copy in which the order is carried out: no second agent is left."""
    notes = {name: text for name, text in doc.annotations(cluster).items() if name not in (GIVEN_TO, REFUSED_AT)}
    alone = doc.with_metadata(cluster, annotations=notes or None)
    return doc.with_status_condition(alone, ONE_AGENT, now) if reason(cluster) == TWO_AGENTS else alone


def without_former(cluster: Document) -> dict[str, Any]:
    """A copy without what the cluster that had the name before has left there."""
    notes = {
        name: text for name, text in doc.annotations(cluster).items() if name not in (WANTED_BY, REFUSED_AT, HUBS, MOVE_TO)
    }
    return doc.with_metadata(cluster, annotations=notes or None)
