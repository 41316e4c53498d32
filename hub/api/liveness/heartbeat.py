"""Heartbeats as values."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.identity import ClusterName


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat that waits for the flush. `age`: at the start of the flush, by the replica's monotonic clock."""

    cluster: ClusterName
    age: timedelta
    available: bool | None
    """The agent's verdict on its API server; None: no verdict."""
    epoch: int = 0
    """Epoch of the session; 0: the agent has no epochs."""


@dataclass(frozen=True, slots=True)
class LastBeat:
    """Stored state of a cluster's heartbeats."""

    cluster: ClusterName
    at: datetime | None
    available: bool | None
    session: str | None
    """Id of the open session; None without one."""
    agent_version: str | None = None
    epoch: int = 0
    """The highest known epoch of this cluster, from any message."""
    owner: str | None = None
    """The other hub that owns the agent ("": none yet); None if the agent has not reported one since its last beat."""

    def outdates(self, epoch: int) -> bool:
        """Whether this epoch is lower than the known one. Agents without epochs (0) are never outdated."""
        return 0 < epoch < self.epoch
