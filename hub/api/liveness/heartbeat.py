"""Heartbeats as values."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.identity import ClusterName


@dataclass(frozen=True, slots=True)
class Beat:
    """A beat on its way to the database: how old it was when the flush began, by the replica's monotonic clock."""

    cluster: ClusterName
    age: timedelta
    available: bool | None
    """The agent's verdict on its API server; None: not told."""
    epoch: int = 0
    """Of the session that it came by; 0: its agent keeps none."""


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What the database knows of a cluster's beats."""

    cluster: ClusterName
    at: datetime | None
    available: bool | None
    session: str | None
    """Id of the open session; None: none is open."""
    agent_version: str | None = None
    epoch: int = 0
    """The highest that was heard of from this cluster, by whatever way."""
    owner: str | None = None
    """The hub that its agent reports to instead of this one ("": to none yet); None: it has not said so since the last beat."""

    def outdates(self, epoch: int) -> bool:
        """Whether what comes with this epoch is of an owner that is over. Who keeps none (0) is never outdated."""
        return 0 < epoch < self.epoch
