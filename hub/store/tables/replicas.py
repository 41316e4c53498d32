"""The replicas and their agent sessions."""

from collections.abc import Hashable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select, tuple_, update

from hub.api.hubreplicas import AgentSession, Load, Replica
from hub.ports.liveness import AgentSessions, Replicas
from hub.store import schema
from hub.store.engine.encoding import MICROSECOND, to_micros
from hub.store.engine.engine import insert_into, upsert
from hub.store.engine.notify import SESSIONS, notify_others
from hub.store.engine.statements import Statement
from hub.store.tables.records import RowMapper
from machinery.identity import AgentId, ClusterName

_row = schema.replicas.c
_session = schema.sessions.c
_beat = schema.heartbeats.c
_REPLICA = RowMapper(Replica, schema.replicas, columns={"started": "started_at", "seen": "seen_at"}, load=None)
_KEY, _REST = ("cluster", "agent"), ("session", "replica", "opened_at")
_SESSION = RowMapper(AgentSession, schema.sessions, columns={"at": "opened_at"})


def _upsert(dialect: str) -> Any:
    """INSERT of a session that replaces the agent's earlier one."""
    new = insert_into(schema.sessions, dialect).values({name: bindparam(name) for name in _KEY + _REST})
    return new.on_conflict_do_update(
        index_elements=_KEY,
        set_={name: new.excluded[name] for name in _REST},
        where=tuple_(new.excluded.opened_at, new.excluded.session) >= tuple_(_session.opened_at, _session.session),
    )


_ONE = select(schema.replicas).where(_row.name == bindparam("name"))
_ALL = Statement(select(schema.replicas).order_by(_row.name))
_OF = Statement(_ONE)
_OF_TO_WRITE = Statement(_ONE.with_for_update())
_PUT = Statement(partial(upsert, schema.replicas))
_REMOVE = Statement(delete(schema.replicas).where(_row.name == bindparam("name")))
_OPEN = Statement(_upsert)
_CLOSE = Statement(
    delete(schema.sessions).where(
        _session.cluster == bindparam("cluster"), _session.agent == bindparam("agent"), _session.session == bindparam("session")
    )
)
_AGENTS = Statement(select(_session.agent).where(_session.cluster == bindparam("cluster")).order_by(_session.agent))
_OF_CLUSTER = Statement(select(schema.sessions).where(_session.cluster == bindparam("cluster")).order_by(_session.agent))
_OPENED = Statement(
    select(schema.sessions).where(_session.opened_at >= bindparam("moment"), _session.replica != bindparam("but"))
)
_SESSIONS = Statement(select(schema.sessions))
_FINGERPRINT = Statement(
    select(_session.replica, func.count(), func.max(_session.opened_at), func.sum(_session.opened_at % 1_000_003))
    .group_by(_session.replica)
    .order_by(_session.replica)
)


class SqlReplicas(Replicas):
    """A writing transaction locks the replicas it reads."""

    def __init__(self, connection: Connection, *, writable: bool) -> None:
        self._connection = connection
        self._writable = writable

    def all(self) -> Sequence[Replica]:
        return [_replica(row) for row in _ALL.rows(self._connection, {})]

    def of(self, name: str) -> Replica | None:
        row = (_OF_TO_WRITE if self._writable else _OF).row(self._connection, {"name": name})
        return None if row is None else _replica(row)

    def put(self, replica: Replica) -> None:
        load = replica.load
        measured = {"watches": load.watches, "cpu_ms": round(load.cpu * 1_000), "memory": load.memory}
        _PUT.run(self._connection, _REPLICA.values(replica, **measured, ahead_us=load.ahead // MICROSECOND))

    def remove(self, name: str) -> None:
        _REMOVE.run(self._connection, {"name": name})


def _replica(row: Sequence[Any]) -> Replica:
    watches, cpu_ms, memory, ahead_us = row[-4:]
    return _REPLICA.record(row, load=Load(watches, cpu_ms / 1_000, memory, ahead_us * MICROSECOND))


class SqlAgentSessions(AgentSessions):
    def __init__(self, connection: Connection, sender: str) -> None:
        """`sender`: this replica. A transaction that opens sessions notifies the other replicas once."""
        self._connection = connection
        self._sender = sender
        self._notified = False

    def open(self, session: AgentSession) -> bool:
        if not self._notified:
            self._notified = True
            notify_others(self._connection, SESSIONS, self._sender)
        return _OPEN.run(self._connection, _SESSION.values(session)) > 0

    def agents(self, cluster: ClusterName) -> Sequence[AgentId]:
        return [AgentId(agent) for (agent,) in _AGENTS.rows(self._connection, {"cluster": cluster})]

    def of(self, cluster: ClusterName) -> Sequence[AgentSession]:
        return [_SESSION.record(row) for row in _OF_CLUSTER.rows(self._connection, {"cluster": cluster})]

    def close(self, cluster: ClusterName, agent: AgentId, session: str) -> None:
        _CLOSE.run(self._connection, {"cluster": cluster, "agent": agent, "session": session})

    def opened_since(self, moment: datetime, *, but: str) -> Sequence[AgentSession]:
        found = _OPENED.rows(self._connection, {"moment": to_micros(moment), "but": but})
        return [_SESSION.record(row) for row in found]

    def all(self) -> Sequence[AgentSession]:
        return [_SESSION.record(row) for row in _SESSIONS.rows(self._connection, {})]

    def fingerprint(self) -> Hashable:
        return tuple(tuple(row) for row in _FINGERPRINT.rows(self._connection, {}))

    def replicas(self) -> Sequence[str]:
        return list(self._connection.execute(select(_session.replica).distinct().order_by(_session.replica)).scalars())

    def end_of(self, replica: str) -> int:
        theirs = select(_session.session).where(_session.replica == replica)
        self._connection.execute(update(schema.heartbeats).where(_beat.session.in_(theirs)).values(session=None))
        return self._connection.execute(delete(schema.sessions).where(_session.replica == replica)).rowcount

    def end_all(self) -> None:
        self._connection.execute(update(schema.heartbeats).where(_beat.session.is_not(None)).values(session=None))
        self._connection.execute(delete(schema.sessions))
