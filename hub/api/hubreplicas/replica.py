"""Replicas of the hub, and the agents' sessions that each has, as values."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.identity import AgentId, ClusterName

BEAT = timedelta(seconds=2)
"""How often a replica says that it is there."""
LOST_AFTER = timedelta(seconds=10)
"""A replica that has not said so for this long is taken for dead: its sessions are nobody's."""
FORGOTTEN_AFTER = timedelta(minutes=10)
"""Then nobody is told of it any more."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica measured of itself when it told last."""

    watches: int
    """On its HTTPS door."""
    cpu: float
    """Processor seconds per second since it told before."""
    memory: int
    """Bytes that are resident."""
    ahead: timedelta
    """How far its clock is before the database's."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One process that serves this hub, as its row says."""

    name: str
    home: str
    """What only one process at a time can have, its data directory: who has it may take the name over at once."""
    instance: str
    """This one start of the process."""
    version: str
    grpc: str
    https: str
    """The addresses that are listened on."""
    started: datetime
    seen: datetime
    sessions: int = 0
    ready: bool = False
    draining: bool = False
    """The process ends."""
    drained: bool = False
    """An operator wants no session on it; ends with the process."""
    load: Load | None = None
    """None: it is of a release that does not tell."""

    def is_lost(self, now: datetime) -> bool:
        """It has not said for so long that it lives, or said it by a clock that was ahead, and not since that was put right."""
        return abs(now - self.seen) > LOST_AFTER

    def state(self, now: datetime) -> str:
        """For people: Starting, Ready, Draining, Drained or Lost."""
        if self.is_lost(now):
            return "Lost"
        if self.draining:
            return "Draining"
        if self.drained:
            return "Draining" if self.sessions else "Drained"
        return "Ready" if self.ready else "Starting"

    def takes_sessions(self, now: datetime) -> bool:
        return self.ready and not (self.draining or self.drained or self.is_lost(now))

    def is_forgotten(self, now: datetime) -> bool:
        return abs(now - self.seen) > FORGOTTEN_AFTER


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The newest session of one agent, on whichever replica. `at`: when it was opened, in database time."""

    cluster: ClusterName
    agent: AgentId
    session: str
    replica: str
    at: datetime

    def is_newer_than(self, session: str, at: datetime) -> bool:
        """Whether it takes the place of that session. Of two that were opened at one instant all replicas choose the same."""
        return self.session != session and (self.at, self.session) > (at, session)


def could_tell(since: datetime | None, now: datetime) -> bool:
    """Whether all replicas had the time that they always have to say that they live.

    `since`: from when on the hub could write without a gap; None: it cannot now. Until then nobody is dead who was silent.
    """
    return since is not None and now - since > LOST_AFTER


def alive(replicas: Iterable[Replica], now: datetime) -> frozenset[str]:
    """The names of those that are not lost."""
    return frozenset(replica.name for replica in replicas if not replica.is_lost(now))
