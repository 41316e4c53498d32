"""Use cases about replicas, their sessions and drains, leader terms and the log level. No write adds a change-log row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hub.api import hubreplicas
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.hubreplicas import LOST_AFTER, AgentSession, LogLevelOrder, Replica, alive
from hub.api.managedclusters import duplicates
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry import events, owners
from hub.registry.managedclusters import service as clusters
from machinery.durations import format_duration
from machinery.errors import AlreadyExistsError, ConflictError, NotFoundError
from machinery.identity import AgentId, ClusterName
from machinery.meta.objects import Key
from machinery.product import GROUP_SUFFIX

ACTOR = "system:hub:sessions"
AHEAD = timedelta(seconds=15)
"""How far a recorded time may be ahead of the database's clock. A later time was written before the clock was set back."""


@dataclass(frozen=True, slots=True)
class ReplicaUpdate:
    """Result of a replica's periodic update."""

    known: bool
    """False: the replica counts as lost, and its sessions have ended."""
    drained: bool
    """An operator has drained the replica."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session at `replica` to record. `at`: its start, if it was recorded before; None: it starts now."""

    cluster: ClusterName
    agent: AgentId
    session: str
    agent_version: str
    replica: str
    at: datetime | None = None
    epoch: int = 0


def begin(tx: Transaction, me: Replica) -> datetime:
    """Take the replica's name, and end the sessions of the name's previous holder. Returns the database's time.

    Raises AlreadyExistsError if the previous holder may still run: then retry after LOST_AFTER. The holder has ended if it
    counts as lost, or if it used the same data directory, because this process holds the lock of that directory.
    """
    before = tx.replicas.of(me.name)
    if before is not None and before.home != me.home and not before.is_lost(tx.now):
        raise AlreadyExistsError(
            f'another replica with the name "{me.name}" uses this database: give each its own name with --replica-name'
        )
    tx.agent_sessions.end_of(me.name)
    tx.replicas.put(replace(me, started=tx.now, seen=tx.now))
    return tx.now


def begin_alone(tx: Transaction, me: Replica) -> datetime:
    """Take the replica's name if no other replica can exist: remove all replica rows and end all recorded sessions."""
    for other in tx.replicas.all():
        tx.replicas.remove(other.name)
    tx.agent_sessions.end_all()
    tx.replicas.put(replace(me, started=tx.now, seen=tx.now))
    return tx.now


def beat(tx: Transaction, me: Replica) -> ReplicaUpdate:
    """Update this replica's row. `me.seen`: the replica's clock; `me.drained` is used only if the row does not exist.

    Raises AlreadyExistsError if another process has taken its name.
    """
    before = tx.replicas.of(me.name)
    if before is not None and before.instance != me.instance:
        raise AlreadyExistsError(f'another process has taken the name of this replica, "{me.name}"')
    lost = before is None or tx.now - before.seen > LOST_AFTER
    drained = before.drained if before else me.drained
    load = replace(me.load, ahead=me.seen - tx.now)
    tx.replicas.put(replace(me, started=before.started if before else tx.now, seen=tx.now, drained=drained, load=load))
    return ReplicaUpdate(not lost, drained)


def leave(tx: Transaction, me: Replica) -> None:
    """Remove this replica's row and end its sessions, at an orderly shutdown."""
    before = tx.replicas.of(me.name)
    if before is not None and before.instance == me.instance:
        tx.agent_sessions.end_of(me.name)
        tx.replicas.remove(me.name)


def is_swept(tx: Transaction) -> bool:
    """Whether `sweep` has nothing to do."""
    everybody = tx.replicas.all()
    gone = any(replica.is_forgotten(tx.now) for replica in everybody)
    return not gone and alive(everybody, tx.now).issuperset(tx.agent_sessions.replicas())


def sweep(tx: Transaction) -> int:
    """End sessions of lost replicas and remove old rows; return the number of ended sessions."""
    replicas = tx.replicas.all()
    living = alive(replicas, tx.now)
    lost = {name: tx.agent_sessions.end_of(name) for name in tx.agent_sessions.replicas() if name not in living}
    silence = f"it has not updated its state for {format_duration(LOST_AFTER)}"
    messages = {name: f"{silence}: its {sessions} agent sessions have ended" for name, sessions in lost.items()}
    events.record(tx, [_event(name, "ReplicaLost", message, WARNING) for name, message in messages.items()], ACTOR)
    ended = sum(lost.values())
    for replica in replicas:
        if replica.is_forgotten(tx.now):
            tx.replicas.remove(replica.name)
    return ended


def _event(name: str, reason: str, message: str, kind: str = NORMAL) -> EventRecord:
    return EventRecord("", {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}, reason, message, kind)


def open_session(tx: Transaction, opened: Opened) -> AgentSession:
    """Record the agent's newest session, unless a newer session or a higher epoch is recorded. Returns the session."""
    session = AgentSession(opened.cluster, opened.agent, opened.session, opened.replica, opened.at or tx.now)
    last = tx.heartbeats.of(opened.cluster)
    if last is not None and last.outdates(opened.epoch):
        return session
    is_newest = tx.agent_sessions.open(session)
    if not is_newest and opened.at is None:
        recorded = next((each.at for each in tx.agent_sessions.of(opened.cluster) if each.agent == opened.agent), tx.now)
        if recorded > tx.now + AHEAD:
            session = replace(session, at=recorded + timedelta(microseconds=1))
            is_newest = tx.agent_sessions.open(session)
    if is_newest:
        tx.heartbeats.set_session(opened.cluster, opened.session, agent_version=opened.agent_version)
        _show_agents(tx, opened.cluster)
    return session


def close_session(tx: Transaction, cluster: ClusterName, agent: AgentId, session: str) -> None:
    """Record that `session` has ended, unless another session has replaced it."""
    tx.agent_sessions.close(cluster, agent, session)
    tx.heartbeats.end_session(cluster, session)
    _show_agents(tx, cluster, ended=True)


def _show_agents(tx: Transaction, cluster: ClusterName, *, ended: bool = False) -> None:
    """Update the condition about several agents of the cluster after a session has opened or (`ended`) has ended."""
    agents = tx.agent_sessions.agents(cluster)
    if len(agents) == 1 and not ended:
        return
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None:
        return
    if len(agents) > 1:
        holder, other, *_ = sorted(tx.agent_sessions.of(cluster), key=lambda each: (each.at, each.session))
        owners.note_second(tx, cluster, holder.agent, other.agent, ACTOR)
    elif duplicates.reason(stored.document) == duplicates.TWO_AGENTS:
        clusters.put_changed(tx, duplicates.without_refusal(stored.document, tx.now), stored, ACTOR)


def opened_since(tx: Transaction, moment: datetime | None, *, but: str) -> tuple[datetime, Sequence[AgentSession]]:
    """Return the database's time, and sessions that other replicas than `but` opened from `moment` on (None: no sessions)."""
    return tx.now, () if moment is None else tx.agent_sessions.opened_since(moment, but=but)


API_VERSION, KIND = f"hub.{GROUP_SUFFIX}/v1alpha1", "HubReplica"


def order_drain(tx: Transaction, name: str, actor: str, *, force: bool = False, dry_run: bool = False) -> Replica:
    """Order the replica to have no sessions, until `end_drain` or the end of its process.

    Raises NotFoundError; ConflictError if it is lost, or, without `force`, if no other replica takes sessions.
    """
    found = _find_replica(tx, name)
    others = (replica for replica in tx.replicas.all() if replica.name != name)
    if not found.drained and not force and not any(replica.takes_sessions(tx.now) for replica in others):
        raise ConflictError(
            f'no other replica than "{name}" takes sessions, so its agents could only change to another hub: start another '
            "replica first, or use force (hubctl drain replica --force)"
        )
    ordered = _event(name, "ReplicaDrained", f"{actor} has drained the replica {name}")
    return _put_drained(tx, replace(found, drained=True), ordered, actor, is_due=not (found.drained or dry_run))


def end_drain(tx: Transaction, name: str, actor: str, *, dry_run: bool = False) -> Replica:
    """Let the replica take sessions again. Raises NotFoundError, ConflictError."""
    found = _find_replica(tx, name)
    ended = _event(name, "ReplicaUncordoned", f"{actor} has ended the drain of the replica {name}")
    return _put_drained(tx, replace(found, drained=False), ended, actor, is_due=found.drained and not dry_run)


def _find_replica(tx: Transaction, name: str) -> Replica:
    found = tx.replicas.of(name)
    if found is None:
        raise NotFoundError(f'there is no replica "{name}"')
    if found.is_lost(tx.now):
        raise ConflictError(f'the replica "{name}" is lost: it has not updated its state recently, and has no sessions')
    return found


def _put_drained(tx: Transaction, replica: Replica, event: EventRecord, actor: str, *, is_due: bool) -> Replica:
    if is_due:
        tx.replicas.put(replica)
        events.record(tx, [event], actor)
    return replica


LOG_LEVEL = "log-level"


def current_log_level(tx: Transaction) -> LogLevelOrder | None:
    """Return the order of a log level that applies now; None: each replica uses the level of its settings."""
    order = hubreplicas.decode_log_level(tx.facts.get(LOG_LEVEL))
    return order if order is not None and order.is_due(tx.now) else None


def order_log_level(tx: Transaction, level: str, lasts: timedelta, actor: str) -> LogLevelOrder:
    """Order a log level for all replicas, for the duration `lasts`. Replaces an earlier order. Raises InvalidError."""
    order = hubreplicas.order_log_level(level, lasts, actor, tx.now)
    tx.facts.set(LOG_LEVEL, hubreplicas.encode_log_level(order))
    return order


def clear_log_level(tx: Transaction) -> None:
    tx.facts.set(LOG_LEVEL, hubreplicas.encode_log_level(None))


def record_leader_terms(tx: Transaction, term: int, ours: EventRecord, actor: str) -> None:
    """Write an Event for each leader term that has no Event yet. `term`: the caller's term; `ours`: the Event for `term`."""
    terms = hubreplicas.decode_terms(tx.facts.get(hubreplicas.UNREPORTED_TERMS))
    if terms.terms:
        events.record(tx, tuple(terms.news(term, ours)), actor)
        tx.facts.set(hubreplicas.UNREPORTED_TERMS, hubreplicas.encode_terms(hubreplicas.UnreportedTerms()))
