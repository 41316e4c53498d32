"""Availability of clusters whose agent has reported that it uses another hub. This is not a fault."""

from dataclasses import dataclass, replace
from enum import StrEnum

from hub.api.managedclusters.cluster import NEVER_JOINED, SILENT
from machinery.identity import AgentId, ClusterName, HubId
from machinery.meta import conditions
from machinery.meta.conditions import Condition

MOVED = Condition(
    conditions.AVAILABLE,
    conditions.UNKNOWN,
    "ManagedClusterMoved",
    "The registration agent has moved to another hub.",
)
STANDBY = Condition(
    conditions.AVAILABLE,
    conditions.UNKNOWN,
    "ManagedClusterStandby",
    "The registration agent reports to another hub, and holds this one in reserve.",
)
PARTED = frozenset((MOVED.reason, STANDBY.reason))
"""Reasons for Unknown after the agent announced its departure; such a cluster is not silent."""


class Parting(StrEnum):
    """Why an agent announced that it stops sending beats."""

    MOVED = "Moved"
    STANDBY = "Standby"


@dataclass(frozen=True, slots=True)
class Departure:
    """An agent's report that another hub owns it."""

    cluster: ClusterName
    owner: HubId
    """The hub that owns the agent; "" if none does yet."""
    epoch: int = 0
    agent: AgentId | None = None
    """The reporting agent; None if the report does not name it."""


def silence(*, heard: bool, parting: Parting | None = None) -> Condition:
    """Availability at the end of the grace. `heard`: a beat was ever received; `parting`: the agent's announcement."""
    if parting is not None:
        return MOVED if parting is Parting.MOVED else STANDBY
    return SILENT if heard else NEVER_JOINED


def parted(owner: str, *, heard: bool) -> Condition:
    """Availability of a cluster whose agent is owned by the hub `owner` ("": none yet). `heard`: it once reported here."""
    condition = silence(heard=heard, parting=Parting.MOVED if heard and owner else Parting.STANDBY)
    if not owner:
        return replace(condition, message="The registration agent reports to no hub yet, and holds this one in reserve.")
    return replace(condition, message=condition.message.replace("another hub", f"the hub {owner}"))


def has_parted(available: Condition | None) -> bool:
    """Whether the cluster is Unknown only because its agent uses another hub."""
    return available is not None and available.status == conditions.UNKNOWN and available.reason in PARTED
