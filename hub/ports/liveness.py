"""What is known of agents and replicas from moment to moment. None of it is news: no change-log row."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.hubreplicas.replica import AgentSession, Replica
from hub.api.liveness.coverage import Checkpoint
from hub.api.liveness.heartbeat import Beat, LastBeat
from hub.api.managedclusters.transition import Transition
from machinery.identity import AgentId, ClusterName


class Heartbeats(Protocol):
    """The newest beat per cluster, and who owns the cluster: not news, no change-log row."""

    def store(self, beats: Iterable[Beat]) -> Mapping[ClusterName, int]:
        """One statement for all; stores database time minus each beat's age; never moves a beat backwards.

        A beat ends what its agent said of another owner. One of an outdated epoch is not stored: those clusters, each with the
        epoch that is known.
        """

    def of(self, cluster: ClusterName) -> LastBeat | None: ...

    def all(self) -> Sequence[LastBeat]: ...

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        """Records that a session is open (its id), or with None that the one recorded has ended."""

    def claim(self, cluster: ClusterName, epoch: int) -> None:
        """The agent owns itself to this hub, in this epoch if it is the highest: no other owner is recorded any more."""

    def depart(self, cluster: ClusterName, owner: str, epoch: int) -> None:
        """The agent reports to `owner` instead, in this epoch if it is the highest. What it last beat is kept."""

    def lower_epochs(self, epoch: int, *, above: int, cluster: ClusterName | None = None) -> int:
        """Those that are higher than `above` become `epoch`; returns how many. `cluster`: of this one alone."""

    def forget(self, cluster: ClusterName) -> None: ...


class Transitions(Protocol):
    """Every change of a cluster's availability, kept longer than the change log."""

    def add(self, transition: Transition) -> None: ...

    def of(self, cluster: ClusterName, *, limit: int, uid: str | None = None) -> Sequence[Transition]:
        """The newest first; `uid`: those of one ManagedCluster, where others had its name before."""

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        """When each cluster ceased to be Available after that instant, oldest first; those that never did are left out.

        `among`: only these; None: all.
        """

    def silent(self, since: datetime, reason: str) -> int:
        """How many clusters turned Unknown after that instant for that reason, and are so still."""

    def trim(self, before: datetime, limit: int) -> int:
        """Forgets what is older, at most `limit`; returns how many."""


class Marks(Protocol):
    """The replicas' marks that beats can be stored."""

    def all(self) -> Sequence[Checkpoint]: ...

    def put(self, mark: Checkpoint) -> None:
        """Replaces the replica's mark."""

    def begin_anew(self, now: datetime) -> None:
        """The database's clock has jumped: no mark counts any more, and no beat is of the future."""

    def forget(self, before: datetime) -> None:
        """Drops marks that are older: their replicas are gone."""


class Replicas(Protocol):
    """The processes that serve this hub; not news, no change-log row."""

    def all(self) -> Sequence[Replica]:
        """In the order of their names."""

    def of(self, name: str) -> Replica | None: ...

    def put(self, replica: Replica) -> None: ...

    def remove(self, name: str) -> None: ...


class AgentSessions(Protocol):
    """The newest session of every agent, and which replica has it; not news either. `Heartbeats` knows one per cluster."""

    def open(self, session: AgentSession) -> bool:
        """Takes the place of the agent's older one. False: a newer one is recorded, and stays."""

    def agents(self, cluster: ClusterName) -> Sequence[AgentId]:
        """Who has one, in the order of their names."""

    def of(self, cluster: ClusterName) -> Sequence[AgentSession]:
        """Those of its agents, in the order of their names."""

    def close(self, cluster: ClusterName, agent: AgentId, session: str) -> None:
        """Nothing happens when another has taken its place."""

    def opened_since(self, moment: datetime, *, but: str) -> Sequence[AgentSession]:
        """Those that were opened at `moment` or later, on other replicas than `but`."""

    def replicas(self) -> Sequence[str]:
        """All that have one."""

    def end_of(self, replica: str) -> int:
        """Nobody has the sessions of this replica any more; how many they were."""

    def end_all(self) -> None: ...

    def end_unowned(self, before: datetime) -> int:
        """Ends what earlier releases recorded, which says no replica, where nothing was heard since `before`; how many."""
