"""Access to heartbeats, sessions, replicas, transitions and the leader lock. Their writes add no change-log row."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from hub.api.hubreplicas import AgentSession, Replica
from hub.api.liveness import Beat, Checkpoint, LastBeat
from hub.api.managedclusters.availability import Transition
from machinery.election.lock import Candidate, LockRecord
from machinery.identity import AgentId, ClusterName

T = TypeVar("T")


class Heartbeats(Protocol):
    """The newest beat of each cluster, and the hub that owns its agent."""

    def store(self, beats: Iterable[Beat]) -> Mapping[ClusterName, int]:
        """Store all beats in one statement. Returns the clusters whose beats have an outdated epoch, with the known epoch.

        The stored time is database time minus the beat's age; this time never moves backwards. A beat clears another owner that
        the agent reported before. Beats of an outdated epoch are not stored.
        """

    def of(self, cluster: ClusterName) -> LastBeat | None: ...

    def all(self, among: Collection[ClusterName] | None = None) -> Sequence[LastBeat]:
        """Return the last beat of each cluster, ordered by cluster name. `among`: only these clusters; None: all."""

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        """Record the id of the open session, and the agent's version. A value that is None leaves the stored value."""

    def end_session(self, cluster: ClusterName, session: str) -> None:
        """Record that the session has ended. Does nothing if another session is recorded for the cluster."""

    def set_available(self, cluster: ClusterName, *, available: bool) -> None:
        """Record the verdict of an agent whose beats have none."""

    def claim(self, cluster: ClusterName, epoch: int) -> None:
        """Record that this hub owns the agent, in `epoch` if that is the highest, and clear any other owner."""

    def depart(self, cluster: ClusterName, owner: str, epoch: int) -> None:
        """Record that `owner` owns the agent, in `epoch` if that is the highest. The last beat is kept."""

    def lower_epochs(self, epoch: int, *, above: int, cluster: ClusterName | None = None) -> int:
        """Set epochs above `above` to `epoch`, for all clusters or only for `cluster`. Return the number of changed rows."""

    def forget(self, cluster: ClusterName) -> None: ...


class Transitions(Protocol):
    """All changes of clusters' availability. They are kept longer than the change log."""

    def add(self, transition: Transition) -> None: ...

    def of(
        self, cluster: ClusterName | None, *, limit: int, since: datetime | None = None, until: datetime | None = None
    ) -> Sequence[Transition]:
        """Return at most `limit` transitions of a cluster (None: of all), newest first. `since` and `until` are inclusive."""

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        """Return, per cluster, when it ceased to be Available after `since`, oldest first. Moves to other hubs do not count.

        Clusters without such an instant are left out. `among`: only these clusters; None: all.
        """

    def silent(self, since: datetime, reason: str) -> int:
        """Return the number of clusters that became Unknown after `since` for this reason, and are still Unknown."""

    def trim(self, before: datetime, limit: int) -> int:
        """Delete at most `limit` transitions before this instant, oldest first; return their number."""


class Marks(Protocol):
    """The replicas' marks, which prove that they could store beats."""

    def all(self) -> Sequence[Checkpoint]: ...

    def put(self, mark: Checkpoint) -> None:
        """Add or replace the replica's mark."""

    def restart_coverage(self, now: datetime) -> None:
        """Delete all marks, and set times of beats that are after `now` to `now`. Used after a jump of the database's clock."""

    def forget(self, before: datetime) -> None:
        """Delete marks from before this instant: their replicas no longer exist."""


class Replicas(Protocol):
    """The processes that serve this hub. Writes add no change-log row."""

    def all(self) -> Sequence[Replica]:
        """Return all replicas, ordered by name."""

    def of(self, name: str) -> Replica | None: ...

    def put(self, replica: Replica) -> None: ...

    def remove(self, name: str) -> None: ...


class AgentSessions(Protocol):
    """The newest session of each agent, with its replica. `Heartbeats` has one session per cluster. Not in the change log."""

    def open(self, session: AgentSession) -> bool:
        """Replace the agent's older session. Returns False, and changes nothing, if a newer one is recorded."""

    def agents(self, cluster: ClusterName) -> Sequence[AgentId]:
        """Return the ids of the cluster's agents that have a session, ordered by id."""

    def of(self, cluster: ClusterName) -> Sequence[AgentSession]:
        """Return the sessions of the cluster's agents, ordered by agent id."""

    def close(self, cluster: ClusterName, agent: AgentId, session: str) -> None:
        """Delete the session, unless another session has replaced it."""

    def opened_since(self, moment: datetime, *, but: str) -> Sequence[AgentSession]:
        """Return the sessions that were opened at `moment` or later, on all replicas except the replica `but`."""

    def all(self) -> Sequence[AgentSession]: ...

    def fingerprint(self) -> Hashable:
        """Return a value that differs after a session has opened or ended. The database computes it."""

    def replicas(self) -> Sequence[str]:
        """Return the names of all replicas that have a session."""

    def end_of(self, replica: str) -> int:
        """Delete all sessions of this replica, also from `Heartbeats`; return their number."""

    def end_all(self) -> None: ...


class Leaders(Protocol):
    """The leader lock, for which the replicas of a hub compete. `renew` does not wait for the disk; `take` and `release` do."""

    def record(self) -> LockRecord | None:
        """Return the record of the leader lock; None: no replica has ever held the lock."""

    def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        """Make `candidate` the holder in a new term. Raises ConflictError unless the record equals `seen`.

        Waits for transactions that have called `require` in the previous term, so that none of them commits later.
        """

    def renew(self, held: LockRecord) -> LockRecord:
        """Renew the lock. Raises ConflictError unless it equals `held`. Transactions that called `require` do not block it."""

    def release(self, held: LockRecord) -> bool:
        """Release the lock if it equals `held`; return whether it did. The term stays, and the next term is higher."""

    def require(self, term: int) -> None:
        """Raise NotLeaderError unless `term` is the newest. No newer term can begin until this transaction ends."""


class LeaderLockConnection(Protocol):
    """Database access with its own connection and thread, which load on the store cannot delay."""

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        """Run one short transaction. Raises UnavailableError. A cancelled caller frees the connection for the next one."""

    async def close(self) -> None: ...
