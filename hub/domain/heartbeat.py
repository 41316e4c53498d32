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


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What the database knows of a cluster's beats."""

    cluster: ClusterName
    at: datetime | None
    available: bool | None
    session: str | None
    """Id of the open session; None: none is open."""
    agent_version: str | None = None
