"""Use cases about replicas and the sessions that each has: no revision, no change-log row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hub.api.core.event import WARNING, EventRecord
from hub.api.hubreplicas.replica import LOST_AFTER, AgentSession, Replica, alive
from hub.api.liveness.heartbeat import LastBeat
from hub.api.managedclusters import duplicates as duplicate
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Key
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.events import service as events
from hub.registry.hubreplicas.drain import API_VERSION, KIND
from hub.registry.managedclusters import service as clusters
from hub.registry.multihub import owners
from machinery.durations import format_duration
from machinery.errors import AlreadyExistsError
from machinery.identity import AgentId, ClusterName

ACTOR = "system:hub:sessions"
AHEAD = timedelta(seconds=15)
"""What was recorded by so much later a time was recorded before the database's clock was set back."""


@dataclass(frozen=True, slots=True)
class ReplicaStanding:
    """What a replica hears when it tells of itself."""

    known: bool
    """False: it was given up meanwhile, and its sessions with it."""
    drained: bool
    """An operator wants no session on it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session of an agent that was opened here, or that had been (`at`: then)."""

    cluster: ClusterName
    agent: AgentId
    session: str
    agent_version: str
    replica: str
    at: datetime | None = None
    epoch: int = 0


def begin(tx: Transaction, me: Replica) -> datetime:
    """Takes the name, and ends the sessions of whoever had it before; the database's time. Raises AlreadyExistsError.

    Whoever had it is dead when it lived in this very data directory, which is locked, or when its row is old. Else nobody can
    tell yet: ask again when a beat must have come.
    """
    before = tx.replicas.of(me.name)
    if before is not None and before.home != me.home and not before.is_lost(tx.now):
        raise AlreadyExistsError(
            f'another replica called "{me.name}" serves this database: give each a name of its own with --replica-name'
        )
    tx.agent_sessions.end_of(me.name)
    tx.replicas.put(replace(me, started=tx.now, seen=tx.now))
    return tx.now


def begin_alone(tx: Transaction, me: Replica) -> datetime:
    """The same where no other replica can be: whatever is recorded has ended, of earlier releases too."""
    for other in tx.replicas.all():
        tx.replicas.remove(other.name)
    tx.agent_sessions.end_all()
    tx.replicas.put(replace(me, started=tx.now, seen=tx.now))
    return tx.now


def beat(tx: Transaction, me: Replica) -> ReplicaStanding:
    """Says that this replica is there. Whether it is drained is the row's word; where the row is gone, the replica's own.

    Its clock is read as `me.seen`. Raises AlreadyExistsError when another process has taken its name.
    """
    before = tx.replicas.of(me.name)
    if before is not None and before.instance != me.instance:
        raise AlreadyExistsError(f'another process has taken the name of this replica, "{me.name}"')
    lost = before is None or tx.now - before.seen > LOST_AFTER
    drained = before.drained if before else me.drained
    load = replace(me.load, ahead=me.seen - tx.now) if me.load else None
    tx.replicas.put(replace(me, started=before.started if before else tx.now, seen=tx.now, drained=drained, load=load))
    return ReplicaStanding(not lost, drained)


def leave(tx: Transaction, me: Replica) -> None:
    """This replica ends in good order."""
    before = tx.replicas.of(me.name)
    if before is not None and before.instance == me.instance:
        tx.agent_sessions.end_of(me.name)
        tx.replicas.remove(me.name)


def is_swept(tx: Transaction) -> bool:
    """Whether `sweep` would find nothing to do; what earlier releases left is left to the next sweep that has a reason."""
    everybody = tx.replicas.all()
    gone = any(replica.is_forgotten(tx.now) for replica in everybody)
    return not gone and alive(everybody, tx.now).issuperset(tx.agent_sessions.replicas())


def sweep(tx: Transaction) -> int:
    """Ends the sessions of replicas that died, and forgets those that did so long ago; how many sessions."""
    everybody = tx.replicas.all()
    living = alive(everybody, tx.now)
    lost = {name: tx.agent_sessions.end_of(name) for name in tx.agent_sessions.replicas() if name not in living}
    events.tell(tx, [_lost(name, sessions) for name, sessions in lost.items()], ACTOR)
    ended = sum(lost.values()) + tx.agent_sessions.end_unowned(tx.now - LOST_AFTER)
    for replica in everybody:
        if replica.is_forgotten(tx.now):
            tx.replicas.remove(replica.name)
    return ended


def _lost(name: str, sessions: int) -> EventRecord:
    message = (
        f"it has not said for {format_duration(LOST_AFTER)} that it lives: {sessions} sessions of agents that it had are over"
    )
    return EventRecord(
        "", {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}, "ReplicaLost", message, WARNING
    )


def open_session(tx: Transaction, opened: Opened) -> AgentSession:
    """Records it as the agent's newest, unless a newer one or a higher epoch is recorded; as it stands then."""
    session = AgentSession(opened.cluster, opened.agent, opened.session, opened.replica, opened.at or tx.now)
    last = tx.heartbeats.of(opened.cluster)
    if last is not None and last.outdates(opened.epoch):
        return session
    is_newest = tx.agent_sessions.open(session)
    if not is_newest and opened.at is None and (last_at := _recorded(tx, session)) > tx.now + AHEAD:
        session = replace(session, at=last_at + timedelta(microseconds=1))
        is_newest = tx.agent_sessions.open(session)
    if is_newest:
        tx.heartbeats.set_session(opened.cluster, opened.session, agent_version=opened.agent_version)
        _show_agents(tx, opened.cluster)
    return session


def _recorded(tx: Transaction, session: AgentSession) -> datetime:
    """When the agent's newest session was opened."""
    return next((each.at for each in tx.agent_sessions.of(session.cluster) if each.agent == session.agent), session.at)


def close_session(tx: Transaction, cluster: ClusterName, agent: AgentId, session: str) -> None:
    """Records that `session` ended, unless another has taken its place."""
    tx.agent_sessions.close(cluster, agent, session)
    last: LastBeat | None = tx.heartbeats.of(cluster)
    if last is not None and last.session == session:
        tx.heartbeats.set_session(cluster, None)
    _show_agents(tx, cluster, ended=True)


def _show_agents(tx: Transaction, cluster: ClusterName, *, ended: bool = False) -> None:
    """Shows that several agents speak for the cluster, or no longer. That is news; where one does, nothing is written."""
    agents = tx.agent_sessions.agents(cluster)
    if len(agents) == 1 and not ended:
        return
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None:
        return
    shown = duplicate.reason(stored.document)
    if len(agents) > 1:
        holder, other, *_ = sorted(tx.agent_sessions.of(cluster), key=lambda each: (each.at, each.session))
        owners.note_second(tx, cluster, holder.agent, other.agent, ACTOR)
    elif len(agents) <= 1 and shown == duplicate.TWO_AGENTS:
        new = duplicate.without_refusal(stored.document, tx.now)
        if doc.differs(new, stored.document):
            clusters.put(tx, new, stored, ACTOR, writer=HUB_WRITER)


def opened_since(tx: Transaction, moment: datetime | None, *, but: str) -> tuple[datetime, Sequence[AgentSession]]:
    """The database's time, and the sessions that were opened at `moment` or later on other replicas than `but`."""
    return tx.now, () if moment is None else tx.agent_sessions.opened_since(moment, but=but)
