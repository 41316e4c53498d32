"""What an agent says before it falls silent: that it reports to another hub. Nothing is wrong with such a cluster."""

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
"""Reasons for which a cluster is Unknown without being silent: its agent said so."""


class Parting(StrEnum):
    """Why an agent said that it would fall silent."""

    MOVED = "Moved"
    STANDBY = "Standby"


@dataclass(frozen=True, slots=True)
class Departure:
    """An agent says that it reports elsewhere."""

    cluster: ClusterName
    owner: HubId
    """The hub that it reports to; "": none yet."""
    epoch: int = 0
    agent: AgentId | None = None
    """The agent that reports it; None: it is not reported."""


def silence(*, heard: bool, parting: Parting | None = None) -> Condition:
    """Availability at the end of a silence's grace. `heard`: a beat ever came; `parting`: what the agent said when it left."""
    if parting is not None:
        return MOVED if parting is Parting.MOVED else STANDBY
    return SILENT if heard else NEVER_JOINED


def parted(owner: str, *, heard: bool) -> Condition:
    """Availability of a cluster whose agent reports to the hub `owner` ("": to none yet). `heard`: it has reported here."""
    condition = silence(heard=heard, parting=Parting.MOVED if heard and owner else Parting.STANDBY)
    if not owner:
        return replace(condition, message="The registration agent reports to no hub yet, and holds this one in reserve.")
    return replace(condition, message=condition.message.replace("another hub", f"the hub {owner}"))


def has_parted(available: Condition | None) -> bool:
    """Whether nothing is wrong with a cluster although nothing is heard of it."""
    return available is not None and available.status == conditions.UNKNOWN and available.reason in PARTED
