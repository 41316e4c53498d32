"""Two of what there should be one: another cluster that wants a name, and another agent that speaks for a cluster."""

from collections.abc import Collection
from typing import Any

from hub.domain import document as doc
from hub.domain.change import Document
from hub.domain.cluster import CLUSTER_UID, DUPLICATED, Joining
from hub.domain.reported import HUBS, MOVE_TO
from machinery import conditions
from machinery.conditions import Condition
from machinery.errors import InvalidError
from machinery.identity import AgentId

WANTED_BY = "hub.open-cluster-management.io/wanted-by-uid"
"""Annotation: the uid of the last cluster that wanted a name which is taken."""
MAX_UID = 253
TWO_AGENTS, ANOTHER_CLUSTER = "TwoAgents", "AnotherClusterWithThisName"
ONE_AGENT = Condition(DUPLICATED, conditions.FALSE, "OneAgent", "One agent speaks for this cluster.")
REBUILT = Condition(DUPLICATED, conditions.FALSE, "Rebuilt", "An operator let the rebuilt cluster take this name.")


def check_uid(uid: str) -> None:
    """Raises InvalidError for what no cluster has, and would be kept and shown."""
    if len(uid) > MAX_UID:
        raise InvalidError(f"the uid of a cluster has {MAX_UID} characters at most, not {len(uid)}")


def wanted(joining: Joining) -> Condition:
    """What operators see when another cluster wanted a name that is taken."""
    return Condition(
        DUPLICATED,
        conditions.TRUE,
        ANOTHER_CLUSTER,
        f"A cluster with uid {joining.cluster_uid or 'unknown'} tried to register under this name; give it another cluster "
        f"name, or, if it is this cluster rebuilt: hubctl accept {joining.name} --rebuilt",
    )


def two_agents(agents: Collection[AgentId]) -> Condition:
    """What operators see while several agents have a session for one cluster."""
    return Condition(
        DUPLICATED,
        conditions.TRUE,
        TWO_AGENTS,
        f"Agents {', '.join(sorted(agents))} each have a session for this cluster: stop all but one.",
    )


def reason(cluster: Document) -> str:
    """Why the cluster is shown as a duplicate; "": it is not."""
    found = conditions.find(doc.conditions(cluster), DUPLICATED)
    return found.reason if found is not None and found.status == conditions.TRUE else ""


def uid_of(cluster: Document) -> str:
    """The uid on record, of the managed cluster's kube-system namespace."""
    return doc.annotations(cluster).get(CLUSTER_UID, "")


def is_rebuilt(new: Document, old: Document | None) -> bool:
    """Whether a write gives the name to another cluster than the one that had it."""
    before, after = uid_of(old) if old is not None else "", uid_of(new)
    return bool(before and after and before != after)


def without_former(cluster: Document) -> dict[str, Any]:
    """A copy without what the cluster that had the name before has left there."""
    notes = {name: text for name, text in doc.annotations(cluster).items() if name not in (WANTED_BY, HUBS, MOVE_TO)}
    return doc.with_metadata(cluster, annotations=notes or None)
