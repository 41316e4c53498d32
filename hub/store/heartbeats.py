"""The newest beat of every cluster, and its open session."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, Connection, bindparam, delete, func, or_, select

from hub.domain.heartbeat import Beat, LastBeat
from hub.ports import Heartbeats
from hub.store import schema
from hub.store.engine import INSERTS
from hub.store.instants import optional_instant, to_micros
from hub.store.statement import Statement
from machinery.identity import ClusterName

_column = schema.heartbeats.c


def _upsert(dialect: str) -> Any:
    told: dict[str, BindParameter[Any]] = {name: bindparam(name) for name in ("cluster", "at", "available")}
    new = INSERTS[dialect](schema.heartbeats).values(told)
    return new.on_conflict_do_update(
        index_elements=[_column.cluster],
        set_={"at": new.excluded.at, "available": func.coalesce(new.excluded.available, _column.available)},
        where=or_(_column.at.is_(None), new.excluded.at >= _column.at),
    )


_ONE = select(schema.heartbeats).where(_column.cluster == bindparam("cluster"))
_ALL = Statement(select(schema.heartbeats).order_by(_column.cluster))
_OF = Statement(_ONE)
_OF_TO_WRITE = Statement(_ONE.with_for_update())
_FORGET = Statement(delete(schema.heartbeats).where(_column.cluster == bindparam("of_cluster")))
_UPSERT = Statement(*(_upsert(dialect) for dialect in INSERTS), dialects=tuple(INSERTS))


class SqlHeartbeats(Heartbeats):
    """In a writing transaction a beat that was read is locked: no newer one can be stored before the commit."""

    def __init__(self, connection: Connection, now: datetime, *, writable: bool) -> None:
        self._connection = connection
        self._now = to_micros(now)
        self._writable = writable

    def store(self, beats: Iterable[Beat]) -> None:
        """In the order of names, so that two replicas never wait for one another."""
        rows = [
            {
                "cluster": beat.cluster,
                "at": self._now - round(beat.age.total_seconds() * 1_000_000),
                "available": beat.available,
            }
            for beat in sorted(beats, key=lambda beat: beat.cluster)
        ]
        _UPSERT.run_many(self._connection, rows)

    def of(self, cluster: ClusterName) -> LastBeat | None:
        row = (_OF_TO_WRITE if self._writable else _OF).row(self._connection, {"cluster": cluster})
        return None if row is None else _beat(row)

    def all(self) -> Sequence[LastBeat]:
        return [_beat(row) for row in _ALL.rows(self._connection, {})]

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        values: dict[str, Any] = {"session": session}
        if agent_version is not None:
            values["agent_version"] = agent_version
        new = INSERTS[self._connection.dialect.name](schema.heartbeats).values(cluster=cluster, **values)
        self._connection.execute(new.on_conflict_do_update(index_elements=[_column.cluster], set_=values))

    def forget(self, cluster: ClusterName) -> None:
        _FORGET.run(self._connection, {"of_cluster": cluster})


def _beat(row: tuple[Any, ...]) -> LastBeat:
    cluster, at, available, session, agent_version = row
    return LastBeat(
        cluster=ClusterName(cluster),
        at=optional_instant(at),
        available=None if available is None else bool(available),
        session=session,
        agent_version=agent_version,
    )
